"""The table of `smoe bench learn`: students by tasks, and how much of the gap to the oracle each closes."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from smoe._files import write_atomically
from smoe_paper.benchmarks.learn_students import STUDENTS
from smoe_paper.benchmarks.learn_tasks import TASKS
from smoe_paper.benchmarks.learn_upcycling import UPCYCLING

Errors = Mapping[tuple[str, str], Sequence[float]]
"""Errors of all seeds by task and student."""


def write_learn_table(path: Path, rows: Iterable[Mapping[str, Any]], *, num_steps: int) -> str:
    """Writes the table of the rows with this number of steps as Markdown, and returns it."""
    rows = [row for row in rows if row["num_steps"] == num_steps]
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        errors[row["task"], row["student"]].append(row["error"])
    parts = [
        "# What layers learn on planted structure",
        f"Made by `smoe bench learn`. {num_steps} steps, batches of 16, Adam 1e-2 (or SGD 0.1 with momentum 0.9); mean "
        "and standard deviation over the seeds; without one, of one seed. Regression: test error relative to "
        "the variance of the targets. Classification: share of wrong classes. The plain networks have as many channels "
        "as the teacher unless stated otherwise; SMoE layers have 3 experts for each output channel. *Time*: processor "
        "time of the training on two layers, relative to the convolution.",
        "## Errors",
        _matrix(errors, TASKS, lambda task, student: show(errors.get((task, student), ())), _times(rows)),
        "## Share of the gap between convolution and oracle that is closed",
        _matrix(errors, _gap_tasks(errors), lambda task, student: _closed(errors, task, student)),
        "## Conversion",
        "A converted network has the defaults of `convert` and is trained like its original. *Trained, then*: the "
        "network was trained first and then for as many further steps as stated, as it was or converted with "
        '`start="filters"`.',
        _conversions(errors),
    ]
    if rows:
        last = rows[-1]
        parts.append(
            f"{last['processor']}, one thread, torch {last['torch']}, commit {last['commit']}, {last['date']}."
        )
    text = "\n\n".join(part for part in parts if part) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))
    return text


def show(values: Sequence[float]) -> str:
    """Mean and standard deviation, in three significant digits."""
    if not values:
        return "-"
    mean = f"{statistics.mean(values):.3g}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.1g}"


def gap_closed(errors: Errors, task: str, student: str) -> list[float]:
    """Share of the gap between the mean errors of convolution and oracle that a student closes with each seed.

    None where the oracle has not learned the task either: its error is not a tenth below that of the convolution.
    """
    plain, oracle = (errors.get((task, name), ()) for name in ("convolution", "SMoE, oracle gate"))
    if not plain or not oracle:
        return []
    top, bottom = statistics.mean(plain), statistics.mean(oracle)
    if bottom > 0.9 * top:
        return []
    return [(top - value) / (top - bottom) for value in errors.get((task, student), ())]


def _closed(errors: Errors, task: str, student: str) -> str:
    shares = gap_closed(errors, task, student)
    return f"{100 * statistics.mean(shares):.0f} %" if shares else "-"


def _gap_tasks(errors: Errors) -> list[str]:
    return [name for name, task in TASKS.items() if task.planted.has_structure and (name, "convolution") in errors]


def _times(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    seconds: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row["task"] == "two layers":
            seconds[row["student"]].append(row["seconds"])
    if "convolution" not in seconds:
        return {}
    plain = statistics.median(seconds["convolution"])
    return {student: f"{statistics.median(values) / plain:.1f}" for student, values in seconds.items()}


def _matrix(errors: Errors, tasks: Iterable[str], cell: Any, times: Mapping[str, str] | None = None) -> str:
    tasks = [task for task in tasks if any(known == task for known, _ in errors)]
    students = [student for student in STUDENTS if any((task, student) in errors for task in tasks)]
    header = ["student", *(["time"] if times is not None else []), *tasks]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for student in students:
        time = [times.get(student, "-")] if times is not None else []
        lines.append("| " + " | ".join([student, *time, *(cell(task, student) for task in tasks)]) + " |")
    return "\n".join(lines)


def _conversions(errors: Errors) -> str:
    lines: list[str] = []
    for name in UPCYCLING:
        students = [student for task, student in errors if task == name]
        if students:
            lines += ["", f"| {name} | " + " | ".join(students) + " |", "|" + "---|" * (1 + len(students))]
            lines.append("| error | " + " | ".join(show(errors[name, student]) for student in students) + " |")
    return "\n".join(lines).strip()
