"""What a run stores: its recipe, versions, metrics by epoch and checkpoints; enough to repeat or resume it.

All names are relative to the directory: a run can be moved, and opened from anywhere. A checkpoint is one safetensors
file: tensors by names such as `model/0.weight` and, in the metadata of its header, JSON that says where they and all
other values belong. Reading one runs no code.
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

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from smoe._files import FileLock, LockedError, reason_not_to_write, write_atomically
from smoe.errors import SmoeError

Record = dict[str, Any]
State = dict[str, Any]

_KEY = "smoe"
# Options in malloc.h of glibc, and the largest block that it would keep in its heap by itself.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _LARGEST_KEPT = -1, -3, 32 << 20


class RunError(SmoeError):
    """A run directory cannot be used as asked."""


class CheckpointError(SmoeError):
    """A checkpoint that is missing, damaged, of another run, or cannot be written."""


class RunDirectory:
    """The files of one run, in a directory that does not have to exist yet."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.recipe_file = self.path / "recipe.json"
        self.environment_file = self.path / "environment.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.last_checkpoint = self.checkpoints / "last.safetensors"
        self.best_checkpoint = self.checkpoints / "best.safetensors"
        self._is_locked = False

    def check_writable(self) -> None:
        reason = reason_not_to_write(self.path)
        if reason is not None:
            raise RunError(f"the run directory {self.path} cannot be used: {reason}; choose another one (--output-dir)")

    def allows_path(self, path: Path | str) -> bool:
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

        Of the processes that a launcher started, the first one takes the lock; the object that holds it may take it
        again. A directory that was created here and is empty is removed.
        """
        if self._is_locked or os.environ.get("RANK", "0") != "0":
            yield
            return
        created = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        try:
            with ExitStack() as stack:
                with self._as_run_error():
                    self.path.mkdir(parents=True, exist_ok=True)
                    stack.enter_context(FileLock(self.path / ".lock"))
                self._is_locked = True
                yield
        finally:
            self._is_locked = False
            with suppress(OSError):
                for folder in created:
                    folder.rmdir()

    def check(self, recipe: Mapping[str, Any], *, resume: bool, may_differ: Collection[str] = ()) -> None:
        """Checks that a run of this recipe can begin here, or continue with other values of some fields."""
        if not self.recipe_file.exists():
            return
        if not resume:
            raise RunError(f"{self.path} holds a run already; add --resume to continue it, or choose another folder")
        found = _differences(self.read_recipe(), recipe)
        differences = [words for name, words in found.items() if name.removeprefix("recipe.") not in may_differ]
        if differences:
            raise RunError(f"{self.path} holds a run of another recipe: {'; '.join(differences)}")

    def begin(self, recipe: Mapping[str, Any]) -> None:
        """Stores the recipe and the environment of a run, after `check`; of a resumed run, only what it changes."""
        with self._as_run_error():
            is_new = not self.recipe_file.exists()
            changed = {self.environment_file: environment()} if is_new else {}
            if is_new or self.read_recipe() != recipe:
                changed[self.recipe_file] = dict(recipe)
            for path, content in changed.items():
                text = json.dumps(content, indent=2) + "\n"
                write_atomically(path, lambda file, text=text: file.write(text.encode()))

    def read_recipe(self) -> dict[str, Any]:
        if not self.recipe_file.is_file():
            raise RunError(f"{self.path} is not a run directory: it has no recipe.json")
        return _read_json(self.recipe_file, self.recipe_file.read_bytes())

    def read_environment(self) -> dict[str, Any]:
        """Returns versions, machine and command of the run; empty if it has none."""
        file = self.environment_file
        return _read_json(file, file.read_bytes()) if file.is_file() else {}

    def write_history(self, history: Sequence[Record]) -> None:
        # JSON has no NaN and no infinity.
        lines = "".join(
            json.dumps({k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()})
            + "\n"
            for record in history
        )
        with self._as_run_error():
            write_atomically(self.metrics_file, lambda file: file.write(lines.encode()), make_folder=False)

    def read_history(self) -> list[Record]:
        """Returns the records of metrics.jsonl; an empty list before the first epoch ends."""
        if not self.metrics_file.exists():
            return []
        lines = self.metrics_file.read_bytes().splitlines()
        return [_read_json(self.metrics_file, line, f" in line {number}") for number, line in enumerate(lines, 1)]

    def read_film(self) -> dict[int, dict[str, Tensor]]:
        """Returns the choices of each gate by epoch, `(E, ...)`; large grids and long runs keep a part of them."""
        if not self.last_checkpoint.is_file():
            return {}
        return load_checkpoint(self.last_checkpoint, "routing").get("film", {})

    def make_folders(self) -> None:
        with self._as_run_error():
            self.checkpoints.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def _as_run_error(self) -> Iterator[None]:
        try:
            yield
        except LockedError as error:
            raise RunError(
                f"{error.holder} trains in {self.path}; wait until it ends, or choose another folder"
            ) from error
        except OSError as error:
            raise RunError(f"{error.filename or self.path} cannot be written: {error.strerror or error}") from error


def save_checkpoint(path: Path, state: State, *, make_folder: bool = True) -> None:
    """Writes tensors and plain values in dictionaries, lists and tuples; a failure leaves the file before it intact."""
    tensors: dict[str, Tensor] = {}
    content = json.dumps(_encode(state, (), tensors))
    own: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        values = tensor.detach().cpu().contiguous()
        memory = values.untyped_storage().data_ptr()
        # The format has no tensors that share memory.
        own[name] = values.clone() if memory in seen else values
        seen.add(memory)
    try:
        write_atomically(path, lambda file: file.write(save(own, {_KEY: content})), make_folder=make_folder)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            # Brings the name of the file to the disk.
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        kept = "the file before it is intact" if path.is_file() else "there is no such file"
        raise CheckpointError(f"checkpoint {path} could not be written: {error.strerror or error}; {kept}") from error


def load_checkpoint(path: Path, part: str = "") -> State:
    """Reads a checkpoint, or one of its dictionaries, and no tensor but those that belong to it."""
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint {path}")
    try:
        with safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if not part or name.startswith(f"{part}/")]  # noqa: SIM118
            content = json.loads(file.metadata()[_KEY])
            state = _decode(content[part] if part else content, {name: file.get_tensor(name) for name in names})
        if not isinstance(state, dict):
            raise TypeError(f"it must hold a dictionary, not a {type(state).__name__}")
        return state
    except Exception as error:  # a file from others can make a reader fail in any way
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise CheckpointError(f"checkpoint {path} is damaged, or of another program: {reason}") from error


def _encode(value: Any, place: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    """A value as JSON has it; tensors are put aside by their names."""
    if isinstance(value, Tensor):
        name = "/".join(place)
        if name in tensors:
            raise ValueError(f"two tensors of a checkpoint have the name {name!r}")
        tensors[name] = value
        return {"$tensor": name}
    if isinstance(value, dict):
        items = [(key, _encode(part, (*place, str(key)), tensors)) for key, part in value.items()]
        is_plain = all(isinstance(key, str) and not key.startswith("$") for key in value)
        return dict(items) if is_plain else {"$items": items}
    if isinstance(value, (list, tuple)):
        parts = [_encode(part, (*place, str(number)), tensors) for number, part in enumerate(value)]
        return parts if isinstance(value, list) else {"$tuple": parts}
    if value is not None and not isinstance(value, (bool, int, float, str)):
        raise TypeError(f"{'/'.join(place)} is a {type(value).__name__}; a checkpoint holds tensors and plain values")
    return value


def _decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(part, tensors) for part in value]
    if not isinstance(value, dict):
        return value
    if "$tensor" in value:
        return tensors[value["$tensor"]]
    if "$tuple" in value:
        return tuple(_decode(value["$tuple"], tensors))
    return {key: _decode(part, tensors) for key, part in value.get("$items", value.items())}


def environment() -> dict[str, Any]:
    packages: dict[str, str | None] = dict.fromkeys(("smoe", "torch", "numpy", "accelerate"))
    for name in packages:
        with suppress(metadata.PackageNotFoundError):
            packages[name] = metadata.version(name)
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
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def git_commit() -> str | None:
    package = Path(__file__).parents[1]

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *arguments], cwd=package, capture_output=True, text=True, timeout=10, check=False)

    try:
        commit = git("describe", "--always", "--abbrev=12", "--exclude=*")
        # The code only: results that are being written do not change what is run.
        changes = git("diff", "--quiet", "HEAD", "--", ":/src", ":/paper/src")
    except (OSError, subprocess.TimeoutExpired):
        return None
    if commit.returncode != 0 or not commit.stdout.strip():
        return None
    return commit.stdout.strip() + ("-dirty" if changes.returncode else "")


def keep_freed_memory() -> bool:
    """Keeps glibc from returning the end of its heap to the system; returns whether the option was set.

    A small net frees nearly all its memory at the end of a step. glibc returns it, and the next step pays for each page
    again: up to a third of its time (paper/results/bench/freed_memory.md). With another C library, or if the
    environment sets options of malloc, nothing is done.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    is_set = "glibc.malloc" in tunables or any(name.startswith("MALLOC_") for name in os.environ)
    mallopt = None if is_set or os.name != "posix" else getattr(ctypes.CDLL(None), "mallopt", None)
    return bool(mallopt and mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT) and mallopt(_M_TRIM_THRESHOLD, -1))


def _read_json(path: Path, content: bytes, place: str = "") -> dict[str, Any]:
    try:
        value = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged{place}: {error}") from error
    if not isinstance(value, dict):
        raise RunError(f"{path} is damaged{place}: it must be a JSON object")
    return value


def _differences(stored: Mapping[str, Any], asked: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """The fields that differ, by their names with dots, in words."""
    differences: dict[str, str] = {}
    for key in sorted({*stored, *asked}):
        ours, theirs, name = asked.get(key), stored.get(key), f"{prefix}{key}"
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            if ours.get("type") == theirs.get("type"):
                differences |= _differences(theirs, ours, f"{name}.")
                continue
            # Objects of different classes have different fields: their classes are the difference.
            ours, theirs = ours.get("type"), theirs.get("type")
        if ours != theirs:
            differences[name] = f"{name} is {theirs!r} there and {ours!r} now"
    return differences
