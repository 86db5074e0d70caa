"""Checkpoints: tensors and plain values as safetensors, written whole or not at all; reading one runs no code.

A file holds the tensors by names such as `model/0.weight` and, in the metadata of its header, JSON that says where they
and all other values belong. Processes that each hold rows of a tensor (FSDP2) write these to parts beside it, such as
`last.safetensors.0f3a91c2.0of4`. The parts have new names each time and are written first: a kill at any moment leaves
the old checkpoint or the new one.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from smoe._files import write_atomically
from smoe.nn._shared_parameters import local_part

State = dict[str, Any]

_KEY = "smoe"
_PART = re.compile(r"\.([0-9a-f]{8})\.(\d+)of(\d+)")
# A training that goes on removes the parts of the checkpoint before: whoever reads it starts again.
_NUM_ATTEMPTS = 5


class CheckpointError(Exception):
    """A checkpoint that is missing, damaged, of another run, or cannot be written."""


def save_checkpoint(path: Path, state: State, parts: Sequence[Path] = (), *, make_folder: bool = True) -> None:
    """Writes a state whole or not at all, and removes the parts of the checkpoint before it.

    Args:
        path: File to write.
        state: Tensors and plain values, in dictionaries, lists and tuples.
        parts: Parts with the rows of tensors of which a process holds some only, which are on the disk already.
        make_folder: Create the folder of the file if it does not exist.

    Raises:
        CheckpointError: If the file cannot be written, for example because the disk is full, or a part is not here. The
            checkpoint that was there before is intact.
    """
    for number, part in enumerate(parts):
        if not part.is_file():
            raise CheckpointError(
                f"process {number} has written {part}, which process 0 does not see: with --training.sharding full, "
                "the run directory must be on a file system that all hosts share"
            )
    tensors: dict[str, Tensor] = {}
    plain = _encode(state, (), tensors)
    content = json.dumps({"state": plain, "parts": [part.name for part in parts]})
    whole = {name: tensor for name, tensor in tensors.items() if local_part(tensor) is tensor}
    _write(path, whole, {_KEY: content}, make_folder=make_folder)
    remove_parts(path, parts)


def part_names(path: Path, num_parts: int) -> list[Path]:
    """New names for the parts of a checkpoint."""
    token = secrets.token_hex(4)
    return [path.with_name(f"{path.name}.{token}.{number}of{num_parts}") for number in range(num_parts)]


def save_part(part: Path, state: State) -> None:
    """Writes the rows that this process holds of the tensors of a state.

    Raises:
        CheckpointError: If the file cannot be written.
    """
    tensors: dict[str, Tensor] = {}
    _encode(state, (), tensors)
    rows = {name: local_part(tensor) for name, tensor in tensors.items() if local_part(tensor) is not tensor}
    _write(part, rows, {}, make_folder=False)


def remove_parts(path: Path, keep: Sequence[Path] = ()) -> None:
    """Removes the parts of earlier checkpoints, and those that a killed process left."""
    for file in path.parent.glob(f"{path.name}.*"):
        if file not in keep and _PART.fullmatch(file.name.removeprefix(path.name)):
            file.unlink(missing_ok=True)


def load_checkpoint(path: Path) -> State:
    """Reads a checkpoint, in one file or in parts, onto the CPU.

    Raises:
        CheckpointError: If a file is missing, damaged or of another program.
    """
    for attempt in range(_NUM_ATTEMPTS):
        stored = open_checkpoint(path)
        try:
            return stored.state()
        except CheckpointError:
            if attempt + 1 == _NUM_ATTEMPTS or open_checkpoint(path).parts == stored.parts:
                raise
    raise AssertionError


@dataclass(frozen=True)
class StoredState:
    """The file of a checkpoint, of which the parts are not read yet.

    Attributes:
        path: File of the checkpoint.
        plain: What JSON says.
        tensors: Tensors of the file.
        parts: Its parts.
    """

    path: Path
    plain: Any
    tensors: dict[str, Tensor]
    parts: tuple[Path, ...]

    def state(self, make: Callable[[Rows], Tensor] | None = None) -> State:
        """The state.

        Args:
            make: Reads a tensor that lies in the parts; None reads all of it.

        Raises:
            CheckpointError: If a part is missing, or something is damaged.
        """
        parts = [_open(part) for part in self.parts]

        def read(name: str) -> Tensor:
            rows = Rows([part.get_slice(name) for part in parts])
            return rows.read(0, rows.shape[0]) if make is None else make(rows)

        try:
            state = _decode(self.plain, self.tensors.__getitem__, read)
        except Exception as error:  # a file from others can make a reader fail in any way
            raise _damaged(self.path, error) from error
        if not isinstance(state, dict):
            raise CheckpointError(f"checkpoint {self.path} must hold a dictionary, not a {type(state).__name__}")
        return state


class Rows:
    """A tensor that lies in parts, one after the other."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts
        self._counts = [part.get_shape()[0] for part in parts]
        self.shape = (sum(self._counts), *parts[0].get_shape()[1:])

    def read(self, first: int, after: int) -> Tensor:
        """The rows from `first` to before `after`."""
        pieces: list[Tensor] = []
        start = 0
        for part, count in zip(self._parts, self._counts, strict=True):
            low, high = max(first - start, 0), min(after - start, count)
            if low < high:
                pieces.append(part[low:high])
            start += count
        return torch.cat(pieces or [self._parts[0][:0]])


def open_checkpoint(path: Path) -> StoredState:
    """Reads the file of a checkpoint, and finds its parts.

    Raises:
        CheckpointError: If the file is missing, damaged or of another program.
    """
    file = _open(path)
    try:
        content = json.loads(file.metadata()[_KEY])
        parts = [str(name) for name in content["parts"]]
        if not all(name.startswith(path.name) and _PART.fullmatch(name.removeprefix(path.name)) for name in parts):
            raise ValueError(f"it names the parts {parts}")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return StoredState(path, content["state"], tensors, tuple(path.with_name(name) for name in parts))
    except Exception as error:  # a file from others can make a reader fail in any way
        raise _damaged(path, error) from error


def _encode(value: Any, place: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    """A value as JSON has it; tensors are put aside by their names."""
    if isinstance(value, Tensor):
        name = "/".join(place)
        if name in tensors:
            raise ValueError(f"two tensors of a checkpoint have the name {name!r}")
        tensors[name] = value
        return {"$tensor" if local_part(value) is value else "$rows": name}
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


def _decode(value: Any, tensor: Callable[[str], Tensor], rows: Callable[[str], Tensor]) -> Any:
    def decode(part: Any) -> Any:
        return _decode(part, tensor, rows)

    if isinstance(value, list):
        return [decode(part) for part in value]
    if not isinstance(value, dict):
        return value
    kind, content = next(iter(value.items()), ("", ""))
    if kind == "$tensor":
        return tensor(content)
    if kind == "$rows":
        return rows(content)
    if kind == "$tuple":
        return tuple(decode(part) for part in content)
    if kind == "$items":
        return {key: decode(part) for key, part in content}
    return {key: decode(part) for key, part in value.items()}


def _write(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str], *, make_folder: bool) -> None:
    own: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        values = tensor.detach().cpu().contiguous()
        memory = values.untyped_storage().data_ptr()
        # The format has no tensors that share memory.
        own[name] = values.clone() if memory in seen else values
        seen.add(memory)
    try:
        write_atomically(path, lambda file: file.write(save(own, metadata)), make_folder=make_folder)
        _synchronise(path.parent)
    except OSError as error:
        kept = "the file before it is intact" if path.is_file() else "there is no such file"
        raise CheckpointError(f"checkpoint {path} could not be written: {error.strerror or error}; {kept}") from error


def _open(path: Path) -> Any:
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint {path}")
    try:
        return safe_open(path, framework="pt")
    except Exception as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> CheckpointError:
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    return CheckpointError(f"checkpoint {path} is damaged, or of another program: {reason}")


def _synchronise(folder: Path) -> None:
    """Brings the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
