"""`smoe bench learn`: what layers learn where the answer is known, at equal budgets.

Every row of the file is one student on one task with one seed. Rows that are there already are not measured again.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from smoe.command_line import parse
from smoe_paper.benchmarks.learn_students import ALWAYS, STUDENTS, error_of, train
from smoe_paper.benchmarks.learn_table import write_learn_table
from smoe_paper.benchmarks.learn_tasks import TASKS, LearningTask, Lesson, make_lesson
from smoe_paper.benchmarks.learn_upcycling import UPCYCLING, measure_upcycling
from smoe_paper.benchmarks.timing import circumstances


@dataclass(frozen=True)
class LearnOptions:
    """Measures what layers learn on planted structure, prints a table and stores it.

    Attributes:
        names: Words that the names of tasks contain; all tasks if none is given.
        output: Markdown file of the table; a .jsonl beside it holds the rows.
        num_seeds: Number of seeds, each with data of its own.
        num_steps: Training steps of each student.
    """

    names: tuple[str, ...] = ()
    output: Path = Path("paper/results/bench/learn.md")
    num_seeds: int = 3
    num_steps: int = 1000


def run(options: LearnOptions, say: Callable[[str], None] = print) -> str:
    """Measures what is missing, one row after the other, and writes the table after each.

    Args:
        options: What to measure and where to store it.
        say: Called with a line for each row.

    Returns:
        The table as Markdown.
    """
    torch.set_num_threads(1)
    rows_file = options.output.with_suffix(".jsonl")
    rows = read_rows(rows_file)
    known = {(row["task"], row["student"], row["seed"], row["num_steps"]) for row in rows}
    rows_file.parent.mkdir(parents=True, exist_ok=True)
    for seed in range(options.num_seeds):
        for row in _measure_missing(seed, options, known):
            rows.append(row)
            with rows_file.open("a") as file:
                file.write(json.dumps(row) + "\n")
            say(f"{row['task']}, {row['student']}, seed {seed}: {row['error']:.4f} ({row['seconds']:.0f} s)")
            write_learn_table(options.output, rows, num_steps=options.num_steps)
    return write_learn_table(options.output, rows, num_steps=options.num_steps)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows measured so far; none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _measure_missing(
    seed: int, options: LearnOptions, known: set[tuple[str, str, int, int]]
) -> Iterator[dict[str, Any]]:
    for name, task in TASKS.items():
        students = [
            student
            for student in _students_of(task)
            if _is_wanted(name, options.names) and (name, student, seed, options.num_steps) not in known
        ]
        lesson = make_lesson(task, seed) if students else None
        for student in students:
            assert lesson is not None
            yield {"task": name, **measure(student, lesson, seed, options.num_steps)}
    for name in UPCYCLING:
        if (
            _is_wanted(name, options.names)
            and (name, "trained, then upcycled, 300", seed, options.num_steps) not in known
        ):
            for row in measure_upcycling(name, seed, options.num_steps):
                yield {**row, **circumstances()}


def _is_wanted(name: str, words: Iterable[str]) -> bool:
    words = tuple(words)
    return not words or any(word.lower() in name.lower() for word in words)


def _students_of(task: LearningTask) -> Iterable[str]:
    return STUDENTS if task.for_all else ALWAYS


def measure(student: str, lesson: Lesson, seed: int, num_steps: int) -> dict[str, Any]:
    """Trains a student and returns its row.

    Args:
        student: Name of the student.
        lesson: Samples of the task.
        seed: Seed of the student's start and of the batches.
        num_steps: Training steps.
    """
    torch.manual_seed(seed)
    net = STUDENTS[student](lesson)
    started = time.process_time()
    train(net, lesson, seed, num_steps)
    seconds = time.process_time() - started
    return {
        "student": student,
        "seed": seed,
        "num_steps": num_steps,
        "error": error_of(net, lesson),
        "seconds": seconds,
        "parameters": sum(parameter.numel() for parameter in net.parameters()),
        **circumstances(),
    }


def main(args: list[str] | None = None) -> None:
    """Reads the options, measures, and prints the table."""
    sys.stdout.write(run(parse(LearnOptions, args or [], prog="smoe bench learn")))


if __name__ == "__main__":
    run(LearnOptions())
