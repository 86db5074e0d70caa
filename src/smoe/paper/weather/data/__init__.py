"""Weather on a global grid: reading the archives, and what is made of them for training.

xarray is imported when a source is opened, torch by the samples only.
"""

from __future__ import annotations

from smoe.data.weather.errors import DataError
from smoe.data.weather.grids import GRIDS, Grid
from smoe.data.weather.open_source import open_source
from smoe.data.weather.source import WeatherSource
from smoe.data.weather.variables import (
    DEFAULT_CONSTANTS,
    DEFAULT_INPUTS,
    LEVELS,
    VARIABLES,
    Channel,
    Variable,
    parse_channel,
)

__all__ = [
    "DEFAULT_CONSTANTS",
    "DEFAULT_INPUTS",
    "GRIDS",
    "LEVELS",
    "VARIABLES",
    "Channel",
    "DataError",
    "Grid",
    "Variable",
    "WeatherSource",
    "open_source",
    "parse_channel",
]
