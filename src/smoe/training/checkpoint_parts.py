"""Checkpoints in parts: each process of a sharded training writes its own rows, and one file names all parts.

`last.pt` holds what is not sharded, and names the parts, which are files of the same kind beside it, such as
`last.pt.0f3a91c2.0of4`. The parts have new names each time and are written first; `last.pt` replaces the one before it
when all parts are on the disk. A kill at any moment leaves the old checkpoint or the new one, never a mixture.

These are not the files of `torch.distributed.checkpoint`: its reader unpickles `.metadata` and every value that is no
tensor (torch 2.13: `FileSystemReader.read_metadata`, `DefaultLoadPlanner.load_bytes`), which runs code that a stranger
put there, and it has no checksums. `smoe.training.dcp` converts between the two.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from smoe.training.checkpoints import CheckpointError, load_checkpoint, save_checkpoint

State = dict[Any, Any]
Place = tuple[str | int, ...]
Value = TypeVar("Value")
Rows = Callable[[int], tuple[int, int]]

_TOKEN = re.compile(r"[0-9a-f]{8}")
_PART = re.compile(r"\.([0-9a-f]{8})\.\d+of\d+")
# A training that goes on removes the parts of the checkpoint before: whoever reads it starts again.
_NUM_ATTEMPTS = 5


@dataclass(frozen=True)
class ShardedTensor:
    """A tensor that is divided among the parts along its first dimension.

    Attributes:
        place: Keys under which it stands in the state.
        shape: Its whole shape.
        rows: Number of rows in each part.
    """

    place: Place
    shape: tuple[int, ...]
    rows: tuple[int, ...]

    def first_row(self, part: int) -> int:
        """The first row that a part holds."""
        return sum(self.rows[:part])


@dataclass(frozen=True)
class Parts:
    """The parts of a checkpoint.

    Attributes:
        path: File of the checkpoint, which names them.
        token: Part of their names.
        digests: Their checksums.
        tensors: What is divided among them.
    """

    path: Path
    token: str
    digests: tuple[str, ...]
    tensors: tuple[ShardedTensor, ...]

    def file(self, number: int) -> Path:
        """File of a part."""
        return part_file(self.path, self.token, number, len(self.digests))


def part_file(path: Path, token: str, number: int, num_parts: int) -> Path:
    """File of a part of a checkpoint."""
    return path.with_name(f"{path.name}.{token}.{number}of{num_parts}")


def write_part(path: Path, token: str, number: int, num_parts: int, tensors: Sequence[Tensor]) -> str:
    """Writes the rows that a process holds, and returns the checksum of the file."""
    file = part_file(path, token, number, num_parts)
    return save_checkpoint(file, {"tensors": [_without_rest(tensor) for tensor in tensors]}, make_folder=False)


def write_names(parts: Parts, state: State) -> None:
    """Writes the file that names the parts: from now on they are the checkpoint.

    Args:
        parts: Parts, which every process has written.
        state: What is not divided.

    Raises:
        CheckpointError: If a part is not here, or the file cannot be written. The checkpoint before it is intact.
    """
    for number in range(len(parts.digests)):
        if not parts.file(number).is_file():
            raise CheckpointError(
                f"process {number} has written {parts.file(number)}, which process 0 does not see: with "
                "--training.sharding full, the run directory must be on a file system that all hosts share"
            )
    _synchronise(parts.path.parent)
    table = [(tensor.place, tensor.shape, tensor.rows) for tensor in parts.tensors]
    names = {"token": parts.token, "digests": list(parts.digests), "tensors": table}
    save_checkpoint(parts.path, {"parts": names, "state": state}, make_folder=False)


def remove_parts(path: Path, keep: str | None = None) -> None:
    """Removes the parts of earlier checkpoints, and those that a killed process left.

    Args:
        path: File of the checkpoint.
        keep: Token of the parts that stay; None keeps none.
    """
    for file in path.parent.glob(f"{path.name}.*"):
        match = _PART.fullmatch(file.name.removeprefix(path.name))
        if match and match[1] != keep:
            file.unlink(missing_ok=True)


def open_checkpoint(path: Path) -> tuple[State, Parts | None]:
    """Reads the file of a checkpoint: the whole state, or what is not divided, and the parts.

    Raises:
        CheckpointError: If the file is missing, damaged or refused.
    """
    stored = load_checkpoint(path)
    if "parts" not in stored:
        return stored, None
    try:
        return dict(stored["state"]), _parse(path, stored["parts"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"checkpoint {path} is refused: the table of its parts is wrong ({error})") from error


def load_whole(path: Path) -> State:
    """Reads a checkpoint, in one file or in parts, onto the CPU.

    Raises:
        CheckpointError: If a file is missing, damaged or refused.
    """
    for attempt in range(_NUM_ATTEMPTS):
        state, parts = open_checkpoint(path)
        if parts is None:
            return state
        try:
            tensors = read_rows(parts, lambda num_rows: (0, num_rows))
            return insert(state, zip((tensor.place for tensor in parts.tensors), tensors, strict=True))
        except CheckpointError:
            if attempt + 1 == _NUM_ATTEMPTS or not _was_replaced(parts):
                raise
    raise AssertionError


def read_rows(parts: Parts, rows: Rows) -> list[Tensor]:
    """Reads some rows of each tensor, from one part after the other, so that no more than one is in memory at a time.

    Args:
        parts: Parts of a checkpoint.
        rows: Returns the first row of a tensor and the one after the last, by the number of its rows.

    Raises:
        CheckpointError: If a part is missing, damaged or refused.
    """
    wanted = [rows(tensor.shape[0]) for tensor in parts.tensors]
    pieces: list[list[Tensor]] = [[] for _ in wanted]
    for number in range(len(parts.digests)):
        shares = [_overlap(tensor, number, *span) for tensor, span in zip(parts.tensors, wanted, strict=True)]
        # An empty share tells the dtype of a tensor of which this process has no row.
        if any(shares) or number == 0:
            for kept, share, values in zip(pieces, shares, _read_part(parts, number), strict=True):
                kept.append(values[share or slice(0)].clone())
    return [torch.cat(pieces.pop(0)) for _ in wanted]


def take_out(state: State, kind: type[Value]) -> tuple[State, dict[Place, Value]]:
    """What is left of a state without values of a kind, and these values by their places."""
    left: State = {}
    taken: dict[Place, Value] = {}
    for name, value in state.items():
        if isinstance(value, kind):
            taken[name,] = value
        elif isinstance(value, dict):
            left[name], inner = take_out(value, kind)
            taken |= {(name, *place): each for place, each in inner.items()}
        else:
            left[name] = value
    return left, taken


def insert(state: State, values: Iterable[tuple[Place, Any]]) -> State:
    """Puts values in their places, and returns the state."""
    for (*folders, name), value in values:
        inner: Any = state
        for folder in folders:
            inner = inner.setdefault(folder, {})
        inner[name] = value
    return state


def _overlap(tensor: ShardedTensor, part: int, first: int, after: int) -> slice | None:
    """The rows of a part that are wanted, counted from its own first one; None if there is none."""
    start = tensor.first_row(part)
    low, high = max(first - start, 0), min(after - start, tensor.rows[part])
    return slice(low, high) if low < high else None


def _read_part(parts: Parts, number: int) -> list[Tensor]:
    file = parts.file(number)
    tensors = load_checkpoint(file, parts.digests[number]).get("tensors")
    if not isinstance(tensors, list) or len(tensors) != len(parts.tensors):
        raise CheckpointError(f"checkpoint {file} is refused: {parts.path} names other tensors")
    for expected, values in zip(parts.tensors, tensors, strict=True):
        shape = (expected.rows[number], *expected.shape[1:])
        if not isinstance(values, Tensor) or tuple(values.shape) != shape or not values.is_contiguous():
            raise CheckpointError(f"checkpoint {file} is refused: {expected.place[-1]!r} must have the shape {shape}")
    # Tensors may share memory in the file, which is theirs alone once they are joined.
    if sum(values.nbytes for values in tensors) > file.stat().st_size:
        raise CheckpointError(f"checkpoint {file} is refused: its tensors claim more bytes than it has")
    return tensors


def _parse(path: Path, table: Any) -> Parts:
    """The table of the parts, every number of which is checked: it may come from a stranger."""
    if not _TOKEN.fullmatch(table["token"]):
        raise ValueError(f"the token is {table['token']!r}")
    digests = tuple(str(digest) for digest in table["digests"])
    tensors: list[ShardedTensor] = []
    for place, shape, rows in table["tensors"]:
        numbers = (*shape, *rows)
        is_counted = all(isinstance(number, int) and number >= 0 for number in numbers)
        if not (place and shape and is_counted and len(rows) == len(digests) and sum(rows) == shape[0]):
            raise ValueError(f"{place} has the shape {shape} in parts of {rows} rows")
        tensors.append(ShardedTensor(tuple(place), tuple(shape), tuple(rows)))
    return Parts(path, table["token"], digests, tuple(tensors))


def _was_replaced(parts: Parts) -> bool:
    """Whether the checkpoint is another one by now."""
    now = open_checkpoint(parts.path)[1]
    return now is None or now.token != parts.token


def _without_rest(tensor: Tensor) -> Tensor:
    """The tensor on the CPU, without the rest of the memory of which it is a part, which would be stored too."""
    tensor = tensor.detach().cpu().contiguous()
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def _synchronise(folder: Path) -> None:
    """Brings the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
