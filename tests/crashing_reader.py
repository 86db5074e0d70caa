"""A reader that behaves as its file says, for `tests/test_confined_process.py`: another process imports it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from smoe.errors import DataError


class CrashingReader:
    """Reads a number, unless the file holds a misfortune."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.read_text() == "abort at once":
            os.abort()

    def read(self) -> int:
        """What the file says."""
        text = self.path.read_text()
        if text == "abort":
            os.abort()
        while text == "for ever":
            pass
        if text.startswith("slow"):
            time.sleep(1.0)
            return int(text.split()[1])
        if text == "memory":
            return len(np.ones(300_000_000))
        if text == "error":
            raise KeyError("of the library")
        if text == "data error":
            raise DataError("of our own")
        return int(text)

    def process(self) -> int:
        """Number of the process that reads."""
        return os.getpid()
