"""What a regressor knows of its training data: means, spreads, masks and the maps of simple predictions."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from smoe.errors import DataError
from smoe.gridded._axes import are_same_units
from smoe.gridded._source import Channel
from smoe.gridded._times import TimeLabels


@dataclass(frozen=True)
class Statistics:
    """Numbers from the training part alone; C inputs, K targets; `h, w` are the grid, or 1 and 1.

    Attributes:
        input_mean: Mean of each input, float32, `(C, h, w)`.
        input_std: Spread of each input, `(C, h, w)`.
        input_fill: Mean of each input at each pixel, which replaces missing values; where there is none, the mean of
            the target that continues the input, else of the channel, `(C, H, W)`.
        target_mean: Mean of each target, less its reference if it has one, `(K, h, w)`.
        target_std: Spread of the same, `(K, h, w)`.
        mean_error: Mean of target less reference at each pixel; NaN for targets without one, `(K, H, W)`.
        climatology: Mean of the targets at each pixel in each of the classes of times, `(n, K, H, W)`: 1 for all times,
            12 months or 4 seasons, times the `climatology_seconds` of the day where there are any.
        climatology_seconds: Seconds of the day of the classes; empty where the time of the day does not count, `(h,)`.
        reference: Input that each target continues, or -1, `(K,)`.
        target_mask: Pixels where targets have values, `(K, H, W)`.
    """

    input_mean: np.ndarray
    input_std: np.ndarray
    input_fill: np.ndarray
    target_mean: np.ndarray
    target_std: np.ndarray
    mean_error: np.ndarray
    climatology: np.ndarray
    climatology_seconds: np.ndarray
    reference: np.ndarray
    target_mask: np.ndarray

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Names of all arrays."""
        return tuple(each.name for each in fields(cls))

    def normalise_inputs(self, inputs: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Inputs `(N, C, H, W)` of mean 0 and spread 1, float32; missing values have the pixel's mean.

        Args:
            inputs: Inputs in their units.
            out: Where to write; `inputs` itself saves the memory of a copy.
        """
        out = np.subtract(inputs, self.input_mean, out=out, dtype=np.float32)
        np.multiply(out, self._input_scale, out=out)
        for channel in range(out.shape[1]):
            # A sum is quicker than a look at each value, and is NaN if one of them is.
            if np.isnan(out[:, channel].sum()):
                np.copyto(out[:, channel], self._normalised_fill[channel], where=np.isnan(out[:, channel]))
        return out

    def references(self, inputs: np.ndarray) -> np.ndarray:
        """What each target is predicted relative to, in its units, `(N, K, H, W)`; 0 for targets without one."""
        found = inputs[:, self.reference]
        if np.isnan(found.sum()):
            found = np.where(np.isnan(found), self.input_fill[self.reference], found)
        if (self.reference < 0).any():
            found[:, self.reference < 0] = 0.0
        return found

    def normalise_targets(self, targets: np.ndarray, inputs: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Targets `(N, K, H, W)` less their references, of mean 0 and spread 1, float32; NaN stays NaN.

        Args:
            targets: Targets in their units.
            inputs: Inputs in their units.
            out: Where to write; `targets` itself saves the memory of a copy.
        """
        if (self.reference >= 0).any():
            targets = np.subtract(targets, self.references(inputs), out=out, dtype=np.float32)
        out = np.subtract(targets, self.target_mean, out=out, dtype=np.float32)
        return np.multiply(out, self._target_scale, out=out)

    @cached_property
    def _input_scale(self) -> np.ndarray:
        return (1.0 / self.input_std.astype(np.float64)).astype(np.float32)

    @cached_property
    def _target_scale(self) -> np.ndarray:
        return (1.0 / self.target_std.astype(np.float64)).astype(np.float32)

    @cached_property
    def _normalised_fill(self) -> np.ndarray:
        return ((self.input_fill - self.input_mean) * self._input_scale).astype(np.float32)

    @property
    def climatology_parts(self) -> int:
        """Parts of the year of the climatology: 12 months, 4 seasons or 1."""
        return len(self.climatology) // max(len(self.climatology_seconds), 1)

    @property
    def climatology_name(self) -> str:
        """Name of the climatology in a table of scores, such as `climatology (month and hour of day)`."""
        if not len(self.climatology_seconds):
            return f"climatology ({'monthly' if self.climatology_parts == 12 else 'mean'})"
        part = {12: "month and ", 4: "season and "}.get(self.climatology_parts, "")
        return f"climatology ({part}hour of day)"

    def climatology_at(self, seconds: np.ndarray, calendar: str) -> np.ndarray:
        """The climatology of some times, `(N, K, H, W)`."""
        return self.climatology[time_classes(seconds, calendar, self.climatology_parts, self.climatology_seconds)]

    def denormalise(self, outputs: np.ndarray, inputs: np.ndarray) -> np.ndarray:
        """Outputs `(N, K, n, H, W)` in the units of the targets."""
        scaled = outputs * self.target_std[:, None] + self.target_mean[:, None]
        return (scaled + self.references(inputs)[:, :, None]).astype(np.float32)


def time_classes(seconds: np.ndarray, calendar: str, num_parts: int, of_day: np.ndarray) -> np.ndarray:
    """Class of each time: the month or the season, and the nearest of some seconds of the day.

    Args:
        seconds: Times, `(N,)`.
        calendar: Their calendar.
        num_parts: 12 for months, 4 for seasons from December on, 1 for neither.
        of_day: Seconds of the day, `(h,)`; empty if the time of the day does not count.
    """
    parts = np.zeros(len(seconds), np.int64)
    if num_parts > 1:
        months = TimeLabels(seconds, calendar).months(seconds) % 12
        parts = months if num_parts == 12 else (months + 1) % 12 // 3
    if not len(of_day):
        return parts
    distances = np.abs(seconds[:, None] % 86400 - of_day)
    return parts * len(of_day) + np.minimum(distances, 86400 - distances).argmin(axis=1)


def find_references(inputs: tuple[Channel, ...], targets: tuple[Channel, ...], residual: str) -> np.ndarray:
    """Input that each target continues: of the same name, or of the same standard name, with the same level and units.

    Raises:
        DataError: If a variable has other units among the inputs than among the targets, or none is found where
            `residual` is `yes`.
    """
    found = []
    for target in targets:
        same = [i for i, one in enumerate(inputs) if _is_same(one, target) and not one.is_static]
        for number in same:
            if not are_same_units(inputs[number].units, target.units):
                raise DataError(
                    f"{target.name} is in {target.units or '(no units)'!r} among the targets and its like among the "
                    f"inputs, {inputs[number].name}, in {inputs[number].units or '(no units)'!r}: convert one of them"
                )
        if not same and residual == "yes":
            raise DataError(f"no input continues to {target.name}: residual needs one of its name or standard name")
        found.append(-1 if not same or residual == "no" else same[0])
    return np.asarray(found, np.int64)


def _is_same(one: Channel, target: Channel) -> bool:
    is_named = one.variable == target.variable or bool(one.standard_name and one.standard_name == target.standard_name)
    # A target may be one level of an input: `data["z"].sel(level=500)`.
    is_selected = target.level is None and one.level is not None and one.level == target.selected_level
    return is_named and (one.level == target.level or is_selected)
