"""The time of one sample in inference: layers as trained, frozen, exported and compiled ahead of time."""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import nn

import smoe
from smoe.command_line import UsageError, parse
from smoe_paper.benchmarks.layer import CONFIGURATIONS, Configuration
from smoe_paper.benchmarks.timing import circumstances, interleaved_medians, origin, write_table

NAMES = ("heat", "CIFAR", "WeatherBench B1", "ENS 180x360 B1")
FORMS = ("layer", "frozen", "exported", "AOTInductor", "plain", "plain AOTInductor")
COLUMNS = (
    *("configuration", "clock", "conv2d ms", *FORMS, "first pass / conv2d"),
    *("saved kB", "saved frozen kB"),
)


@dataclass(frozen=True)
class LatencyOptions:
    """Measures one sample, prints a table and stores it.

    Attributes:
        names: Words that the names of configurations contain; the usual ones if none is given.
        output: Markdown file of the table; a .jsonl beside it holds the rows.
        seconds: Time spent on each configuration and clock.
        aot: Compile ahead of time too, which takes a minute for each configuration.
    """

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    output: Path = Path("paper/results/bench/latency.md")
    seconds: float = 3.0
    aot: bool = True


def make_forms(c: Configuration, *, has_aot: bool) -> tuple[dict[str, Callable[[torch.Tensor], torch.Tensor]], Any]:
    """The layer in each form, and the layer itself."""
    layer = smoe.SpatialMoE2d.from_experts(c.channels, c.experts, c.selected, spatial_shape=(c.height, c.width)).eval()
    # As after training: experts and scores that differ from pixel to pixel.
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    frozen = smoe.freeze(layer).eval()
    example = torch.randn(1, c.channels, c.height, c.width)
    program = torch.export.export(frozen, (example,))
    plain = program.run_decompositions(smoe.ops.plain_operators())
    forms = {"layer": layer, "frozen": frozen, "exported": program.module(), "plain": plain.module()}
    if has_aot:
        for name, part in (("AOTInductor", program), ("plain AOTInductor", plain)):
            forms[name] = _compiled(part)
    return forms, layer


def _compiled(program: torch.export.ExportedProgram) -> Callable[[torch.Tensor], torch.Tensor]:
    folder = tempfile.mkdtemp(prefix="smoe-latency-")
    try:
        path = torch._inductor.aoti_compile_and_package(program, package_path=f"{folder}/model.pt2")
        return torch._inductor.aoti_load_package(path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def saved_size(model: nn.Module) -> int:
    """Bytes of the state that is saved."""
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    return file.tell()


@torch.no_grad()
def measure(name: str, options: LatencyOptions) -> list[dict[str, Any]]:
    """Rows of a configuration: processor time, and time on the wall."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    c = CONFIGURATIONS[name]
    conv = nn.Conv2d(c.channels, c.selected, 3, padding=1).eval()
    forms, layer = make_forms(c, has_aot=options.aot and shutil.which("g++") is not None)
    input = torch.randn(1, c.channels, c.height, c.width)
    # A routing that no pass has met: `freeze` makes the plan of the kernels.
    other = smoe.freeze(
        smoe.SpatialMoE2d.from_experts(c.channels, c.experts, c.selected, spatial_shape=(c.height, c.width))
    ).eval()
    started = time.process_time()
    other(input)
    first = time.process_time() - started
    ways = {"conv2d": lambda: conv(input), **{form: (lambda call=call: call(input)) for form, call in forms.items()}}
    rows = []
    for clock, text in ((time.process_time, "processor"), (time.perf_counter, "wall")):
        found = interleaved_medians(ways, seconds=options.seconds, clock=clock)
        rows.append(
            {
                "configuration": f"{name.removesuffix(' B1')}, one sample",
                "clock": text,
                "conv2d ms": f"{1000 * found['conv2d']:.3g}",
                **{form: f"{found[form] / found['conv2d']:.2f}" if form in found else "-" for form in FORMS},
                "first pass / conv2d": f"{first / found['conv2d']:.2f}" if text == "processor" else "-",
                "saved kB": f"{saved_size(layer) / 1e3:.0f}",
                "saved frozen kB": f"{saved_size(smoe.freeze(layer)) / 1e3:.0f}",
                **circumstances(),
            }
        )
    return rows


def main(args: list[str] | None = None) -> None:
    """Measures each configuration, and stores the table after each."""
    options = parse(LatencyOptions, args or [], prog="smoe bench latency")
    chosen = [
        name for name in NAMES if not options.names or any(word.lower() in name.lower() for word in options.names)
    ]
    if not chosen:
        raise UsageError(f"no configuration's name contains {' or '.join(options.names)}")
    rows: list[dict[str, Any]] = []
    text = ""
    for name in chosen:
        rows += measure(name, options)
        notes = (
            "One sample, one thread, medians of interleaved passes without gradients; forms of the layer as ratios to "
            "`F.conv2d` with E filters and a bias. layer: default gate, as trained. plain: exported with PyTorch's own "
            "operators, which compute every expert. first pass: of a layer that was just frozen. "
            f"saved: size of the state_dict. Load of the machine: {os.getloadavg()[0]:.0f}; above 1, the wall clock "
            f"counts other work too. {origin(rows[-1])}"
        )
        title = "One sample in inference"
        text = write_table(options.output, title, "smoe bench latency", COLUMNS, rows, notes)
    sys.stdout.write(text)
