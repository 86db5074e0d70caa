"""The default layer in training and inference, beside a convolution with as many outputs (= 1.0), and its peers."""

from __future__ import annotations

import ctypes
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from rich.progress import track
from torch import nn

import smoe
from smoe.command_line import UsageError, parse
from smoe.nn import FactorisedGate, LocalAffine
from smoe.ops._operators import native_library
from smoe.rules import Frozen
from smoe_paper.baselines.layers import CoordConv2d
from smoe_paper.baselines.low_rank import LowRankLocal2d
from smoe_paper.benchmarks.timing import circumstances, interleaved_medians, origin, write_table
from smoe_paper.heat_mesh.model import adjacency


@dataclass(frozen=True)
class Configuration:
    """A layer: batch, input and output channels, candidates of an output, rows and columns; kernels of 3 taps an axis.

    A volume has as many slices as rows, a sphere twelve faces, and a graph a node for each place of a torus.
    """

    batch: int
    in_channels: int
    out_channels: int
    candidates: int
    height: int
    width: int
    kind: Literal["plane", "volume", "sphere", "graph"] = "plane"

    @property
    def grid(self) -> tuple[int, ...]:
        """Sizes of the grid."""
        plane = (self.height, self.width)
        more = {"volume": (self.height, *plane), "sphere": (12, *plane), "graph": (self.height * self.width,)}
        return more.get(self.kind, plane)

    @property
    def flops(self) -> float:
        """Floating-point operations of one direction, of the selected filters."""
        taps = {"volume": 27, "graph": 2}.get(self.kind, 9)
        return 2.0 * self.batch * self.in_channels * self.out_channels * taps * math.prod(self.grid)


CONFIGURATIONS = {
    "heat, 32 samples": Configuration(32, 1, 1, 3, 64, 64),
    "heat, 1": Configuration(1, 1, 1, 3, 64, 64),
    "small net, 8": Configuration(8, 8, 8, 2, 16, 16),
    "ResNet-18 stage, 2": Configuration(2, 64, 64, 2, 16, 16),
    "CIFAR, 64": Configuration(64, 64, 64, 2, 32, 32),
    "CIFAR, 1": Configuration(1, 64, 64, 2, 32, 32),
    "ResNet-50 stage, 16": Configuration(16, 128, 128, 2, 28, 28),
    "WeatherBench, 64": Configuration(64, 128, 128, 2, 32, 64),
    "WeatherBench, 8": Configuration(8, 128, 128, 2, 32, 64),
    "WeatherBench, 1": Configuration(1, 128, 128, 2, 32, 64),
    "WeatherBench, 1, four candidates": Configuration(1, 128, 128, 4, 32, 64),
    "ENS-10, 8, four candidates": Configuration(8, 32, 32, 4, 180, 360),
    "ENS-10, 1": Configuration(1, 32, 32, 2, 180, 360),
    "ENS-10, 1, four candidates": Configuration(1, 32, 32, 4, 180, 360),
    "volume of 64^3, 1": Configuration(1, 16, 16, 2, 64, 64, "volume"),
    "HEALPix, nside 64, 4": Configuration(4, 32, 32, 2, 64, 64, "sphere"),
    "graph of 10^5 nodes, 1": Configuration(1, 32, 32, 2, 250, 400, "graph"),
    "graph of 10^5 nodes, 1, 16 candidates": Configuration(1, 32, 32, 16, 250, 400, "graph"),
}
Start = Literal["random", "smooth"]
COLUMNS = (
    *("configuration", "routing", "threads", "conv, step ms (GF/s)", "default", "frozen", "frozen GF/s (peak)"),
    *("conv, inference ms (GF/s)", "evaluation", "smoe.freeze", "smoe.freeze GF/s (peak)"),
    *("conv + affine", "CoordConv", "LRLCN", "dense mixture"),
)
# Steps that are measured together: with one sample, the gate of the default layer learns in one of four, or of six.
_STEPS = 12


class DenseMixture(nn.Module):
    """A convolution with all candidates, and at each pixel the mean of each family weighted by a softmax."""

    def __init__(self, c: Configuration) -> None:
        super().__init__()
        self.conv = nn.Conv2d(c.in_channels, c.out_channels * c.candidates, 3, padding=1)
        self.scores = nn.Parameter(torch.randn(c.out_channels, c.candidates, c.height, c.width))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return (self.conv(input).unflatten(1, self.scores.shape[:2]) * self.scores.softmax(dim=1)).sum(dim=2)


class OnTorus(nn.Module):
    """A layer of graphs on a torus, whose nodes have four neighbours each, with features `(1, C, N)`."""

    def __init__(self, c: Configuration, layer: nn.Module, *, has_matrix: bool) -> None:
        super().__init__()
        nodes = torch.arange(c.height * c.width).view(c.height, c.width)
        pairs = [(nodes.roll(shift, axis), nodes) for shift in (-1, 1) for axis in (0, 1)]
        edges = torch.stack([torch.stack(pair).flatten(1) for pair in pairs], dim=1).flatten(1)
        self.layer, self.edges = layer, adjacency(edges, nodes.numel()) if has_matrix else edges

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`(1, C, N)` to `(1, out_channels, N)`."""
        return self.layer(input[0].T, self.edges).T[None]


def make_layer(c: Configuration, start: Start, rule: Frozen | None = None) -> nn.Module:
    """The default layer, whose gate starts with independent pixels or with smooth fields."""
    gate = FactorisedGate(
        *(c.candidates * c.out_channels, c.out_channels, c.grid), init="kaiming" if start == "random" else "smooth"
    )
    pair = (c.in_channels, c.out_channels)
    options: Any = {"num_candidates": c.candidates, "gate": gate, "rule": rule, "local_affine": True}
    if c.kind == "graph":
        return OnTorus(c, smoe.GraphMoE(*pair, **options), has_matrix=False)
    if c.kind == "sphere":
        return smoe.HEALPixMoE(*pair, nside=c.height, **options)
    make = smoe.SpatialMoE3d if c.kind == "volume" else smoe.SpatialMoE2d
    return make(*pair, 3, spatial_shape=c.grid, **options)


def make_plain(c: Configuration) -> nn.Module:
    """What the layer is compared with; faces of a sphere count as samples."""
    pair = (c.in_channels, c.out_channels)
    if c.kind == "graph":
        # Only this row needs it.
        from torch_geometric.nn import SAGEConv

        return OnTorus(c, SAGEConv(*pair), has_matrix=True)
    return (nn.Conv3d if c.kind == "volume" else nn.Conv2d)(*pair, 3, padding=1)


def measure(
    c: Configuration, start: Start, threads: int, *, seconds: float = 3.0, with_peers: bool = True
) -> dict[str, Any]:
    """One row of the table: processor times of the convolution, the others as ratios to it."""
    torch.set_num_threads(threads)
    pair, shape = (c.in_channels, c.out_channels), (c.height, c.width)
    default = make_layer(c, start)
    layers: dict[str, nn.Module] = {
        "conv": make_plain(c),
        "default": default,
        "frozen": make_layer(c, start, Frozen()),
    }
    if with_peers and c.kind == "plane":
        layers |= {
            "conv + affine": nn.Sequential(nn.Conv2d(*pair, 3, padding=1), LocalAffine(c.out_channels, shape)),
            "CoordConv": CoordConv2d(*pair, bias=True),
            "LRLCN": LowRankLocal2d(*pair, spatial_shape=shape),
            "dense mixture": DenseMixture(c),
        }
    num_steps = _STEPS if c.batch < 6 else 1
    input = torch.randn(c.batch, c.in_channels, *c.grid, requires_grad=True)
    faces = input.detach().flatten(0, 2).view(-1, c.in_channels, *shape) if c.kind == "sphere" else input.detach()
    inputs = dict.fromkeys(layers, input) | {"conv": faces.requires_grad_()}
    errors = {name: torch.randn(len(each), c.out_channels, *each.shape[2:]) for name, each in inputs.items()}

    def train(name: str) -> Callable[[], object]:
        layer, input, error = layers[name], inputs[name], errors[name]
        optimizer = torch.optim.SGD(layer.parameters(), lr=1e-6)

        def run() -> None:
            for _ in range(num_steps):
                layer(input).backward(error)
                optimizer.step()
                optimizer.zero_grad()
                input.grad = None

        return run

    def infer(layer: nn.Module, input: torch.Tensor) -> Callable[[], object]:
        def run() -> None:
            with torch.no_grad():
                for _ in range(num_steps):
                    layer(input)

        return run

    clock = time.process_time
    steps = interleaved_medians({name: train(name) for name in layers}, seconds=2 * seconds, min_rounds=3, clock=clock)
    evaluated = {"conv": layers["conv"], "evaluation": default.eval(), "smoe.freeze": smoe.freeze(default).eval()}
    passes = interleaved_medians(
        {name: infer(layer, inputs.get(name, input)) for name, layer in evaluated.items()},
        seconds=seconds,
        min_rounds=3,
        clock=clock,
    )
    peak = multiply_add_peak()

    def rate(flops: float, seconds: float) -> str:
        reached = flops * num_steps / seconds / 1e9
        return f"{reached:.0f} ({reached / peak:.0%})"

    def conv(flops: float, seconds: float) -> str:
        return f"{1000 * seconds / num_steps:.3g} ({flops * num_steps / seconds / 1e9:.0f})"

    row: dict[str, Any] = {
        "routing": start,
        "threads": threads,
        "conv, step ms (GF/s)": conv(3 * c.flops, steps["conv"]),
    }
    row |= {name: f"{steps[name] / steps['conv']:.2f}" if name in steps else "-" for name in COLUMNS[-4:]}
    row |= {name: f"{steps[name] / steps['conv']:.2f}" for name in ("default", "frozen")}
    row["frozen GF/s (peak)"] = rate(3 * c.flops, steps["frozen"])
    row["conv, inference ms (GF/s)"] = conv(c.flops, passes["conv"])
    row |= {name: f"{passes[name] / passes['conv']:.2f}" for name in ("evaluation", "smoe.freeze")}
    row["smoe.freeze GF/s (peak)"] = rate(c.flops, passes["smoe.freeze"])
    return {**row, "peak GF/s": round(peak, 1), **circumstances()}


def multiply_add_peak() -> float:
    """Floating-point operations of a core in a nanosecond of processor time, the best of five; NaN without kernels."""
    library = native_library()
    if library is None:
        return float("nan")
    run = library.functions.smoe_multiply_add_peak
    run.restype, run.argtypes = ctypes.c_double, [ctypes.c_int64]

    def once() -> float:
        started = time.process_time()
        return run(1_000_000) / (time.process_time() - started) / 1e9

    return max(once() for _ in range(5))


@dataclass(frozen=True)
class LayerBenchmark:
    """Measures layers side by side with nn.Conv2d, prints a table and stores it."""

    # Words that the names of configurations contain; all configurations if none is given.
    names: tyro.conf.Positional[tuple[str, ...]] = ()
    # Start of the gate: random at each pixel, or smooth over some tens of pixels.
    routings: tuple[Start, ...] = ("random", "smooth")
    threads: tuple[int, ...] = (1,)  # Numbers of threads.
    # Markdown file of the table; a .jsonl beside it holds the rows.
    output: Path = Path("paper/results/bench/layer.md")
    seconds: float = 3.0  # Time spent on each comparison of inference; twice that on each of training.
    peers: bool = True  # Measure other layers with learned numbers for each pixel too.


def main(args: list[str] | None = None) -> None:
    options = parse(LayerBenchmark, args or [], prog="smoe bench layer")
    chosen: list[tuple[str, Configuration, Start, int]] = [
        (name, configuration, routing, threads)
        for name, configuration in CONFIGURATIONS.items()
        for routing in options.routings
        for threads in options.threads
        if not options.names or any(word.lower() in name.lower() for word in options.names)
    ]
    if not chosen:
        raise UsageError(f"no configuration's name contains {' or '.join(options.names)}")
    rows: list[dict[str, Any]] = []
    text = ""
    for name, configuration, routing, threads in track(chosen, description="measuring"):
        is_first = options.peers and routing == options.routings[0]
        row = measure(configuration, routing, threads, seconds=options.seconds, with_peers=is_first)
        rows.append({"configuration": name, **row})
        # Written after each row, so that a stop loses one measurement and not the table.
        notes = (
            "Ratios of processor time to `nn.Conv2d` with as many outputs and a bias, interleaved in one process, "
            "medians; 3 taps an axis. Volumes: `nn.Conv3d`; faces of a sphere: samples of `nn.Conv2d`; a torus as a "
            "graph: torch_geometric's SAGEConv. A step is forward, backward with the gradient of the input, and a step "
            "of SGD, in which the gate takes its own. default: the layer as it is made: a bias for each expert, a "
            "local affine map, a gate that learns; frozen: `layer.freeze()`. GF/s count the work of selected filters, "
            "three times that in a step; peak: of the multiply-adds of a core in the same minute. Peers: steps. "
            f"{origin(rows[-1])}"
        )
        title = "The default layer beside nn.Conv2d"
        command = " ".join(("smoe bench layer", *(args or [])))
        text = write_table(options.output, title, command, COLUMNS, rows, notes)
    sys.stdout.write(text)
