"""What is raised when weather data cannot be used: the same as for all data."""

from __future__ import annotations

from smoe.data.errors import DataError

__all__ = ["DataError"]
