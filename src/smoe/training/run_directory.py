"""The directory of a run: its recipe, versions, metrics by epoch and checkpoints; enough to repeat or resume it.

All names are relative to the directory: a run can be moved, and opened from anywhere.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from smoe._files import FileLock, LockedError, remove_leftovers, write_atomically

# Options in malloc.h of glibc.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# The largest block that glibc would keep in its heap by itself. A larger one is returned when it is freed.
_LARGEST_KEPT = 32 << 20


def environment() -> dict[str, Any]:
    """Returns the environment of this process as plain values."""
    packages: dict[str, str | None] = {}
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
    """Returns the model name of the processor."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def git_commit() -> str | None:
    """Returns the commit of this package, marked `-dirty` if its source was changed; None outside a checkout."""
    package = Path(__file__).parents[1]
    commit = _git(package, "describe", "--always", "--abbrev=12", "--exclude=*")
    if commit is None or commit.returncode != 0 or not commit.stdout.strip():
        return None
    # The code only: results that are being written do not change what is run.
    changes = _git(package, "diff", "--quiet", "HEAD", "--", ":/src", ":/paper/src")
    is_clean = changes is not None and changes.returncode == 0
    return commit.stdout.strip() + ("" if is_clean else "-dirty")


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None


def keep_freed_memory() -> bool:
    """Keeps glibc from returning the end of its heap to the system.

    A small net frees nearly all its memory at the end of a step. glibc returns it, and the next step pays for each page
    again: up to a third of its time (paper/results/bench/freed_memory.md). With another C library, or if the
    environment sets options of malloc, nothing is done.

    Returns:
        Whether the option was set.
    """
    is_set = any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get(
        "GLIBC_TUNABLES", ""
    )
    mallopt = None if is_set or os.name != "posix" else getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT) and mallopt(_M_TRIM_THRESHOLD, -1))


Record = dict[str, Any]


class RunError(Exception):
    """A run directory cannot be used as asked."""


class RunDirectory:
    """The files of one run.

    Args:
        path: Directory of the run. It does not have to exist yet.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.recipe_file = self.path / "recipe.json"
        self.environment_file = self.path / "environment.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.last_checkpoint = self.checkpoints / "last.safetensors"
        self.best_checkpoint = self.checkpoints / "best.safetensors"
        self.pictures = self.path / "pictures"
        self._is_locked = False

    def check_writable(self) -> None:
        """Checks that a run can be stored here, and writes nothing.

        Raises:
            RunError: If the path is a file, or the directory cannot be created or written.
        """
        existing = self.path
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        if not existing.is_dir():
            raise RunError(f"the run directory {self.path} cannot be used: {existing} is a file; choose another one")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise RunError(
                f"the run directory {self.path} cannot be used: {existing} is not writable; choose another one with "
                "--output-dir"
            )

    def may_name(self, path: Path | str) -> bool:
        """Whether a path lies inside this directory or the working directory, once links are followed.

        The files of a run may come from others: other paths that they name are neither read nor written.
        """
        try:
            found = Path(path).resolve()
            return any(found.is_relative_to(root.resolve()) for root in (self.path, Path.cwd()))
        except (OSError, ValueError, RuntimeError):
            # No path at all, such as one with a zero byte, or a ring of links.
            return False

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps other processes from training in this directory.

        Of several processes that a launcher started, only the first one takes the lock. The object that holds the lock
        may take it again. What a killed process left half-written is removed. A directory that is still empty at the
        end is removed, if it was created here.

        Raises:
            RunError: If another process trains here, or the directory cannot be written.
        """
        if self._is_locked or os.environ.get("RANK", "0") != "0":
            yield
            return
        created = self._make()
        try:
            with ExitStack() as stack:
                with self._as_run_error():
                    stack.enter_context(FileLock(self.path / ".lock"))
                    remove_leftovers((self.recipe_file, self.environment_file, self.metrics_file))
                    remove_leftovers((self.last_checkpoint, self.best_checkpoint))
                self._is_locked = True
                yield
        finally:
            self._is_locked = False
            with suppress(OSError):
                for folder in created:
                    folder.rmdir()

    def check(self, recipe: Mapping[str, Any], *, resume: bool, may_differ: Collection[str] = ()) -> None:
        """Checks that a run of this recipe can begin or continue here.

        Args:
            recipe: Resolved recipe.
            resume: Continue the run that is here, if there is one.
            may_differ: Fields of `recipe["recipe"]` with dots, such as `training.max_epochs`, that a resumed run may
                change.

        Raises:
            RunError: If the directory holds a run and `resume` is off, or a run of another recipe.
        """
        if not self.recipe_file.exists():
            return
        if not resume:
            raise RunError(f"{self.path} holds a run already; add --resume to continue it, or choose another folder")
        found = _differences(self.read_recipe(), recipe)
        differences = [words for name, words in found.items() if name.removeprefix("recipe.") not in may_differ]
        if differences:
            raise RunError(f"{self.path} holds a run of another recipe: {'; '.join(differences)}")

    def begin(self, recipe: Mapping[str, Any]) -> None:
        """Stores the recipe and the environment of a run; of a run that is here already, only what it changes.

        Call `check` before.
        """
        with self._as_run_error():
            is_new = not self.recipe_file.exists()
            if is_new:
                content = _to_json(environment())
                write_atomically(self.environment_file, lambda file: file.write(content))
            if is_new or self.read_recipe() != recipe:
                write_atomically(self.recipe_file, lambda file: file.write(_to_json(recipe)))

    def read_recipe(self) -> dict[str, Any]:
        """Returns the resolved recipe of the run."""
        if not self.recipe_file.is_file():
            raise RunError(f"{self.path} is not a run directory: it has no recipe.json")
        recipe = _read_json(self.recipe_file, self.recipe_file.read_bytes(), "")
        if not isinstance(recipe, dict):
            raise RunError(f"{self.recipe_file} is damaged: it must hold a JSON object")
        return recipe

    def write_history(self, history: Sequence[Record]) -> None:
        """Writes metrics.jsonl anew, one JSON object per epoch."""
        lines = "".join(json.dumps(_without_nan(record)) + "\n" for record in history)
        with self._as_run_error():
            write_atomically(self.metrics_file, lambda file: file.write(lines.encode()), make_folder=False)

    def read_history(self) -> list[Record]:
        """Returns the records of metrics.jsonl; an empty list before the first epoch ends.

        Raises:
            RunError: If a line is not a JSON object.
        """
        if not self.metrics_file.exists():
            return []
        history: list[Record] = []
        for number, line in enumerate(self.metrics_file.read_bytes().splitlines(), 1):
            record = _read_json(self.metrics_file, line, f" in line {number}")
            if not isinstance(record, dict):
                raise RunError(f"{self.metrics_file} is damaged in line {number}: it must be a JSON object")
            history.append(record)
        return history

    def make_folders(self) -> None:
        """Creates the directory and the folder of the checkpoints."""
        with self._as_run_error():
            self.checkpoints.mkdir(parents=True, exist_ok=True)

    def _make(self) -> list[Path]:
        """Creates the directory; returns the folders that did not exist, the innermost first."""
        missing: list[Path] = []
        folder = self.path
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        with self._as_run_error():
            self.path.mkdir(parents=True, exist_ok=True)
        return missing

    @contextmanager
    def _as_run_error(self) -> Iterator[None]:
        """Turns errors of the file system into one line."""
        try:
            yield
        except LockedError as error:
            raise RunError(
                f"{error.holder} trains in {self.path}; wait until it ends, or choose another folder"
            ) from error
        except OSError as error:
            raise RunError(f"{error.filename or self.path} cannot be written: {error.strerror or error}") from error


def _to_json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


def _read_json(path: Path, content: bytes, place: str) -> Any:
    try:
        return json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged{place}: {error}") from error


def _without_nan(record: Record) -> Record:
    """JSON has no NaN and no infinity; they are written as null."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in record.items()
    }


def _differences(stored: Mapping[str, Any], asked: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """The fields that differ, by their names with dots, in words."""
    differences: dict[str, str] = {}
    for key in sorted({*stored, *asked}):
        ours, theirs, name = asked.get(key), stored.get(key), f"{prefix}{key}"
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping) and ours.get("type") != theirs.get("type"):
            # Objects of different classes have different fields: their classes are the difference.
            differences[name] = f"{name} is {theirs.get('type')!r} there and {ours.get('type')!r} now"
        elif isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            differences |= _differences(theirs, ours, f"{name}.")
        elif ours != theirs:
            differences[name] = f"{name} is {theirs!r} there and {ours!r} now"
    return differences
