"""Checkpoints of runs as directories of `torch.distributed.checkpoint` (DCP), and back.

A directory holds all tensors of `last.pt` or `best.pt` under their names (`model.0.weight`), so that a program with a
training loop of its own loads the weights by `torch.distributed.checkpoint.load`, on any number of processes.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

import torch
from torch.distributed.checkpoint import CheckpointException, DefaultLoadPlanner, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint import load as load_dcp
from torch.distributed.checkpoint import save as save_dcp
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem

from smoe.training.checkpoint_parts import Place, insert, load_whole, take_out
from smoe.training.checkpoints import CheckpointError, save_checkpoint

# Name of all values that are no tensors.
_REST = "smoe"
# What the metadata of a directory are made of: values without an effect. Names of dtypes come in addition.
_METADATA = {
    *(("torch.distributed.checkpoint.metadata", name) for name in (
        "Metadata", "MetadataIndex", "StorageMeta", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata",
        "BytesStorageMetadata", "_MEM_FORMAT_ENCODING",
    )),
    *(("torch.distributed.checkpoint.filesystem", name) for name in ("_StorageInfo", "_StoragePrefix")),
    ("torch", "Size"), ("torch.serialization", "_get_layout"), ("collections", "OrderedDict"),
    *((module, name) for module in ("pathlib", "pathlib._local") for name in ("PosixPath", "WindowsPath")),
}  # fmt: skip


def to_dcp(checkpoint: Path, folder: Path) -> None:
    """Writes a checkpoint of a run, in one file or in parts, as a directory. One process has all of it in memory.

    Args:
        checkpoint: `last.pt` or `best.pt` of a run.
        folder: Directory to write, which must not exist.

    Raises:
        CheckpointError: If the checkpoint cannot be read, or the directory exists.
    """
    if folder.exists():
        raise CheckpointError(f"{folder} exists already; name a folder that does not")
    rest, tensors = take_out(load_whole(checkpoint), torch.Tensor)
    plain = io.BytesIO()
    torch.save({"rest": rest, "places": {_name(place): place for place in tensors}}, plain)
    content = {**{_name(place): tensor for place, tensor in tensors.items()}, _REST: plain.getvalue()}
    with _alone():
        save_dcp(content, storage_writer=FileSystemWriter(folder), no_dist=True)


def from_dcp(folder: Path, checkpoint: Path) -> None:
    """Writes what a directory holds as a checkpoint in one file. One process has all of it in memory.

    `torch.distributed.checkpoint.load` unpickles what it reads, which runs code that a stranger put there. This
    function accepts tensors and plain values only. A directory has no checksums: what was changed in it is not noticed.

    Args:
        folder: Directory that `torch.distributed.checkpoint.save` wrote, by any number of processes.
        checkpoint: File to write.

    Raises:
        CheckpointError: If the directory cannot be read or is refused, or the file cannot be written.
    """
    try:
        state = _read(folder)
    except CheckpointException as error:  # derives from BaseException, and holds the errors of each process
        reason = type(error.failures[0][0]).__name__
        raise CheckpointError(
            f"{folder} is refused: it is damaged, or holds objects other than tensors and plain values ({reason})"
        ) from error
    except Exception as error:  # a directory from a stranger can make a reader fail in any way
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise CheckpointError(
            f"{folder} is not a directory of torch.distributed.checkpoint, or refused: {reason}"
        ) from error
    save_checkpoint(checkpoint, state)


def _read(folder: Path) -> dict[str, Any]:
    reader = _Reader(folder)
    metadata = reader.read_metadata()
    flat: dict[str, Any] = dict.fromkeys(metadata.state_dict_metadata)
    num_left = sum(file.stat().st_size for file in folder.iterdir())
    for name, entry in metadata.state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata):
            num_left -= entry.size.numel() * entry.properties.dtype.itemsize
            if num_left < 0:
                raise pickle.UnpicklingError(f"it has fewer bytes than its tensors claim, by {name}")
            flat[name] = torch.empty(entry.size, dtype=entry.properties.dtype)
    planner = _Planner(flatten_state_dict=False)
    with _alone():
        load_dcp(flat, storage_reader=reader, planner=planner, no_dist=True)
    if _REST in planner.plain:
        stored = torch.load(io.BytesIO(planner.plain.pop(_REST)), weights_only=True)
        return insert(stored["rest"], ((place, flat[name]) for name, place in stored["places"].items()))
    places = metadata.planner_data or {}
    return insert({}, ((places.get(name, (name,)), value) for name, value in {**flat, **planner.plain}.items()))


class _Reader(FileSystemReader):
    """Reads the metadata without running what they name, and files of the directory only."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The metadata."""
        del args, kwargs
        content = (Path(self.path) / ".metadata").read_bytes()
        metadata = _Unpickler(io.BytesIO(content)).load()
        if not isinstance(metadata, Metadata) or not isinstance(metadata.storage_data, dict):
            raise pickle.UnpicklingError("its metadata are of another kind")
        for place in metadata.storage_data.values():
            if PurePath(place.relative_path).name != str(place.relative_path) or place.transform_descriptors:
                raise pickle.UnpicklingError(f"its metadata name the file {place.relative_path!r}")
        return metadata


class _Planner(DefaultLoadPlanner):
    """Accepts plain values only, and keeps them."""

    def __init__(self, *, flatten_state_dict: bool) -> None:
        super().__init__(flatten_state_dict=flatten_state_dict)
        self.plain: dict[str, Any] = {}

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Loads a value that is no tensor."""
        self.plain[read_item.dest_index.fqn] = torch.load(value, weights_only=True)


class _Unpickler(pickle.Unpickler):
    """Knows the classes of the metadata, and no other."""

    def find_class(self, module: str, name: str) -> Any:
        """A class, by its name."""
        if (module, name) in _METADATA or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"its metadata name {module}.{name}")


@contextmanager
def _alone() -> Iterator[None]:
    """While active, torch does not warn that one process works for itself."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _name(place: Place) -> str:
    """The name of a value in a directory, as `torch.distributed.checkpoint` makes it of nested dictionaries."""
    return ".".join(map(str, place))
