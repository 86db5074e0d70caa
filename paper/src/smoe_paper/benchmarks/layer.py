"""The routed convolution and whole layers in training, beside F.conv2d with as many filters as selected (= 1.0)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
import tyro
from rich.progress import track

from smoe.command_line import UsageError, parse
from smoe.nn import SpatialMoE2d
from smoe.ops import routed_conv2d
from smoe.ops._conv_kernels import dense_routed_conv
from smoe.ops._routing import top_experts
from smoe.rules import Frozen, RoutingClassification, Rule
from smoe_paper.benchmarks.timing import circumstances, interleaved_medians, origin, write_table


@dataclass(frozen=True)
class Configuration:
    """A layer: batch, channels, experts in the bank, experts selected, rows and columns; 3 x 3 kernels."""

    batch: int
    channels: int
    experts: int
    selected: int
    height: int
    width: int

    @property
    def flops(self) -> float:
        """Useful floating-point operations of one direction."""
        return 2.0 * self.batch * self.channels * self.selected * 9 * self.height * self.width


CONFIGURATIONS = {
    "heat": Configuration(32, 1, 3, 1, 64, 64),
    "CIFAR": Configuration(64, 64, 128, 64, 32, 32),
    "CIFAR B512": Configuration(512, 64, 128, 64, 32, 32),
    "ResNet-50 stage": Configuration(16, 128, 256, 128, 28, 28),
    "WeatherBench B64": Configuration(64, 128, 256, 128, 32, 64),
    "WeatherBench B8": Configuration(8, 128, 256, 128, 32, 64),
    "WeatherBench B1": Configuration(1, 128, 256, 128, 32, 64),
    "ENS 180x360 B8": Configuration(8, 32, 128, 32, 180, 360),
    "ENS 180x360 B1": Configuration(1, 32, 128, 32, 180, 360),
    "E=1, C=64": Configuration(64, 64, 8, 1, 32, 32),
}
ROUTINGS: tuple[Literal["random", "coherent"], ...] = ("random", "coherent")
# At a fixed number of selected experts, the bank grows: the cost should not.
BANKS = {f"WeatherBench B64, X = {ratio}E": Configuration(64, 128, 128 * ratio, 128, 32, 64) for ratio in (2, 4, 8, 16)}

COLUMNS = (
    *("configuration", "routing", "threads", "conv2d forward ms", "dense forward", "ours forward"),
    *("conv2d fwd+bwd ms", "dense fwd+bwd", "ours fwd+bwd", "frozen layer", "default layer", "RC layer", "ours GF/s"),
)
# Passes that are measured together: with one sample, the gate of the default layer learns in one of four.
_PASSES = 4


def make_routing(configuration: Configuration, routing: str) -> torch.Tensor:
    """Scores `(X, H, W)`: `random` at each pixel, or `coherent`, smooth over some tens of pixels."""
    X, H, W = configuration.experts, configuration.height, configuration.width
    if routing == "random":
        return torch.randn(X, H, W)
    return F.interpolate(torch.randn(1, X, 6, 10), size=(H, W), mode="bicubic")[0].contiguous()


def _make_layer(c: Configuration, rule: Rule | None) -> SpatialMoE2d:
    shape = (c.height, c.width)
    return SpatialMoE2d.from_experts(c.channels, c.experts, c.selected, spatial_shape=shape, rule=rule, bias=False)


def measure(
    configuration: Configuration, routing: str, threads: int, *, seconds: float = 3.0, with_dense: bool = True
) -> dict[str, Any]:
    """One row of the table; processor times of conv2d in milliseconds, the others as ratios to it.

    The layers are measured whole: scores, their ranking, the convolution, and in backward the gradients of input,
    experts and gate.
    """
    torch.set_num_threads(threads)
    c = configuration
    input = torch.randn(c.batch, c.channels, c.height, c.width, requires_grad=True)
    bank = torch.randn(c.experts, c.channels, 3, 3, requires_grad=True)
    filters = torch.randn(c.selected, c.channels, 3, 3, requires_grad=True)
    indices = top_experts(make_routing(c, routing).flatten(1)[None], c.selected)
    error = torch.randn(c.batch, c.selected, c.height, c.width)
    rules = {"frozen": Frozen(), "default": None, "rc": RoutingClassification.released()}
    layers = {name: _make_layer(c, rule) for name, rule in rules.items()}

    def conv() -> torch.Tensor:
        return F.conv2d(input, filters, padding=1)

    def dense() -> torch.Tensor:
        return dense_routed_conv(input, bank, indices)

    def ours() -> torch.Tensor:
        return routed_conv2d(input, bank, indices, check_indices=False)

    def without_gradient(call: Callable[[], torch.Tensor]) -> Callable[[], object]:
        def run() -> torch.Tensor:
            with torch.no_grad():
                return call()

        return run

    def with_gradient(call: Callable[[], torch.Tensor]) -> Callable[[], object]:
        def run() -> None:
            for _ in range(_PASSES):
                call().backward(error)
                input.grad = bank.grad = filters.grad = None
                for layer in layers.values():
                    layer.zero_grad()

        return run

    ways = {"conv2d": conv, "ours": ours, **({"dense": dense} if with_dense else {})}
    clock = time.process_time
    forward = interleaved_medians(
        {name: without_gradient(call) for name, call in ways.items()}, seconds=seconds, clock=clock
    )
    whole = {name: partial(layer, input) for name, layer in layers.items()}
    both = interleaved_medians(
        {name: with_gradient(call) for name, call in {**ways, **whole}.items()}, seconds=2 * seconds, clock=clock
    )
    both = {name: value / _PASSES for name, value in both.items()}

    def ratio(times: dict[str, float], name: str) -> str:
        return f"{times[name] / times['conv2d']:.2f}" if name in times else "-"

    return {
        "routing": routing,
        "threads": threads,
        "conv2d forward ms": f"{1000 * forward['conv2d']:.2f}",
        "dense forward": ratio(forward, "dense"),
        "ours forward": ratio(forward, "ours"),
        "conv2d fwd+bwd ms": f"{1000 * both['conv2d']:.2f}",
        "dense fwd+bwd": ratio(both, "dense"),
        "ours fwd+bwd": ratio(both, "ours"),
        "frozen layer": ratio(both, "frozen"),
        "default layer": ratio(both, "default"),
        "RC layer": ratio(both, "rc"),
        "ours GF/s": f"{3 * c.flops / both['ours'] / 1e9:.0f}",
        **circumstances(),
    }


def cases(
    only: Iterable[str] = (), routings: Iterable[str] = ROUTINGS, threads: Iterable[int] = (1, 2)
) -> list[tuple[str, Configuration, str, int]]:
    """What the command measures: name, configuration, routing, threads.

    Args:
        only: Words that the names of configurations contain; all configurations, and growing banks, if there is none.
        routings: Kinds of routings.
        threads: Numbers of threads.
    """
    chosen = {
        name: configuration
        for name, configuration in CONFIGURATIONS.items()
        if not only or any(word.lower() in name.lower() for word in only)
    }
    rows = [
        (name, configuration, routing, num_threads)
        for name, configuration in chosen.items()
        for routing in routings
        for num_threads in threads
    ]
    return rows + ([] if only else [(name, bank, "random", 1) for name, bank in BANKS.items()])


@dataclass(frozen=True)
class LayerOptions:
    """Measures layers side by side with F.conv2d, prints a table and stores it.

    Attributes:
        names: Words that the names of configurations contain; all configurations if none is given.
        routings: Kinds of routings: random at each pixel, or coherent over some tens of pixels.
        threads: Numbers of threads.
        output: Markdown file of the table; a .jsonl beside it holds the rows.
        seconds: Time spent on each forward comparison; twice that on each forward and backward.
        device: `cpu`, or `cuda` for the table of `smoe bench device`.
        dtype: Dtype on a GPU.
    """

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    routings: tuple[Literal["random", "coherent"], ...] = ROUTINGS
    threads: tuple[int, ...] = (1, 2)
    output: Path = Path("paper/results/bench/layer.md")
    seconds: float = 3.0
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["fp32", "tf32", "fp16", "bf16"] = "bf16"


def main(args: list[str] | None = None) -> None:
    """Measures the configurations that were named, and stores the table after each row."""
    options = parse(LayerOptions, args or [], prog="smoe bench layer")
    if options.device == "cuda":
        from smoe_paper.benchmarks.device import main as measure_device

        measure_device(["--dtype", options.dtype])
        return
    chosen = cases(options.names, options.routings, options.threads)
    if not chosen:
        raise UsageError(f"no configuration's name contains {' or '.join(options.names)}")
    rows: list[dict[str, Any]] = []
    text = ""
    for name, configuration, routing, threads in track(chosen, description="measuring"):
        row = measure(configuration, routing, threads, seconds=options.seconds, with_dense="X =" not in name)
        rows.append({"configuration": name, **row})
        # Written after each row, so that a stop loses one measurement and not the table.
        notes = (
            "Ratios to `F.conv2d` with E filters, interleaved in one process, medians; 3 x 3 kernels, zero padding. "
            "fwd+bwd: forward, input gradient and weight gradient. The ratios of layers are of processor time, with "
            f"ranking and the learning of the gate. {origin(rows[-1])}"
        )
        title = "The routed convolution and whole layers beside F.conv2d"
        command = " ".join(("smoe bench layer", *(args or [])))
        text = write_table(options.output, title, command, COLUMNS, rows, notes)
    sys.stdout.write(text)
