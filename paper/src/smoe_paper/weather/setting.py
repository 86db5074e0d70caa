"""Properties of the data on which a weather network depends: channels, grid and land."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from smoe.errors import DataError
from smoe_paper.atmosphere.grids import GRIDS
from smoe_paper.atmosphere.variables import DEFAULT_CONSTANTS, DEFAULT_INPUTS
from smoe_paper.weather.build_model import Shape
from smoe_paper.weather.data.store import WeatherStore
from smoe_paper.weather.recipes import WeatherData


@dataclass(frozen=True)
class Setting:
    """Properties of the data.

    Attributes:
        shape: Channels and grid.
        latitude: Latitudes of the rows, in degrees.
        land: Fraction of land `(H, W)`; None if unknown.
    """

    shape: Shape
    latitude: tuple[float, ...]
    land: torch.Tensor | None


def open_store(data: WeatherData) -> WeatherStore:
    """Opens the store of a recipe.

    Raises:
        DataError: If the recipe names no store, or an unusable one.
    """
    if data.store is None:
        raise DataError(
            "no weather data are named: make a store with `smoe data prepare weather` and give its folder as "
            "--data.store FOLDER"
        )
    return WeatherStore.open(data.store)


def setting_of(data: WeatherData, store: WeatherStore) -> Setting:
    """Returns the setting of a store."""
    inputs = store.channels if data.inputs is None else data.inputs
    constants = store.constant_names if data.constants is None else data.constants
    land = torch.from_numpy(np.array(store.raw_constant("lsm"))) if "lsm" in store.constant_names else None
    shape = Shape(_num_inputs(data, len(inputs), len(constants)), len(data.targets), store.grid.shape)
    return Setting(shape, store.grid.latitude, land)


def usual_setting(data: WeatherData) -> Setting:
    """Returns the setting of the paper's data, for models without data; land is one half everywhere."""
    usual = GRIDS["5.625deg"]
    num_fields = len(DEFAULT_INPUTS) if data.inputs is None else len(data.inputs)
    num_constants = len(DEFAULT_CONSTANTS) if data.constants is None else len(data.constants)
    shape = Shape(_num_inputs(data, num_fields, num_constants), len(data.targets), usual.shape)
    return Setting(shape, usual.latitude, torch.full(usual.shape, 0.5))


def _num_inputs(data: WeatherData, num_fields: int, num_constants: int) -> int:
    is_continuous = data.continuous_lead_hours is not None
    return len(data.context_hours) * num_fields + num_constants + is_continuous
