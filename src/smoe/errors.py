"""What is raised when data cannot be used."""

from __future__ import annotations


class DataError(ValueError):
    """Data are not what they should be: says what was found, where, what was expected, and what to do."""
