"""`smoe bench learn`: what layers learn where the answer is known, beside their strongest simple rivals.

Every row of the file is one student on one task in one course with one seed. Rows that are there already are not
measured again, so a run that was stopped goes on.
"""

from __future__ import annotations

import copy
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.progress import track
from torch import nn

import smoe
from smoe._files import write_atomically
from smoe.command_line import parse
from smoe_paper.benchmarks.learn_students import STUDENTS, Course, error_of, shuffled, train
from smoe_paper.benchmarks.learn_tasks import TASKS, Lesson, make_lesson
from smoe_paper.benchmarks.timing import circumstances, origin

RIVALS = ("convolution", "convolution, equal time", "convolution, local affine", "CoordConv", "LRLCN", "default")
PARTS = (
    *("learned channels", "LCN", "frozen random choice", "shuffled choice", "soft mixture"),
    *("default, three candidates", "default, no local affine", "true regions"),
)
ARGUMENTS = (
    *("convolution", "convolution, local affine", "frozen random choice", "shuffled choice", "default", "true regions"),
    *("learned channels", "learned channels, converted", "transformer", "transformer, converted"),
)
FEW = ("convolution", "convolution, local affine", "LRLCN", "default")
PLANTED = ("one layer", "two layers", "three layers", "filters only", "classification")
RATES = (1e-3, 3e-3, 1e-2)
SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
TRAINED = Course(rate=3e-3, num_steps=600)
"""How a network is trained before it is converted and trained further."""


class Block(NamedTuple):
    """A part of the table.

    Attributes:
        title: Its heading.
        tasks: Names of tasks.
        students: Names of students.
        courses: How they are trained.
        num_seeds: Seeds, each with data of its own.
        sizes: Numbers of training samples.
        continues: Whether students start as the plain network after `TRAINED`.
        text: What a reader of the table must know.
    """

    title: str
    tasks: Sequence[str]
    students: Sequence[str]
    courses: Sequence[Course]
    num_seeds: int
    sizes: Sequence[int] = (512,)
    continues: bool = False
    text: str = ""


BLOCKS = (
    Block(
        *("Rivals", tuple(TASKS), RIVALS, [Course(rate=rate) for rate in RATES], 8),
        text="Batches of 8. *Equal time*: as wide as takes the time of the default.",
    ),
    Block(
        *("Parts", ("two layers", "filters only", "advection", "automaton", "denoising"), (*FEW, *PARTS)),
        *([Course(rate=1e-3), Course(rate=1e-2)], 8),
        text="*Shuffled choice*: what a trained default chose, at other pixels; filters and affine maps are trained "
        "anew. *Frozen*, *shuffled*: with local affine, as the default.",
    ),
    Block(
        *(
            "Five arguments",
            ("two layers", "advection", "automaton"),
            ARGUMENTS,
            [Course(rate=1e-3), Course(rate=1e-2)],
        ),
        10,
        text="*Converted*: by `smoe.convert` with default arguments.",
    ),
    Block(
        *("Planted, longer", ("one layer", "two layers", "three layers", "classification")),
        (*FEW, "LCN", "default, three candidates", "true regions"),
        *([Course(rate=1e-2, num_steps=1000, cosine=True), Course("sgd", 0.1, num_steps=1000)], 8),
    ),
    Block(
        *("Other loops", ("two layers", "advection", "denoising"), FEW),
        [
            Course("sgd", 0.05),
            Course("sgd", 0.05, clip=1.0),
            Course(rate=1e-3, batch=1),
            Course(rate=1e-3, batch=32),
            Course(rate=1e-2, cosine=True),
        ],
        8,
    ),
    Block(
        *("Fine-tuning", ("two layers", "advection", "denoising"), ("convolution", "default")),
        *([Course(rate=1e-4), Course(rate=1e-3)], 8),
        continues=True,
        text="The plain network is trained for 600 steps of AdamW 3e-3, then further as it is or converted.",
    ),
    Block("Samples", ("advection", "two layers"), FEW, [Course(rate=3e-3)], 8, SIZES),
)


@dataclass(frozen=True)
class LearnOptions:
    """Measures what layers learn where the answer is known, prints a table and stores it.

    Attributes:
        names: Words that the titles of parts of the table contain; all parts if none is given.
        students: Names of students; all if none is given.
        output: Markdown file of the table; a .jsonl beside it holds the rows.
        num_seeds: Seeds at most.
        num_steps: Training steps at most.
    """

    names: tuple[str, ...] = ()
    students: tuple[str, ...] = ()
    output: Path = Path("paper/results/bench/learn.md")
    num_seeds: int = 10
    num_steps: int = 1000


def run(options: LearnOptions) -> str:
    """Measures what is missing, seed after seed, and returns the table as Markdown."""
    torch.set_num_threads(1)
    rows_file = options.output.with_suffix(".jsonl")
    rows_file.parent.mkdir(parents=True, exist_ok=True)
    rows = read_rows(rows_file)
    known = {_key(row) for row in rows}
    lots = [lot for lot in _lots(options) if any(_key(cell) not in known for cell in lot.cells)]
    for lot in track(lots, description="learning", disable=not sys.stderr.isatty()):
        for row in lot.measure(known):
            rows.append(row)
            with rows_file.open("a") as file:
                file.write(json.dumps(row) + "\n")
        write_learn_table(options.output, rows)
    return write_learn_table(options.output, rows)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows measured so far; none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("block", "task", "student", "course", "size", "seed"))


class _Lot(NamedTuple):
    """Students of a block on one task in one course with one seed."""

    block: Block
    task: str
    course: Course
    size: int
    seed: int
    students: Sequence[str]

    @property
    def cells(self) -> list[dict[str, Any]]:
        """What identifies the rows."""
        block, task, course, size, seed, _ = self
        cell = {"block": block.title, "task": task, "course": course.name, "size": size, "seed": seed}
        has_regions = task in PLANTED
        students = [each for each in block.students if not self.students or each in self.students]
        return [{**cell, "student": student} for student in students if has_regions or student != "true regions"]

    def measure(self, known: set[tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
        """The rows that are not known."""
        lesson = make_lesson(self.task, self.seed, self.size)
        for cell in self.cells:
            if _key(cell) not in known:
                yield {**cell, **measure(cell["student"], lesson, self.seed, self.course, self.block.continues)}


def _lots(options: LearnOptions) -> Iterator[_Lot]:
    """Seed after seed, so that a run that was stopped has every part of the table."""
    for seed in range(options.num_seeds):
        for block in BLOCKS:
            if seed < block.num_seeds and _is_wanted(block.title, options.names):
                for task in block.tasks:
                    for size in block.sizes:
                        for course in block.courses:
                            steps = min(course.num_steps, options.num_steps)
                            course_here = course._replace(num_steps=steps)
                            yield _Lot(block, task, course_here, size, seed, options.students)


def _is_wanted(title: str, words: Iterable[str]) -> bool:
    words = tuple(words)
    return not words or any(word.lower() in title.lower() for word in words)


def measure(student: str, lesson: Lesson, seed: int, course: Course, continues: bool = False) -> dict[str, Any]:
    """Trains a student and returns errors and processor time.

    Args:
        student: Key of `STUDENTS`.
        lesson: Samples of the task.
        seed: Seed of the student's start and of the batches.
        course: How it is trained.
        continues: Whether the plain network is trained first, and the student made of it.
    """
    torch.manual_seed(seed)
    if continues:
        net: nn.Module = STUDENTS["convolution"](lesson)
        train(net, lesson, seed, TRAINED._replace(num_steps=min(TRAINED.num_steps, 2 * course.num_steps)))
        net.eval()
        net = smoe.convert(net, example_input=lesson.train.inputs[:2]) if student == "default" else copy.deepcopy(net)
    elif student == "shuffled choice":
        taught = STUDENTS["default"](lesson)
        train(taught, lesson, seed, course)
        net = shuffled(lesson, taught)
    else:
        net = STUDENTS[student](lesson)
    started = time.process_time()
    train(net, lesson, seed + 1000 * continues, course)
    seconds = time.process_time() - started
    return {
        "error": error_of(net, lesson, lesson.test),
        "validation": error_of(net, lesson, lesson.validation),
        "seconds": round(seconds, 3),
        "parameters": sum(parameter.numel() for parameter in net.parameters()),
        **circumstances(),
    }


Errors = Mapping[tuple[Any, ...], Sequence[Mapping[str, Any]]]
"""Rows of all seeds by block, task, student, course and number of samples."""


def write_learn_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    """Writes the table of the rows as Markdown, and returns it."""
    found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        found[_key(row)[:-1]].append(row)
    parts = [
        "# What layers learn where the answer is known",
        "Made by `smoe bench learn`. Test errors: mean squared error over the variance of the targets, or share of "
        "wrong classes (classification); median over the seeds (lower and upper quartile; without, of one seed; nan: "
        "diverged). Grids of 16 x 16, 512 training samples. "
        "*Time*: processor time of a training, relative to that of the convolution.",
    ]
    for block in BLOCKS:
        parts += _block_part(block, {key[1:]: each for key, each in found.items() if key[0] == block.title})
    if rows:
        parts.append(f"One thread. {origin(rows[-1])}")
    text = "\n\n".join(parts) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))
    return text


def _block_part(block: Block, found: Errors) -> list[str]:
    if not found:
        return []
    courses = list(dict.fromkeys(course for _, _, course, _ in found))
    columns = list(dict.fromkeys((task, size) for task, _, _, size in found))
    head = [task if len(block.sizes) == 1 else f"{task}, {size}" for task, size in columns]
    num_seeds = sorted({len(rows) for rows in found.values()})
    seeds = " to ".join(str(each) for each in dict.fromkeys((num_seeds[0], num_seeds[-1])))
    parts = [f"## {block.title}", f"{seeds} seeds. {block.text}".rstrip()]

    def matrix(name: str, cell: Callable[[str, str, int], str], *, time: str | None = None) -> None:
        lines = [[name, *(["time"] if time else []), *head]]
        lines.append(["---"] * len(lines[0]))
        for student in block.students:
            times = [_time(found, student, time)] if time else []
            lines.append([student, *times, *(cell(task, student, size) for task, size in columns)])
        parts.append("\n".join("| " + " | ".join(line) + " |" for line in lines))

    for course in courses:
        matrix(course, lambda task, student, size, c=course: show(_errors(found, task, student, c, size)), time=course)
        if "true regions" in block.students:
            matrix(
                f"share of the gap, {course}",
                lambda task, student, size, c=course: _closed(found, task, student, c, size),
            )
    if len(courses) == len(RATES):
        matrix("best rate on validation", lambda task, student, size: show(best_errors(found, task, student, size)))
    return parts


def _errors(found: Errors, task: str, student: str, course: str, size: int, which: str = "error") -> list[float]:
    return [row[which] for row in found.get((task, student, course, size), ())]


def best_errors(found: Errors, task: str, student: str, size: int) -> list[float]:
    """Test errors of a student in the course whose median on validation samples is lowest."""
    courses = [course for t, s, course, n in found if (t, s, n) == (task, student, size)]
    if not courses:
        return []
    best = min(courses, key=lambda c: statistics.median(_errors(found, task, student, c, size, "validation")))
    return _errors(found, task, student, best, size)


def show(values: Sequence[float]) -> str:
    """Median and quartiles, in two or three significant digits; the value alone if it is one."""
    if len(values) < 2:
        return f"{values[0]:.3g}" if values else "-"
    low, middle, high = torch.tensor(values).double().quantile(torch.tensor([0.25, 0.5, 0.75]).double()).tolist()
    return f"{middle:.3g} ({low:.2g} {high:.2g})"


def gap_closed(plain: Sequence[float], truth: Sequence[float], values: Sequence[float]) -> float | None:
    """Share of the gap between the medians of convolution and true regions that a student closes.

    None where the true regions do not help: their error is not a tenth below that of the convolution.
    """
    if not (plain and truth and values):
        return None
    top, bottom = statistics.median(plain), statistics.median(truth)
    return (top - statistics.median(values)) / (top - bottom) if bottom < 0.9 * top else None


def _closed(found: Errors, task: str, student: str, course: str, size: int) -> str:
    of = [_errors(found, task, name, course, size) for name in ("convolution", "true regions", student)]
    share = gap_closed(*of)
    return "-" if share is None else f"{100 * share:.0f} %"


def _time(found: Errors, student: str, course: str) -> str:
    """Processor time over the convolution's; of trainings side by side, where a student was trained again later."""
    rows, plain = (
        {(task, size, row["seed"]): row for (task, s, c, size), each in found.items() if (s, c) == key for row in each}
        for key in ((student, course), ("convolution", course))
    )
    pairs = [(row, plain[key]) for key, row in rows.items() if key in plain]
    pairs = [pair for pair in pairs if pair[0]["commit"] == pair[1]["commit"]] or pairs
    return f"{sum(row['seconds'] for row, _ in pairs) / sum(row['seconds'] for _, row in pairs):.1f}" if pairs else "-"


def draw(path: Path, target: Path) -> None:
    """Draws the errors of stored rows over samples, parameters and time, if there are rows of several sizes."""
    from smoe_paper.benchmarks.pictures import draw_samples

    rows, course = read_rows(path), "AdamW 0.001, 300 steps"
    found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["block"] == "Rivals" and row["course"] == course:
            found[_key(row)[1:-1]].append(row)
    draw_samples(rows, {student: float(_time(found, student, course)) for _, student, *_ in found}, target)


def main(args: list[str] | None = None) -> None:
    """Reads the options, measures, and prints the table; with samples of several sizes, draws the figure."""
    options = parse(LearnOptions, args or [], prog="smoe bench learn")
    sys.stdout.write(run(options))
    draw(options.output.with_suffix(".jsonl"), options.output.with_name("learn-samples.png"))
