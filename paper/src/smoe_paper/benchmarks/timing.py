"""Times by turns, and tables of them that are stored with machine, commit and date."""

from __future__ import annotations

import datetime
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from smoe._files import write_atomically
from smoe.training.run_directory import git_commit, processor_name


def interleaved_medians(
    ways: Mapping[str, Callable[[], object]],
    *,
    seconds: float = 2.0,
    min_rounds: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median seconds of each way.

    Args:
        ways: Functions to call, by name.
        seconds: Approximate total duration.
        min_rounds: Minimal number of measured rounds, after one round of warm-up.
        clock: Clock of the measurement; `time.process_time` counts processor time, whatever else the machine does.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    for call in ways.values():
        call()
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends or min(len(values) for values in times.values()) < min_rounds:
        for name, call in ways.items():
            started = clock()
            call()
            times[name].append(clock() - started)
    return {name: statistics.median(values) for name, values in times.items()}


def circumstances() -> dict[str, Any]:
    """Where and when something was measured."""
    return {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "commit": git_commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def origin(row: Mapping[str, Any]) -> str:
    """Machine, versions and date of a row, as one sentence."""
    return f"{row['processor']}, torch {row['torch']}, commit {row['commit']}, {row['date']}."


def write_table(
    path: Path, title: str, command: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]], notes: str = ""
) -> str:
    """Writes `path` as Markdown and the rows beside it as JSON lines; returns the Markdown."""
    lines = [f"# {title}", "", f"Made by `{command}`.", ""]
    lines += ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(str(row[column]) for column in columns) + " |" for row in rows]
    if notes:
        lines += ["", notes]
    text = "\n".join(lines) + "\n"
    records = "".join(json.dumps(row) + "\n" for row in rows)
    write_atomically(path, lambda file: file.write(text.encode()))
    write_atomically(path.with_suffix(".jsonl"), lambda file: file.write(records.encode()))
    return text
