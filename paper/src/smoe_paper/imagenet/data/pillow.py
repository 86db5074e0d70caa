"""Imports Pillow, or raises an error with the command that installs it."""

from __future__ import annotations

from smoe.errors import naming_extras

with naming_extras("reading images"):
    from PIL import Image, ImageEnhance, ImageFile, ImageOps, UnidentifiedImageError

__all__ = ["Image", "ImageEnhance", "ImageFile", "ImageOps", "UnidentifiedImageError"]
