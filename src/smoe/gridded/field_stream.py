"""A file of fields that is written block by block and goes on where it was stopped."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Self

import numpy as np

from smoe.errors import DataError
from smoe.gridded.checked_json import read_checked_json, write_checked_json

_FORMAT, _VERSION = "smoe field table", 1
# Bytes after which the rows are brought to the disk and journalled: what a lost machine costs at most.
_BYTES_BETWEEN_SYNCS = 1 << 28


class FieldStream:
    """Rows of float32 in `fields.f32`, and the number of those that have reached the disk in `fields.json`.

    Use it as a context manager: rows that were written are journalled however it ends.

    Args:
        folder: Folder of the two files.
        shape: Rows, channels, rows and columns of the grid.
        plan: What the fields are; a journal with another plan is not continued.

    Attributes:
        values: The file, mapped into memory for reading.
        done: Number of rows that an earlier stream left.

    Raises:
        DataError: If the disk is too small.
    """

    def __init__(self, folder: Path, shape: tuple[int, ...], plan: dict[str, Any]) -> None:
        self._data, self._journal, self._plan = folder / "fields.f32", folder / "fields.json", plan
        num_bytes = 4 * int(np.prod(shape, dtype=np.int64))
        self.done = self._find_done(num_bytes)
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if not self.done and num_bytes > free:
            raise DataError(
                f"{folder} has {free / 1e9:.1f} GB free, fields need {num_bytes / 1e9:.1f} GB: choose another folder"
            )
        if not self.done:
            self._journal.unlink(missing_ok=True)
            with self._data.open("wb") as file:
                file.truncate(num_bytes)
        self.values = np.memmap(self._data, np.float32, "r", shape=shape) if num_bytes else np.empty(shape, np.float32)
        self._row_bytes = num_bytes // max(shape[0], 1)
        self._written, self._num_unsynced = self.done, 0
        # Written, not mapped: mapped pages that wait for the disk would count as memory of the process.
        self._file = self._data.open("r+b")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sync()
        self._file.close()

    def write(self, rows: slice, block: np.ndarray) -> None:
        """Writes rows that follow those before.

        Raises:
            DataError: If the disk is full.
        """
        try:
            self._file.seek(rows.start * self._row_bytes)
            self._file.write(np.ascontiguousarray(block, np.float32).data)
        except OSError as error:
            raise DataError(f"{self._data} cannot be written: {error.strerror or error}") from error
        self._written = rows.stop
        self._num_unsynced += block.nbytes
        if self._num_unsynced >= _BYTES_BETWEEN_SYNCS:
            self._sync()

    def _sync(self) -> None:
        if not self._num_unsynced:
            return
        self._file.flush()
        os.fsync(self._file.fileno())
        write_checked_json(self._journal, {"plan": self._plan, "done": self._written}, _FORMAT, _VERSION)
        self._num_unsynced = 0

    def _find_done(self, num_bytes: int) -> int:
        if not self._journal.is_file() or not self._data.is_file() or self._data.stat().st_size != num_bytes:
            return 0
        try:
            content = read_checked_json(self._journal, _FORMAT, _VERSION, writer="smoe fit")
        except DataError:
            # A damaged journal says nothing: the rows are read again.
            return 0
        return int(content["done"]) if content["plan"] == self._plan else 0
