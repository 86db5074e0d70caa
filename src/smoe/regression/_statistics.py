"""Statistics of the training part, by which fields are normalised, and the pass over the fields that finds them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from smoe.errors import DataError
from smoe.gridded import Channel, FieldMoments, FieldTable, Pairs, TimeLabels, are_same_units
from smoe.regression._options import Normalisation


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


# Times that each class of a climatology needs: of parts of the year and hours of the day, and of one of them.
_FEWEST_OF_BOTH, _FEWEST_OF_ONE = 5, 2
# Most times of a day that classes are made of, and bytes of the climatology of all of them.
_MOST_HOURS, _MOST_BYTES = 48, 1 << 28
# Standard deviations beyond which normalising overflows in float32.
_SMALLEST, _LARGEST = 1e-35, 1e35
# Bytes of the fields of one step; a few times as much is held.
_PIECE_BYTES = 1 << 26


class StatisticsPass:
    """Sums over the training samples. Give `add` to `collect_fields`, as what observes the inputs.

    Args:
        input_channels: Channels of the inputs.
        input_positions: Positions of the rows of their table, ascending.
        targets: Fields of the targets, which are there already.
        pairs: Training samples.
        reference: Input that each target continues, or -1.
    """

    def __init__(
        self,
        input_channels: tuple[Channel, ...],
        input_positions: np.ndarray,
        targets: FieldTable,
        pairs: Pairs,
        reference: np.ndarray,
    ) -> None:
        self._channels, self._targets, self._reference = input_channels, targets, reference
        rows = np.searchsorted(input_positions, pairs.inputs)
        # An input belongs to one sample at most.
        self._order = np.argsort(rows)
        self._rows = rows[self._order]
        self._target_rows = targets.rows_of(pairs.targets)
        num_targets, *grid = targets.always_missing.shape
        self._of_inputs = FieldMoments((len(input_channels), *grid))
        self._of_targets = FieldMoments((num_targets, *grid))
        self._of_errors = FieldMoments((num_targets, *grid))
        num_parts, self._of_day = choose_classes(pairs.valid, pairs.calendar, 4 * num_targets * grid[0] * grid[1])
        self._places = time_classes(pairs.valid, pairs.calendar, num_parts, self._of_day)
        self._sums = np.zeros((num_parts * max(len(self._of_day), 1), num_targets, *grid))
        self._numbers = np.zeros_like(self._sums)
        row_bytes = 4 * (len(input_channels) + num_targets) * grid[0] * grid[1]
        self._step = max(1, _PIECE_BYTES // max(row_bytes, 1))

    def add(self, first: int, block: np.ndarray) -> None:
        """Adds the samples whose inputs lie in rows from `first` on, `(n, C, H, W)`."""
        low, high = np.searchsorted(self._rows, (first, first + len(block)))
        for start in range(int(low), int(high), self._step):
            chosen = slice(start, min(start + self._step, int(high)))
            rows = self._rows[chosen] - first
            is_contiguous = rows[-1] - rows[0] + 1 == len(rows)
            before = block[rows[0] : rows[-1] + 1] if is_contiguous else block[rows]
            self._add_samples(before, self._order[chosen])

    def _add_samples(self, before: np.ndarray, samples: np.ndarray) -> None:
        after = self._targets.fields(self._target_rows[samples])
        self._of_inputs.add(before)
        self._of_targets.add(after)
        if (self._reference >= 0).any():
            references = np.where((self._reference >= 0)[:, None, None], before[:, self._reference], np.float32(0.0))
            self._of_errors.add(after - references)
        places = self._places[samples]
        for place in np.unique(places):
            fields = after[places == place]
            total = np.add.reduce(fields, axis=0, dtype=np.float64)
            missing = np.isnan(total)
            if missing.any():
                total[missing] = np.nansum(fields[:, missing], axis=0, dtype=np.float64)
                self._numbers[place] -= np.isnan(fields).sum(axis=0)
            self._sums[place] += total
            self._numbers[place] += len(fields)

    def finish(self, normalisation: Normalisation) -> Statistics:
        """The statistics of what was added.

        Args:
            normalisation: Over each channel or each pixel.

        Raises:
            DataError: If a target or an input does not vary, or a target is the same as an input.
        """
        reference, targets = self._reference, self._targets
        _check_varies(self._of_targets, targets.channels, "target", "there is nothing to learn")
        _check_varies(self._of_inputs, self._channels, "input", "leave it out")
        self._check_differs()
        of_errors = self._of_errors if (reference >= 0).any() else self._of_targets
        climatology = np.where(self._numbers > 0, self._sums / np.maximum(self._numbers, 1), np.nan)
        input_fill = self._input_fill()
        input_mean, input_std = _mean_and_std(self._of_inputs, normalisation, input_fill)
        # What is learned at pixels without a reference is the distance from what stands in for it.
        distance = self._of_targets.by_pixel()[0] - np.where((reference >= 0)[:, None, None], input_fill[reference], 0)
        target_mean, target_std = _mean_and_std(of_errors, normalisation, distance)
        # A target that is its reference and a constant has no spread beside it.
        target_std = np.maximum(target_std, 1e-3 * self._of_targets.by_channel()[1][:, None, None])
        errors = of_errors.by_pixel()[0]
        mean_error = np.where((reference >= 0)[:, None, None], np.where(np.isnan(errors), distance, errors), np.nan)
        return Statistics(
            input_mean=input_mean.astype(np.float32),
            input_std=input_std.astype(np.float32),
            input_fill=input_fill.astype(np.float32),
            target_mean=target_mean.astype(np.float32),
            target_std=target_std.astype(np.float32),
            mean_error=mean_error.astype(np.float32),
            climatology=climatology.astype(np.float32),
            climatology_seconds=self._of_day,
            reference=reference,
            target_mask=~targets.always_missing,
        )

    def _check_differs(self) -> None:
        if not (self._reference >= 0).any():
            return
        means = np.nan_to_num(self._of_errors.by_pixel()[0])
        is_same = ~(means.any(axis=(1, 2)) | self._of_errors.squares.any(axis=(1, 2))) & (self._reference >= 0)
        for number in np.flatnonzero(is_same):
            raise DataError(
                f"the target {self._targets.channels[number].name} is the same as the input "
                f"{self._channels[self._reference[number]].name} at all times of the training period: did you forget "
                "lead (--lead)? Leave it out of the inputs, or set residual='no' if it is meant"
            )

    def _input_fill(self) -> np.ndarray:
        """What stands in for missing inputs, `(C, H, W)`.

        The mean of the pixel; where there is none, that of the target that continues the input, else of the channel.
        """
        fill = self._of_inputs.by_pixel()[0]
        target_means = self._of_targets.by_pixel()[0]
        for target, channel in enumerate(self._reference):
            if channel >= 0:
                fill[channel] = np.where(np.isnan(fill[channel]), target_means[target], fill[channel])
        return np.where(np.isnan(fill), self._of_inputs.by_channel()[0][:, None, None], fill)


def choose_classes(seconds: np.ndarray, calendar: str, class_bytes: int) -> tuple[int, np.ndarray]:
    """The finest classes of times that hold enough of them: parts of the year, and seconds of the day.

    Args:
        seconds: Times.
        calendar: Their calendar.
        class_bytes: Bytes of the climatology of one class.
    """
    none = np.empty(0, np.int64)
    steps = np.diff(np.unique(seconds))
    of_day = np.unique(seconds % 86400)
    has_hours = len(steps) > 0 and np.median(steps) < 86400 and len(of_day) <= _MOST_HOURS
    both = ((12, of_day), (4, of_day)) if has_hours else ()
    one = ((12, none), (1, of_day)) if has_hours else ((12, none),)
    for num_parts, hours in (*both, *one):
        num_classes = num_parts * max(len(hours), 1)
        fewest = _FEWEST_OF_BOTH if num_parts > 1 and len(hours) else _FEWEST_OF_ONE
        if len(seconds) < fewest * num_classes or (len(hours) and num_classes * class_bytes > _MOST_BYTES):
            continue
        counts = np.bincount(time_classes(seconds, calendar, num_parts, hours), minlength=num_classes)
        if counts.min() >= fewest:
            return num_parts, hours
    return 1, none


def gather_statistics(
    inputs: FieldTable, targets: FieldTable, pairs: Pairs, reference: np.ndarray, normalisation: Normalisation
) -> Statistics:
    """Statistics of samples from tables that are there already, for samples that are known only then.

    Raises:
        DataError: If a target or an input does not vary.
    """
    statistics = StatisticsPass(inputs.channels, inputs.positions, targets, pairs, reference)
    row_bytes = 4 * inputs.always_missing.size
    step = max(1, _PIECE_BYTES // max(row_bytes, 1))
    for first in range(0, len(inputs), step):
        statistics.add(first, inputs.fields(np.arange(first, min(first + step, len(inputs)))))
    return statistics.finish(normalisation)


def _mean_and_std(
    moments: FieldMoments, normalisation: Normalisation, stand_in: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and spread; a pixel without values has the mean `stand_in`, where that is a number, and the usual spread."""
    mean, std = (each[:, None, None] for each in moments.by_channel())
    if normalisation == "channel":
        return mean, std
    pixel_mean, pixel_std = moments.by_pixel()
    pixel_mean = np.where(np.isnan(pixel_mean), stand_in, pixel_mean)
    # A pixel that hardly varies would be blown up: its spread is a hundredth of the channel's at least.
    pixel_std = np.where(np.isnan(pixel_std), std, np.maximum(pixel_std, 0.01 * std))
    return np.where(np.isnan(pixel_mean), mean, pixel_mean), pixel_std


def _check_varies(moments: FieldMoments, channels: tuple[Channel, ...], what: str, remedy: str) -> None:
    means, stds = moments.by_channel()
    for channel, mean, std in zip(channels, means, stds, strict=True):
        if np.isnan(mean):
            raise DataError(f"the {what} {channel.name} has no value in the training period: {remedy}")
        if std > 0.0 and not _SMALLEST < std < _LARGEST:
            raise DataError(
                f"the {what} {channel.name} varies by {std:.3g} (standard deviation), which is too "
                f"{'small' if std <= _SMALLEST else 'large'} for float32: give it in other units"
            )
        # float32 gives a constant a deviation of about 1e-7 of its size.
        if not std > 1e-6 * abs(mean):
            raise DataError(f"the {what} {channel.name} is {mean:g} everywhere in the training period: {remedy}")
        is_same_in_time = moments.squares[channels.index(channel)].sum() <= 1e-12 * mean**2 * moments.count.sum()
        if what == "target" and is_same_in_time:
            raise DataError(f"the target {channel.name} is the same at all times of the training period: {remedy}")
