"""Imports Pillow, or raises an error with the command that installs it."""

from __future__ import annotations

from smoe.errors import DataError

try:
    from PIL import Image, ImageEnhance, ImageFile, ImageOps, UnidentifiedImageError
except ImportError as error:
    raise DataError("reading images needs Pillow: pip install 'smoe[images]'") from error

__all__ = ["Image", "ImageEnhance", "ImageFile", "ImageOps", "UnidentifiedImageError"]
