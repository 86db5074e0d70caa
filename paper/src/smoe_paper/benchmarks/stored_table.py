"""Writes a table with machine, commit, versions and date."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from smoe._files import write_atomically
from smoe.training.run_directory import git_commit, processor_name


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
