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
from collections.abc import Callable, Mapping, Sequence
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


def halves_of(changes: Sequence[Change]) -> dict[str, frozenset[str]]:
    """Names of the layers that the rules pick: those of the least numbers, and of equal ones the last."""
    numbers = range(len(changes))
    pixels = [math.prod(change.spatial_shape) for change in changes]
    keys: tuple[Sequence[float], ...] = (
        numbers,
        [-number for number in numbers],
        [min(number, len(changes) - 1 - number) for number in numbers],
        [-each for each in pixels],
        pixels,
        [-change.multiply_adds[0] for change in changes],
    )
    orders = [sorted(numbers, key=lambda number: (key[number], -number)) for key in keys]
    picked = [frozenset(changes[number].name for number in order[: len(changes) // 2]) for order in orders]
    return dict(zip(RULES, picked, strict=True))


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


class UNet(nn.Module):
    """Three levels of two convolutions each, with strides, and skips."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.level1, self.level2 = _block(fan_in, 12, 12), _block(12, 16, 16, stride=2)
        self.level3 = _block(16, 24, 24, stride=2)
        self.up2, self.up1 = _block(24 + 16, 16, 16), _block(16 + 12, 12, 12)
        self.up, self.head = nn.Upsample(scale_factor=2), nn.Conv2d(12, fan_out, 3, padding=1)

    def forward(self, input: Tensor) -> Tensor:
        fine = self.level1(input)
        middle = self.level2(fine)
        middle = self.up2(torch.cat([self.up(self.level3(middle)), middle], dim=1))
        return self.head(self.up1(torch.cat([self.up(middle), fine], dim=1)))


class Residual(nn.Module):
    """An input, and what a block makes of it."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, input: Tensor) -> Tensor:
        return input + self.body(input)


def resnet(fan_in: int, fan_out: int) -> nn.Module:
    """Three blocks of two convolutions at full resolution."""
    blocks = [Residual(_block(12, 12, 12)) for _ in range(3)]
    return nn.Sequential(_block(fan_in, 12), *blocks, nn.Conv2d(12, fan_out, 3, padding=1))


def convnext(fan_in: int, fan_out: int) -> nn.Module:
    """Depthwise and pointwise convolutions at full and at half resolution, and a way back."""

    def block(width: int) -> nn.Module:
        depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        wide, narrow = nn.Conv2d(width, 2 * width, 1), nn.Conv2d(2 * width, width, 1)
        return Residual(nn.Sequential(depthwise, nn.GroupNorm(1, width), wide, nn.GELU(), narrow))

    down, up = nn.Conv2d(16, 24, 2, stride=2), nn.ConvTranspose2d(24, 16, 2, stride=2)
    inner = Residual(nn.Sequential(down, block(24), up))
    return nn.Sequential(nn.Conv2d(fan_in, 16, 3, padding=1), block(16), inner, block(16), nn.Conv2d(16, fan_out, 1))


CASES: dict[str, tuple[Callable[[int, int], nn.Module], str]] = {
    "U-Net, shallow water": (UNet, "shallow water"),
    "ResNet, two layers": (resnet, "two layers"),
    "ConvNeXt, advection": (convnext, "advection"),
}


def measure(case: str, seed: int, num_steps: int, known: Mapping[str, float]) -> dict[str, float]:
    """Test errors of the plain network, the converted one, and those with a half converted; known ones stay."""
    make_net, task = CASES[case]
    lesson = make_lesson(task, seed)
    example = lesson.train.inputs[:8]
    net = make_net(lesson.channels[0], lesson.channels[-1])
    changes = smoe.plan_conversion(net, example_input=example, kernel_size=None).changes
    found: dict[frozenset[str], float] = {}

    def error(names: frozenset[str]) -> float:
        if names not in found:
            torch.manual_seed(seed)
            student = make_net(lesson.channels[0], lesson.channels[-1])
            if names:
                chosen = {"kernel_size": None, "predicate": lambda name, _: name in names}
                student = smoe.convert(student, example_input=example, **chosen)
            train(student, lesson, seed, Course(rate=3e-3, num_steps=num_steps))
            found[names] = error_of(student, lesson, lesson.test)
        return found[names]

    everything = frozenset(change.name for change in changes)
    halves = {"plain": frozenset[str](), "all": everything, **halves_of(changes)}
    return {name: known[name] if name in known else error(names) for name, names in halves.items()}


def run(options: HalvesOptions) -> str:
    """Measures what is missing, seed after seed, and returns the table as Markdown."""
    torch.set_num_threads(1)
    stored = options.output.with_suffix(".jsonl")
    stored_rows = map(json.loads, stored.read_text().splitlines() if stored.exists() else [])
    errors: dict[str, list[dict[str, float]]] = {row["network, task"]: row["errors"] for row in stored_rows}
    cells = [(seed, case) for seed in range(options.num_seeds) for case in CASES]
    for seed, case in track(cells, description="halves", disable=not sys.stderr.isatty()):
        of_seeds = errors.setdefault(case, [])
        known = of_seeds.pop(seed) if seed < len(of_seeds) else {}
        of_seeds.insert(seed, measure(case, seed, options.num_steps, known))
        _write(options, errors)
    return _write(options, errors)


def _write(options: HalvesOptions, errors: dict[str, list[dict[str, float]]]) -> str:
    rows: list[dict[str, Any]] = []
    for case in CASES:
        of_seeds = [found for found in errors.get(case, []) if found.keys() >= set(RULES)]
        if not of_seeds:
            continue
        mean = {name: statistics.mean(found[name] for found in of_seeds) for name in ("plain", "all", *RULES)}
        gain = mean["plain"] - mean["all"]
        kept = {rule: f"{(mean['plain'] - mean[rule]) / gain:.0%}" for rule in RULES}
        row = {
            "network, task": case,
            "seeds": len(of_seeds),
            "plain": f"{mean['plain']:.2g}",
            "all": f"{mean['all']:.2g}",
            **kept,
        }
        rows.append({**row, "errors": of_seeds, **circumstances()})
    notes = (
        "Plain, all: test error over variance with no and with every convolution converted, means of the seeds. Others "
        "are the share of this gain that half of the layers keep; of equal ones the last. "
        f"{options.num_steps} steps of AdamW 3e-3, "
        f"16 x 16 pixels. {origin(rows[-1])}"
    )
    columns = [name for name in rows[0] if name not in ("errors", *circumstances())]
    return write_table(options.output, "Half of the layers", "smoe bench halves", columns, rows, notes)


def main(args: list[str] | None = None) -> None:
    """Reads the options, measures and prints the table."""
    sys.stdout.write(run(parse(HalvesOptions, args or [], prog="smoe bench halves")))
