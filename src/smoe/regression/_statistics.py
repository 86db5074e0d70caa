"""Statistics of the training part, by which fields are normalised, and the pass over the fields that finds them."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from smoe.errors import DataError
from smoe.gridded import Channel, FieldMoments, FieldTable, Pairs, are_same_units


@dataclass(frozen=True)
class Statistics:
    """Numbers from the training part alone; C inputs, K targets.

    Attributes:
        input_mean: Mean of each input at each pixel, float32, `(C, H, W)`; of a static input, over the grid.
        input_std: Spread of the same.
        input_fill: What replaces missing values: the mean of the pixel; where there is none, the mean of the target
            that continues the input, else of the channel.
        mean_error: Mean of target less reference at each pixel; NaN for targets without one, `(K, H, W)`.
        reference: Input that each target continues, or -1, `(K,)`.
        target_mask: Pixels where targets have values, `(K, H, W)`.
    """

    input_mean: np.ndarray
    input_std: np.ndarray
    input_fill: np.ndarray
    mean_error: np.ndarray
    reference: np.ndarray
    target_mask: np.ndarray

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Names of all arrays."""
        return tuple(each.name for each in fields(cls))

    def normalise_inputs(self, inputs: np.ndarray) -> np.ndarray:
        """Inputs `(N, C, H, W)` of mean 0 and spread 1, float32; missing values have the pixel's mean."""
        filled = np.where(np.isnan(inputs), self.input_fill, inputs)
        return ((filled - self.input_mean) / self.input_std).astype(np.float32)

    def references(self, inputs: np.ndarray) -> np.ndarray:
        """Input that each target continues, `(N, K, H, W)`; 0 for targets without one."""
        found = inputs[:, self.reference]
        if np.isnan(found.sum()):
            found = np.where(np.isnan(found), self.input_fill[self.reference], found)
        if (self.reference < 0).any():
            found[:, self.reference < 0] = 0.0
        return found


def find_references(inputs: tuple[Channel, ...], targets: tuple[Channel, ...], residual: str) -> np.ndarray:
    """Input that each target continues: of the same name or standard name, with the same level and units."""
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


# Standard deviations beyond which normalising overflows in float32.
_SMALLEST, _LARGEST = 1e-35, 1e35
# Bytes of the fields of one step; a few times as much is held.
_PIECE_BYTES = 1 << 26


class StatisticsPass:
    """Sums over the training samples. Give `add` to `collect_fields`, as what observes the inputs."""

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

    def finish(self) -> Statistics:
        """The statistics of what was added."""
        reference, targets = self._reference, self._targets
        _check_varies(self._of_targets, targets.channels, "target", "there is nothing to learn")
        _check_varies(self._of_inputs, self._channels, "input", "leave it out")
        self._check_differs()
        input_fill = self._input_fill()
        input_mean, input_std = _mean_and_std(self._of_inputs, input_fill)
        is_static = np.asarray([channel.is_static for channel in self._channels])[:, None, None]
        means, stds = (each[:, None, None] for each in self._of_inputs.by_channel())
        # A target without a value of its reference is corrected from what stands in for it.
        has_reference = (reference >= 0)[:, None, None]
        distance = self._of_targets.by_pixel()[0] - np.where(has_reference, input_fill[reference], 0)
        errors = self._of_errors.by_pixel()[0] if has_reference.any() else np.full(distance.shape, np.nan)
        mean_error = np.where(has_reference, np.where(np.isnan(errors), distance, errors), np.nan)
        return Statistics(
            input_mean=np.where(is_static, means, input_mean).astype(np.float32),
            input_std=np.where(is_static, stds, input_std).astype(np.float32),
            input_fill=input_fill.astype(np.float32),
            mean_error=mean_error.astype(np.float32),
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


def gather_statistics(inputs: FieldTable, targets: FieldTable, pairs: Pairs, reference: np.ndarray) -> Statistics:
    """Statistics of samples from tables that are there already, for samples that are known only then."""
    statistics = StatisticsPass(inputs.channels, inputs.positions, targets, pairs, reference)
    row_bytes = 4 * inputs.always_missing.size
    step = max(1, _PIECE_BYTES // max(row_bytes, 1))
    for first in range(0, len(inputs), step):
        statistics.add(first, inputs.fields(np.arange(first, min(first + step, len(inputs)))))
    return statistics.finish()


def _mean_and_std(moments: FieldMoments, stand_in: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and spread of pixels; one without values has the mean `stand_in` and the usual spread."""
    usual = moments.by_channel()[1][:, None, None]
    mean, std = moments.by_pixel()
    # A pixel that hardly varies would be blown up: its spread is a hundredth of the channel's at least.
    return np.where(np.isnan(mean), stand_in, mean), np.where(np.isnan(std), usual, np.maximum(std, 0.01 * usual))


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
