"""What a regressor knows of its training data: means, spreads, masks and the maps of simple predictions."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from smoe.errors import DataError
from smoe.gridded.alignment import Pairs
from smoe.gridded.field_moments import FieldMoments
from smoe.gridded.field_source import Channel
from smoe.gridded.field_table import FieldTable
from smoe.gridded.time_labels import TimeLabels
from smoe.regression.options import Normalisation

_MONTHS = 12
# A monthly climatology needs a year at least of each month.
_FEWEST_PER_MONTH = 2


@dataclass(frozen=True)
class Statistics:
    """Numbers from the training part alone; C inputs, K targets; `h, w` are the grid, or 1 and 1.

    Attributes:
        input_mean: Mean of each input, float32, `(C, h, w)`.
        input_std: Spread of each input, `(C, h, w)`.
        input_fill: Mean of each input at each pixel, which replaces missing values, `(C, H, W)`.
        target_mean: Mean of each target, less its reference if it has one, `(K, h, w)`.
        target_std: Spread of the same, `(K, h, w)`.
        mean_error: Mean of target less reference at each pixel; NaN for targets without one, `(K, H, W)`.
        climatology: Mean of the targets at each pixel, of all times `(1, K, H, W)` or of each month `(12, K, H, W)`.
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
    reference: np.ndarray
    target_mask: np.ndarray

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Names of all arrays."""
        return tuple(each.name for each in fields(cls))

    def normalise_inputs(self, inputs: np.ndarray) -> np.ndarray:
        """Inputs `(N, C, H, W)` of mean 0 and spread 1; missing values have the pixel's mean."""
        filled = np.where(np.isnan(inputs), self.input_fill, inputs)
        return ((filled - self.input_mean) / self.input_std).astype(np.float32)

    def references(self, inputs: np.ndarray) -> np.ndarray:
        """What each target is predicted relative to, in its units, `(N, K, H, W)`; 0 for targets without one."""
        found = inputs[:, self.reference]
        found = np.where(np.isnan(found), self.input_fill[self.reference], found)
        return np.where((self.reference >= 0)[:, None, None], found, np.float32(0.0))

    def normalise_targets(self, targets: np.ndarray, inputs: np.ndarray) -> np.ndarray:
        """Targets `(N, K, H, W)` less their references, of mean 0 and spread 1; NaN stays NaN."""
        return ((targets - self.references(inputs) - self.target_mean) / self.target_std).astype(np.float32)

    def denormalise(self, outputs: np.ndarray, inputs: np.ndarray) -> np.ndarray:
        """Outputs `(N, K, n, H, W)` in the units of the targets."""
        scaled = outputs * self.target_std[:, None] + self.target_mean[:, None]
        return (scaled + self.references(inputs)[:, :, None]).astype(np.float32)


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
            if inputs[number].units != target.units:
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
    return is_named and one.level == target.level


def gather_statistics(
    inputs: FieldTable,
    targets: FieldTable,
    pairs: Pairs,
    reference: np.ndarray,
    normalisation: Normalisation,
    block_bytes: int = 1 << 28,
) -> Statistics:
    """Reads the training samples once, in blocks.

    Args:
        inputs: Fields of the inputs.
        targets: Fields of the targets.
        pairs: Training samples.
        reference: Input that each target continues, or -1.
        normalisation: Over each channel or each pixel.
        block_bytes: Most bytes of the fields that are read at once; about four times as much is held.

    Raises:
        DataError: If a target or an input does not vary.
    """
    calendar = TimeLabels(pairs.valid, pairs.calendar)
    months = calendar.months(pairs.valid) % _MONTHS
    grid = inputs.always_missing.shape[1:]
    num_targets = len(targets.channels)
    of_inputs = FieldMoments((len(inputs.channels), *grid))
    of_targets = FieldMoments((num_targets, *grid))
    of_errors = FieldMoments((num_targets, *grid))
    present, counts = np.unique(months, return_counts=True)
    is_monthly = len(present) == _MONTHS and counts.min() >= _FEWEST_PER_MONTH
    sums = np.zeros((_MONTHS if is_monthly else 1, num_targets, *grid))
    numbers = np.zeros_like(sums)
    input_rows, target_rows = inputs.rows_of(pairs.inputs), targets.rows_of(pairs.targets)
    row_bytes = 4 * (len(inputs.channels) + num_targets) * grid[0] * grid[1]
    block = max(1, block_bytes // row_bytes)
    for first in range(0, len(pairs), block):
        chosen = slice(first, first + block)
        before, after = inputs.fields(input_rows[chosen]), targets.fields(target_rows[chosen])
        of_inputs.add(before)
        of_targets.add(after)
        of_errors.add(after - np.where((reference >= 0)[:, None, None], before[:, reference], np.float32(0.0)))
        del before
        places = months[chosen] if is_monthly else np.zeros(len(after), np.int64)
        for place in np.unique(places):
            fields_of_month = after[places == place]
            sums[place] += np.nansum(fields_of_month, axis=0, dtype=np.float64)
            numbers[place] += len(fields_of_month) - np.isnan(fields_of_month).sum(axis=0)
    _check_varies(of_targets, targets.channels, "target", "there is nothing to learn")
    _check_varies(of_inputs, inputs.channels, "input", "leave it out")
    with np.errstate(invalid="ignore"):
        climatology = np.where(numbers > 0, sums / np.maximum(numbers, 1), np.nan)
    pixel_means = of_inputs.by_pixel()[0]
    channel_means = of_inputs.by_channel()[0][:, None, None]
    input_mean, input_std = _mean_and_std(of_inputs, normalisation)
    target_mean, target_std = _mean_and_std(of_errors, normalisation)
    # A target that is its reference and a constant has no spread beside it.
    target_std = np.maximum(target_std, 1e-3 * of_targets.by_channel()[1][:, None, None])
    mean_error = np.where((reference >= 0)[:, None, None], of_errors.by_pixel()[0], np.nan)
    return Statistics(
        input_mean=input_mean.astype(np.float32),
        input_std=input_std.astype(np.float32),
        input_fill=np.where(np.isnan(pixel_means), channel_means, pixel_means).astype(np.float32),
        target_mean=target_mean.astype(np.float32),
        target_std=target_std.astype(np.float32),
        mean_error=mean_error.astype(np.float32),
        climatology=climatology.astype(np.float32),
        reference=reference,
        target_mask=~targets.always_missing,
    )


def _mean_and_std(moments: FieldMoments, normalisation: Normalisation) -> tuple[np.ndarray, np.ndarray]:
    mean, std = (each[:, None, None] for each in moments.by_channel())
    if normalisation == "channel":
        return mean, std
    pixel_mean, pixel_std = moments.by_pixel()
    # A pixel that hardly varies would be blown up: its spread is a hundredth of the channel's at least.
    return np.where(np.isnan(pixel_mean), mean, pixel_mean), np.fmax(pixel_std, 0.01 * std)


def _check_varies(moments: FieldMoments, channels: tuple[Channel, ...], what: str, remedy: str) -> None:
    means, stds = moments.by_channel()
    for channel, mean, std in zip(channels, means, stds, strict=True):
        if np.isnan(mean):
            raise DataError(f"the {what} {channel.name} has no value in the training period: {remedy}")
        # float32 gives a constant a deviation of about 1e-7 of its size.
        if not std > 1e-6 * abs(mean):
            raise DataError(f"the {what} {channel.name} is {mean:g} everywhere in the training period: {remedy}")
        is_same_in_time = moments.squares[channels.index(channel)].sum() <= 1e-12 * mean**2 * moments.count.sum()
        if what == "target" and is_same_in_time:
            raise DataError(f"the target {channel.name} is the same at all times of the training period: {remedy}")
