"""`smoe bench halves`: what a network keeps of its gain if half of its convolutions become SMoE layers.

Three small networks learn tasks of `smoe bench learn` whose laws depend on the place, plain, converted as a whole, and
with the half of the layers that a rule of thumb picks.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor, nn

import smoe
from smoe.command_line import parse
from smoe.nn import Change
from smoe_paper.benchmarks.learn_students import Course, error_of, train
from smoe_paper.benchmarks.learn_tasks import make_lesson
from smoe_paper.benchmarks.timing import circumstances, origin, write_table

RULES = ("first", "last", "both ends", "largest grids", "smallest grids", "most multiply-adds")


def half_of(changes: Sequence[Change], rule: str) -> frozenset[str]:
    """Names of the layers that a rule picks: those of the least keys, and of equal ones the last."""
    key: Callable[[int], float] = {
        "first": lambda number: number,
        "last": lambda number: -number,
        "both ends": lambda number: min(number, len(changes) - 1 - number),
        "largest grids": lambda number: -math.prod(changes[number].spatial_shape),
        "smallest grids": lambda number: math.prod(changes[number].spatial_shape),
        "most multiply-adds": lambda number: -changes[number].multiply_adds[0],
    }[rule]
    order = sorted(range(len(changes)), key=lambda number: (key(number), -number))
    return frozenset(changes[number].name for number in order[: len(changes) // 2])


@dataclass(frozen=True)
class HalvesOptions:
    """Measures what halves of the layers of a network gain, prints a table and stores it.

    Attributes:
        output: Markdown file of the table; a .jsonl beside it holds the rows.
        num_seeds: Seeds, each with data of its own.
        num_steps: Training steps.
    """

    output: Path = Path("paper/results/bench/halves.md")
    num_seeds: int = 4
    num_steps: int = 300


def _block(*channels: int, stride: int = 1) -> nn.Sequential:
    """Convolutions of 3 x 3, each with batch normalisation and ReLU; the first one has the stride."""
    layers: list[nn.Module] = []
    for number, pair in enumerate(itertools.pairwise(channels)):
        conv = nn.Conv2d(*pair, 3, stride=stride if number == 0 else 1, padding=1, bias=False)
        layers += [conv, nn.BatchNorm2d(pair[1]), nn.ReLU()]
    return nn.Sequential(*layers)


class Beside(nn.Module):
    """What a block makes of an input, and the input: summed, or as more channels."""

    def __init__(self, *body: nn.Module, is_sum: bool = False) -> None:
        super().__init__()
        self.body, self.is_sum = nn.Sequential(*body), is_sum

    def forward(self, input: Tensor) -> Tensor:
        output = self.body(input)
        return input + output if self.is_sum else torch.cat([output, input], dim=1)


def unet(fan_in: int, fan_out: int) -> nn.Module:
    """Three levels of two convolutions each, with strides, and skips."""
    level1, level2 = _block(fan_in, 12, 12), _block(12, 16, 16, stride=2)
    level3, up2, up1 = _block(16, 24, 24, stride=2), _block(24 + 16, 16, 16), _block(16 + 12, 12, 12)
    up = nn.Upsample(scale_factor=2)
    inner = Beside(level2, Beside(level3, up), up2, up)
    return nn.Sequential(level1, inner, up1, nn.Conv2d(12, fan_out, 3, padding=1))


def resnet(fan_in: int, fan_out: int) -> nn.Module:
    """Three blocks of two convolutions at full resolution."""
    blocks = [Beside(_block(12, 12, 12), is_sum=True) for _ in range(3)]
    return nn.Sequential(_block(fan_in, 12), *blocks, nn.Conv2d(12, fan_out, 3, padding=1))


def convnext(fan_in: int, fan_out: int) -> nn.Module:
    """Depthwise and pointwise convolutions at full and at half resolution, and a way back."""

    def block(width: int) -> nn.Module:
        depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        wide, narrow = nn.Conv2d(width, 2 * width, 1), nn.Conv2d(2 * width, width, 1)
        return Beside(depthwise, nn.GroupNorm(1, width), wide, nn.GELU(), narrow, is_sum=True)

    down, up = nn.Conv2d(16, 24, 2, stride=2), nn.ConvTranspose2d(24, 16, 2, stride=2)
    inner = Beside(down, block(24), up, is_sum=True)
    return nn.Sequential(nn.Conv2d(fan_in, 16, 3, padding=1), block(16), inner, block(16), nn.Conv2d(16, fan_out, 1))


CASES: dict[str, tuple[Callable[[int, int], nn.Module], str]] = {
    "U-Net, shallow water": (unet, "shallow water"),
    "ResNet, two layers": (resnet, "two layers"),
    "ConvNeXt, advection": (convnext, "advection"),
}


def measure(case: str, seed: int, num_steps: int) -> dict[str, float]:
    """Test errors of the plain network, the converted one, and those with a half converted."""
    make_net, task = CASES[case]
    lesson = make_lesson(task, seed)
    fans, example = (lesson.channels[0], lesson.channels[-1]), lesson.train.inputs[:8]
    changes = smoe.plan_conversion(make_net(*fans), example_input=example, kernel_size=None).changes
    picked = {"plain": frozenset[str](), "all": frozenset(change.name for change in changes)}
    picked |= {rule: half_of(changes, rule) for rule in RULES}
    found: dict[frozenset[str], float] = {}
    for names in picked.values():
        if names not in found:
            torch.manual_seed(seed)
            student = make_net(*fans)
            if names:
                chosen = {"kernel_size": None, "predicate": lambda name, _, names=names: name in names}
                student = smoe.convert(student, example_input=example, **chosen)
            train(student, lesson, seed, Course(rate=3e-3, num_steps=num_steps))
            found[names] = error_of(student, lesson, lesson.test)
    return {rule: found[names] for rule, names in picked.items()}


def run(options: HalvesOptions) -> str:
    """Measures the seeds that are missing, one after the other, and returns the table as Markdown."""
    torch.set_num_threads(1)
    stored = options.output.with_suffix(".jsonl")
    lines = stored.read_text().splitlines() if stored.exists() else []
    known: dict[str, dict[str, Any]] = {row["network, task"]: row for row in map(json.loads, lines)}
    for seed, case in track(list(itertools.product(range(options.num_seeds), CASES)), disable=not sys.stderr.isatty()):
        of_seeds: list[dict[str, float]] = known[case]["errors"] if case in known else []
        if len(of_seeds) == seed:
            known[case] = _row(case, [*of_seeds, measure(case, seed, options.num_steps)])
            _write(options, known)
    return _write(options, known)


def _write(options: HalvesOptions, known: dict[str, dict[str, Any]]) -> str:
    rows = [known[case] for case in CASES if case in known]
    notes = (
        "Plain, all: test error over variance with no and with every convolution converted, means of the seeds. Others "
        "are the share of this gain that half of the layers keep; of equal ones the last. "
        f"{options.num_steps} steps of AdamW 3e-3, 16 x 16 pixels. {origin(rows[-1])}"
    )
    columns = ["network, task", "seeds", "plain", "all", *RULES]
    return write_table(options.output, "Half of the layers", "smoe bench halves", columns, rows, notes)


def _row(case: str, of_seeds: list[dict[str, float]]) -> dict[str, Any]:
    mean = {name: statistics.mean(found[name] for found in of_seeds) for name in ("plain", "all", *RULES)}
    gain = mean["plain"] - mean["all"]
    kept = {rule: f"{(mean['plain'] - mean[rule]) / gain:.0%}" for rule in RULES}
    numbers = {"seeds": len(of_seeds), "plain": f"{mean['plain']:.2g}", "all": f"{mean['all']:.2g}"}
    return {"network, task": case, **numbers, **kept, "errors": of_seeds, **circumstances()}


def main(args: list[str] | None = None) -> None:
    """Reads the options, measures and prints the table."""
    sys.stdout.write(run(parse(HalvesOptions, args or [], prog="smoe bench halves")))
