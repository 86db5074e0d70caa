"""Checkpoints: written whole or not at all, read only if every bit is as it was written."""

from __future__ import annotations

import hashlib
import pickle
import pickletools
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import torch

from smoe._files import write_atomically
from smoe.file_claims import excessive_claim

# The end of a checkpoint: this mark and the SHA-256 of everything before it. It stands after the end of the zip archive
# of torch.save, where torch.load does not look.
_MARK = b"smoe-sha256:"
_TRAILER_SIZE = len(_MARK) + hashlib.sha256().digest_size
_PIECE = 1 << 20
# An entry of an archive with this attribute is a folder for torch's reader, which then leaves the tensor's memory as it
# found it.
_FOLDER_ATTRIBUTE = 0x10
# What a checkpoint is made of besides plain values and types of storages and numbers. torch.load allows more, such as a
# bytearray of any length.
_MADE_OF = frozenset(
    {
        ("collections", "OrderedDict"),
        ("torch", "Size"),
        *(("torch._utils", name) for name in ("_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter")),
    }
)
# Bytes of memory that a byte of the list of entries can take: an empty dictionary is written as one byte.
_BYTES_PER_LISTED = 100


class CheckpointError(Exception):
    """A checkpoint that is missing, damaged, of another run, or cannot be written."""


def save_checkpoint(path: Path, state: dict[str, Any], *, make_folder: bool = True) -> str:
    """Writes a state whole or not at all, in one file.

    Args:
        path: File to write.
        state: Tensors and plain Python values.
        make_folder: Create the folder of the file if it does not exist.

    Returns:
        The checksum that the file ends in, in hexadecimal digits.

    Raises:
        CheckpointError: If the file cannot be written, for example because the disk is full. The file that was there
            before is intact.
    """
    hashing: list[_HashingFile] = []

    def write(file: BinaryIO) -> None:
        hashing.append(_HashingFile(file))
        torch.save(state, hashing[0])  # type: ignore[arg-type]
        file.write(_MARK + hashing[0].hash.digest())

    try:
        write_atomically(path, write, make_folder=make_folder)
    except (OSError, RuntimeError) as error:
        # torch turns an error of the file into a RuntimeError about a position in the archive.
        cause = hashing[0].error if hashing and hashing[0].error is not None else error
        if not isinstance(cause, OSError):
            raise
        kept = "the file before it is intact" if path.is_file() else "there is no such file"
        raise CheckpointError(f"checkpoint {path} could not be written: {_reason(cause)}; {kept}") from error
    return hashing[0].hash.hexdigest()


def load_checkpoint(path: Path, digest: str | None = None) -> dict[str, Any]:
    """Reads the file of a checkpoint onto the CPU; `load_whole` of `checkpoint_parts` reads any checkpoint.

    The checksum is compared first, so that any change of the file since it was written is noticed. A file from a
    stranger can have a right checksum: it may hold tensors and plain values only, and nothing in it is larger than the
    file.

    Args:
        path: File to read.
        digest: Checksum that the file must end in; None accepts any.

    Raises:
        CheckpointError: If the file is missing, damaged or refused.
    """
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint {path}")
    try:
        with path.open("rb") as file:
            if digest not in (_check_digest(path, file), None):
                raise CheckpointError(f"checkpoint {path} is damaged: it was exchanged for another file")
            _check_archive(path, file)
            file.seek(0)
            state = torch.load(file, map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"checkpoint {path} is refused: it holds objects other than tensors and plain values"
        ) from error
    except Exception as error:  # a file from a stranger can make a reader fail in any way
        raise CheckpointError(f"checkpoint {path} cannot be read: {_reason(error)}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"checkpoint {path} must hold a dictionary, but it holds a {type(state).__name__}")
    return state


class _HashingFile:
    """A file that is written once, from its beginning, and the hash of what was written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.hash = hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            written = self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self.hash.update(data)
        return written

    def flush(self) -> None:
        self._file.flush()


def _check_digest(path: Path, file: BinaryIO) -> str:
    """Compares the checksum and returns it."""
    size = path.stat().st_size
    remaining = size - _TRAILER_SIZE
    content = hashlib.sha256()
    while remaining > 0:
        piece = file.read(min(_PIECE, remaining))
        if not piece:
            break
        content.update(piece)
        remaining -= len(piece)
    trailer = file.read(_TRAILER_SIZE)
    if size < _TRAILER_SIZE or not trailer.startswith(_MARK):
        raise CheckpointError(
            f"checkpoint {path} is damaged: it does not end in a checksum; it is truncated, or of another program"
        )
    if trailer != _MARK + content.digest():
        raise CheckpointError(f"checkpoint {path} is damaged: its checksum is wrong")
    return content.hexdigest()


def _check_archive(path: Path, file: BinaryIO) -> None:
    """Refuses an archive whose entries could take more memory than the file has bytes, or are no plain files."""
    file.seek(0)
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
    for entry in entries:
        is_stored = entry.compress_type == zipfile.ZIP_STORED and entry.compress_size == entry.file_size
        if not is_stored or entry.external_attr & _FOLDER_ATTRIBUTE or entry.is_dir():
            raise CheckpointError(f"checkpoint {path} is refused: its entry {entry.filename!r} is not stored plainly")
    total, size = sum(entry.file_size for entry in entries), path.stat().st_size
    if total > size:
        raise CheckpointError(f"checkpoint {path} is refused: its entries claim {total} bytes, but it has {size}")
    for entry in entries:
        if entry.filename.endswith(".pkl"):
            if reason := excessive_claim(path, _BYTES_PER_LISTED * entry.file_size):
                raise CheckpointError(f"checkpoint {path} is refused: its list of entries is too long: {reason}")
            with zipfile.ZipFile(file) as archive:
                _check_listing(path, archive.read(entry))


def _check_listing(path: Path, listing: bytes) -> None:
    """Refuses a list of entries that is made of other things than tensors and plain values."""
    for operation, argument, _ in pickletools.genops(listing):
        if operation.name == "GLOBAL":
            module, _, name = str(argument).partition(" ")
            is_type = module == "torch" and (
                name.endswith("Storage") or isinstance(getattr(torch, name, None), torch.dtype)
            )
            if is_type or (module, name) in _MADE_OF:
                continue
        elif operation.name not in ("STACK_GLOBAL", "INST", "OBJ", "EXT1", "EXT2", "EXT4"):
            continue
        what = str(argument)[:100]
        raise CheckpointError(
            f"checkpoint {path} is refused: it holds objects other than tensors and plain values ({what!r})"
        )


def _reason(error: BaseException) -> str:
    """What went wrong, in one line."""
    if isinstance(error, OSError) and error.strerror is not None:
        return error.strerror
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
