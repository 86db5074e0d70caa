"""The store that weather recipes train on: normalised fields in one array, with their times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from smoe.errors import DataError, suggest
from smoe_paper.atmosphere.fields import Grid, describe_years, years_of
from smoe_paper.atmosphere.store import checksum, map_array, open_plan

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = "smoe weather store"
PRECIPITATION = "tp"
PRECIPITATION_EPSILON = 0.001
"""In metres: rain well below it counts as nearly none, and well above it by its logarithm."""

NaNPolicy = Literal["refuse", "zero-tisr", "zero", "mean"]
Values = TypeVar("Values", np.ndarray, "Tensor")


def transform(channel: str, values: np.ndarray) -> np.ndarray:
    """Returns what is normalised, float64: `ln(tp + eps) - ln(eps)` for precipitation, else the values themselves."""
    values = values.astype(np.float64)
    if channel != PRECIPITATION:
        return values
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(values + PRECIPITATION_EPSILON) - math.log(PRECIPITATION_EPSILON)


def undo_transform(channel: str, values: Values) -> Values:
    """Inverts `transform`, for arrays and tensors."""
    if channel != PRECIPITATION:
        return values
    if isinstance(values, (np.ndarray, np.generic)):
        return np.expm1(values) * PRECIPITATION_EPSILON
    return values.expm1() * PRECIPITATION_EPSILON


@dataclass(frozen=True)
class Plan:
    """What a store is to hold."""

    channels: tuple[str, ...]
    constants: tuple[str, ...]
    latitude: tuple[float, ...]
    longitude: tuple[float, ...]
    step_hours: int
    years: tuple[int, int]
    statistics_years: tuple[int, int]
    on_nan: NaNPolicy

    def shapes(self, num_times: int) -> dict[str, tuple[int, ...]]:
        grid = (len(self.latitude), len(self.longitude))
        return {"fields": (num_times, len(self.channels), *grid), "constants": (len(self.constants), *grid)}


class WeatherStore:
    """A store written by `smoe data prepare weather`."""

    def __init__(self, path: Path, plan: Plan, results: dict[str, Any]) -> None:
        self.path, self.plan, self._results = path, plan, results
        self.channels, self.constant_names = plan.channels, plan.constants
        self.grid, self.step_hours = Grid(plan.latitude, plan.longitude), plan.step_hours
        self.mean, self.std = np.array(results["mean"]), np.array(results["std"])
        try:
            self.times = np.load(path / "time.npy", allow_pickle=False)
        except Exception as error:
            raise DataError(f"{path / 'time.npy'} is missing or damaged ({error}): prepare the store again") from error
        shapes = plan.shapes(len(self.times))
        self.fields = map_array(path / "fields.npy", shapes["fields"])
        self.raw_constants = map_array(path / "constants.npy", shapes["constants"])
        """Constants in physical units, float32, `(K, H, W)`."""

    @classmethod
    def open(cls, path: str | Path) -> WeatherStore:
        """Opens a finished store after checking its plan and the sizes of its arrays."""
        return cls(Path(path), *open_plan(Path(path), FORMAT, Plan, "smoe data prepare weather"))

    @cached_property
    def constants(self) -> np.ndarray:
        """Constants, each normalised by its mean and standard deviation over the grid, float32, `(K, H, W)`."""
        values = self.raw_constants.astype(np.float64)
        return ((values - values.mean((1, 2), keepdims=True)) / values.std((1, 2), keepdims=True)).astype(np.float32)

    @property
    def checksum(self) -> str:
        return checksum(self.plan, self._results)

    def raw_constant(self, name: str) -> np.ndarray:
        """Returns one constant in physical units, `(H, W)`: `lsm` is the share of land, in [0, 1]."""
        return self.raw_constants[self.constant_indices([name])[0]]

    def channel_indices(self, names: Sequence[str]) -> list[int]:
        return [self._find(name, self.channels, "channel") for name in names]

    def constant_indices(self, names: Sequence[str]) -> list[int]:
        return [self._find(name, self.constant_names, "constant") for name in names]

    def to_physical(self, channel: str, values: Values) -> Values:
        """Converts values of one channel, of any shape, to physical units; inverts normalisation and logarithm."""
        (index,) = self.channel_indices([channel])
        return undo_transform(channel, values * float(self.std[index]) + float(self.mean[index]))

    def years(self) -> list[int]:
        """Returns the years of the store, complete or not."""
        return sorted(set(years_of(self.times).tolist()))

    def describe(self) -> str:
        rows, columns = self.grid.shape
        first, last = self.plan.statistics_years
        return (
            f"{self.path}: {len(self.times):,} times in {describe_years(self.years())}, from {self.times[0]} h to "
            f"{self.times[-1]} h, every {self.step_hours} h; {len(self.channels)} channels, {rows} x {columns}\n"
            f"mean and deviation are of {first} to {last}\n"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return WeatherStore, (self.path, self.plan, self._results)

    def _find(self, name: str, names: tuple[str, ...], kind: str) -> int:
        if name in names:
            return names.index(name)
        raise DataError(f"the store {self.path} has no {kind} {name!r}; {suggest(name, names, otherwise='it has')}")
