"""Weather on a global grid: readers of the archives, and the data made from them for training.

xarray is imported when a source is opened, torch by the samples only.
"""

from __future__ import annotations

from smoe.errors import DataError
from smoe_paper.atmosphere.grid import GRIDS, Grid
from smoe_paper.atmosphere.variables import (
    DEFAULT_CONSTANTS,
    DEFAULT_INPUTS,
    LEVELS,
    VARIABLES,
    Channel,
    Variable,
    parse_channel,
)
from smoe_paper.weather.data.source import WeatherSource
from smoe_paper.weather.data.weatherbench import open_source

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
