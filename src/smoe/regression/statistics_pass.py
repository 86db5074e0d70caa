"""Statistics of the training samples, gathered while their inputs are read for the first and only time."""

from __future__ import annotations

import numpy as np

from smoe.errors import DataError
from smoe.gridded._alignment import Pairs
from smoe.gridded._checks import FieldMoments
from smoe.gridded._source import Channel
from smoe.gridded._tables import FieldTable
from smoe.regression.options import Normalisation
from smoe.regression.statistics import Statistics, time_classes

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
