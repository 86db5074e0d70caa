"""What a run leaves behind: its recipe, versions, metrics by epoch and checkpoints; enough to repeat or resume it."""

from __future__ import annotations

import json
import math
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from smoe.atomic_files import write_atomically

Record = dict[str, Any]


class RunError(Exception):
    """A run directory that cannot be used as asked."""


class RunDirectory:
    """The files of one run.

    Args:
        path: the directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe_file = path / "recipe.json"
        self.environment_file = path / "environment.json"
        self.metrics_file = path / "metrics.jsonl"
        self.last_checkpoint = path / "checkpoints" / "last.pt"
        self.best_checkpoint = path / "checkpoints" / "best.pt"
        self.pictures = path / "pictures"

    def check(
        self, recipe: Mapping[str, Any], *, resume: bool, complete: Callable[[Record], Record] = lambda stored: stored
    ) -> None:
        """Looks whether a run of this recipe can begin or go on here.

        Args:
            recipe: resolved.
            resume: go on with the run that is here, if there is one.
            complete: makes of what an older version stored what this one would have.

        Raises:
            RunError: if it holds a run and `resume` is off, or if that run has another recipe.
        """
        if self.recipe_file.exists():
            if not resume:
                raise RunError(
                    f"{self.path} holds a run already; add --resume to continue it, or choose another folder"
                )
            stored = self.read_recipe()
            try:
                differences = _differences(complete(stored), recipe)
            except (KeyError, TypeError) as error:
                raise RunError(f"{self.recipe_file} is not the recipe of a run: {error}") from error
            if differences:
                raise RunError(f"{self.path} holds a run of another recipe: {'; '.join(differences)}")

    def begin(self, recipe: Mapping[str, Any]) -> None:
        """Claims the directory for a run of this recipe, unless it is one already."""
        if self.recipe_file.exists():
            return
        self._write_json(self.environment_file, _environment())
        self._write_json(self.recipe_file, recipe)

    def read_recipe(self) -> dict[str, Any]:
        """The resolved recipe of the run."""
        if not self.recipe_file.is_file():
            raise RunError(f"{self.path} is not a run directory: it has no recipe.json")
        try:
            return json.loads(self.recipe_file.read_text())
        except json.JSONDecodeError as error:
            raise RunError(f"{self.recipe_file} is damaged: {error}") from error

    def write_history(self, history: Sequence[Record]) -> None:
        """Writes metrics.jsonl anew, one JSON object per epoch."""
        lines = "".join(json.dumps(_without_nan(record)) + "\n" for record in history)
        write_atomically(self.metrics_file, lambda file: file.write(lines.encode()))

    def read_history(self) -> list[Record]:
        """The records of metrics.jsonl; empty before the first epoch ends."""
        if not self.metrics_file.exists():
            return []
        return [json.loads(line) for line in self.metrics_file.read_text().splitlines()]

    @staticmethod
    def _write_json(path: Path, content: Mapping[str, Any]) -> None:
        write_atomically(path, lambda file: file.write((json.dumps(content, indent=2) + "\n").encode()))


def _without_nan(record: Record) -> Record:
    """JSON has no NaN and no infinity; they are written as null."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in record.items()
    }


def _differences(stored: Mapping[str, Any], asked: Mapping[str, Any], prefix: str = "") -> list[str]:
    differences: list[str] = []
    for key in sorted({*stored, *asked}):
        ours, theirs = asked.get(key), stored.get(key)
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            differences += _differences(theirs, ours, f"{prefix}{key}.")
        elif ours != theirs:
            differences.append(f"{prefix}{key} is {theirs!r} there and {ours!r} now")
    return differences


def _environment() -> dict[str, Any]:
    packages = {}
    for name in ("smoe", "torch", "numpy", "accelerate"):
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            packages[name] = None
    return {
        "packages": packages,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processor": processor_name(),
        "system": platform.system(),
        "commit": git_commit(),
        "command": sys.argv[1:],
    }


def processor_name() -> str:
    """What the processor calls itself."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def git_commit() -> str | None:
    """The commit this package runs from, marked `-dirty` if its source was changed; None outside a checkout."""
    package = Path(__file__).parents[1]
    commit = _git(package, "describe", "--always", "--abbrev=12", "--exclude=*")
    if commit is None or commit.returncode != 0 or not commit.stdout.strip():
        return None
    # Of the package only: results that are being written do not change what is run.
    changes = _git(package, "diff", "--quiet", "HEAD", "--", ".")
    is_clean = changes is not None and changes.returncode == 0
    return commit.stdout.strip() + ("" if is_clean else "-dirty")


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
