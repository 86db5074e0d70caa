"""Arrays inside of a page: one compressed block, and where each of them is in it."""

from __future__ import annotations

import base64
import gzip
from typing import Any

import numpy as np

# Names that the page's script knows, of the types that it reads without conversion.
_TYPES = {"uint8": "u8", "uint16": "u16", "int16": "i16", "int32": "i32", "float32": "f32"}


class ArrayPack:
    """Collects arrays and encodes them as text that can stand in HTML."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, values: np.ndarray) -> dict[str, Any]:
        """Adds an array and returns its reference for the page's script.

        Args:
            values: Array of one of the types uint8, uint16, int16, int32 and float32.
        """
        if values.dtype.name not in _TYPES:
            raise ValueError(f"an array of a page must have one of the types {', '.join(_TYPES)}, got {values.dtype}")
        content = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
        reference = {"at": self._size, "count": int(values.size), "type": _TYPES[values.dtype.name]}
        # Typed arrays of JavaScript begin at multiples of their size.
        content += bytes(-len(content) % 4)
        self._parts.append(content)
        self._size += len(content)
        return reference

    def add_numbers(self, values: np.ndarray) -> dict[str, Any]:
        """Adds numbers with a precision of 1/65534 of their range; those that are not finite are missing."""
        numbers = np.asarray(values, np.float64).ravel()
        is_known = np.isfinite(numbers)
        low, high = (float(numbers[is_known].min()), float(numbers[is_known].max())) if is_known.any() else (0.0, 0.0)
        step = (high - low) / 65534.0
        levels = np.full(numbers.shape, 65535, np.uint16)
        levels[is_known] = 0 if step == 0.0 else np.rint((numbers[is_known] - low) / step).astype(np.uint16)
        return {**self.add(levels), "low": low, "step": step}

    def add_indices(self, values: np.ndarray) -> dict[str, Any]:
        """Adds whole numbers from 0 on in the smallest type that holds them."""
        largest = int(values.max()) if values.size else 0
        return self.add(values.astype(np.uint8 if largest < 256 else np.uint16 if largest < 65536 else np.int32))

    def encode(self) -> str:
        """All arrays as base64 of a gzip stream; the same arrays make the same text."""
        return base64.b64encode(gzip.compress(b"".join(self._parts), compresslevel=9, mtime=0)).decode()
