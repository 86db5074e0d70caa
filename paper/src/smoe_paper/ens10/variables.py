"""ENS-10's variables with their names in the preprocessed files and in GRIB, and the three tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from smoe_paper.atmosphere.variables import VARIABLES, Variable, plausible_bounds

LEAD_DAYS = 2
"""Time from the start of a forecast to the date for which it is valid: 48 hours."""

NUM_MEMBERS = 10

TaskName = Literal["z500", "t850", "t2m"]
LevelType = Literal["pl", "sfc"]


@dataclass(frozen=True)
class EnsembleVariable:
    """A variable of the ensemble."""

    name: str
    grib_name: str
    grib_short_name: str
    physics: Variable
    is_sea_only: bool = False

    def on_level(self, level: int | None) -> Variable:
        """Unit and bounds of values on a level in hPa; None for a variable of the surface."""
        return replace(self.physics, plausible=plausible_bounds(self.physics, level), has_levels=level is not None)


def _own(short_name: str, units: str, low: float, high: float, varies: bool = True, *names: str) -> Variable:
    return Variable(short_name, short_name, units, (low, high), varies=varies, unit_names=names)


def _shared(short_name: str) -> Variable:
    return VARIABLES[short_name]


_KELVIN = ("kelvin",)
PRESSURE_LEVEL_VARIABLES = (
    EnsembleVariable("Z", "z", "z", _shared("z")),
    EnsembleVariable("T", "t", "t", _shared("t")),
    EnsembleVariable("Q", "q", "q", _shared("q")),
    EnsembleVariable("W", "w", "w", _own("w", "Pa s-1", -200.0, 200.0)),
    EnsembleVariable("D", "d", "d", _own("d", "s-1", -0.1, 0.1)),
    EnsembleVariable("U", "u", "u", _shared("u")),
    EnsembleVariable("V", "v", "v", _shared("v")),
)
SURFACE_VARIABLES = (
    EnsembleVariable("SSTK", "sst", "sst", _own("sst", "K", 200.0, 350.0, True, *_KELVIN), is_sea_only=True),
    EnsembleVariable("TCW", "tcw", "tcw", _own("tcw", "kg m-2", -1.0, 200.0)),
    EnsembleVariable("TCWV", "tcwv", "tcwv", _own("tcwv", "kg m-2", -1.0, 200.0)),
    EnsembleVariable("CP", "cp", "cp", _own("cp", "m", -0.01, 3.0, False)),
    # Below a cold plateau, a coarse model reduces the pressure to values above all barometer readings.
    EnsembleVariable("MSL", "msl", "msl", _own("msl", "Pa", 8.0e4, 1.25e5)),
    EnsembleVariable("TCC", "tcc", "tcc", _shared("tcc")),
    EnsembleVariable("U10M", "u10", "10u", _shared("u10")),
    EnsembleVariable("V10M", "v10", "10v", _shared("v10")),
    EnsembleVariable("T2M", "t2m", "2t", _shared("t2m")),
    EnsembleVariable("TP", "tp", "tp", _own("tp", "m", -0.01, 3.0, False)),
    EnsembleVariable("SKT", "skt", "skt", _own("skt", "K", 130.0, 400.0, True, *_KELVIN)),
)


@dataclass(frozen=True)
class EnsembleTask:
    """A variable to correct, and the input fields."""

    name: TaskName
    level_type: LevelType
    level: int | None
    variables: tuple[EnsembleVariable, ...]
    target: str
    truth_file: str

    @property
    def target_index(self) -> int:
        return [variable.name for variable in self.variables].index(self.target)

    @property
    def target_variable(self) -> EnsembleVariable:
        return self.variables[self.target_index]

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the input's channels: mean and standard deviation of each variable, alternating."""
        return tuple(f"{variable.name}_{kind}" for variable in self.variables for kind in ("mean", "std"))


TASKS: dict[TaskName, EnsembleTask] = {
    "z500": EnsembleTask("z500", "pl", 500, PRESSURE_LEVEL_VARIABLES, "Z", "ERA5_z500.nc"),
    "t850": EnsembleTask("t850", "pl", 850, PRESSURE_LEVEL_VARIABLES, "T", "ERA5_t850.nc"),
    "t2m": EnsembleTask("t2m", "sfc", None, SURFACE_VARIABLES, "T2M", "ERA5_sfc_t2m.nc"),
}
