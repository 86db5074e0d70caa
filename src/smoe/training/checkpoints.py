"""Checkpoints: written atomically, read only if intact."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import torch

from smoe.atomic_files import write_atomically


class CheckpointError(Exception):
    """A checkpoint that is missing, damaged, or of another run."""


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Writes `state`, which holds tensors and plain Python values, whole or not at all."""
    write_atomically(path, lambda file: torch.save(state, file))


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Reads a checkpoint onto the CPU.

    Raises:
        CheckpointError: if the file is missing or damaged. torch reads a flipped byte without a word, so the checksums
            of the archive are compared first.
    """
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint {path}")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise CheckpointError(f"checkpoint {path} is damaged: the checksum of {damaged} is wrong")
        return torch.load(path, map_location="cpu", weights_only=True)
    except (zipfile.BadZipFile, RuntimeError, EOFError, OSError) as error:
        raise CheckpointError(f"checkpoint {path} is damaged: {error}") from error
