"""From data sets to samples: fields are read, checked, split in periods, and their statistics gathered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smoe.errors import DataError, OptionError, printable
from smoe.gridded import (
    Channel,
    FieldMoments,
    FieldSource,
    FieldTable,
    Lead,
    OpenOptions,
    Pairs,
    Period,
    Progress,
    are_same_units,
    check_apart,
    check_gaps,
    collect_fields,
    describe_invalid,
    describe_lost,
    find_outlier,
    free_memory,
    has_gap,
    import_xarray,
    open_fields,
    pair_by_time,
    parse_lead,
    parse_period,
    remaining_samples,
    samples_in,
    split_off_last,
)
from smoe.regression._nets import check_net_name
from smoe.regression._options import OwnTransform, RegressorOptions

if TYPE_CHECKING:
    import xarray as xr


class GridSamples:
    """Inputs and targets of some times, in their units."""

    def __init__(
        self,
        inputs: FieldTable,
        targets: FieldTable,
        pairs: Pairs,
        statistics: Statistics,
        lead: np.ndarray | None = None,
    ) -> None:
        self.inputs, self.targets, self.pairs, self.statistics, self.lead = inputs, targets, pairs, statistics, lead
        self.input_rows = inputs.rows_of(pairs.inputs)
        self.target_rows = targets.rows_of(pairs.targets)

    def __len__(self) -> int:
        return len(self.pairs)

    def physical(self, indices: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inputs `(N, C, H, W)` and targets `(N, K, H, W)`, NaN where values are missing."""
        chosen = np.asarray(indices, np.int64)
        return self.inputs.fields(self.input_rows[chosen]), self.targets.fields(self.target_rows[chosen])

    def take(self, rows: np.ndarray) -> GridSamples:
        lead = None if self.lead is None else self.lead[rows]
        return GridSamples(self.inputs, self.targets, self.pairs.select(rows), self.statistics, lead)

    def join(self, other: GridSamples) -> GridSamples:
        """These samples, and then others of the same fields."""
        names = ("inputs", "targets", "starts", "valid")
        parts = [np.concatenate([getattr(self.pairs, name), getattr(other.pairs, name)]) for name in names]
        pairs = Pairs(parts[0], parts[1], parts[2], parts[3], self.pairs.calendar)
        lead = None if self.lead is None or other.lead is None else np.concatenate([self.lead, other.lead])
        return GridSamples(self.inputs, self.targets, pairs, self.statistics, lead)

    def times(self, indices: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Times of the inputs and of the targets, and lead times where they differ."""
        chosen = np.asarray(indices, np.int64)
        lead = None if self.lead is None else self.lead[chosen]
        return self.pairs.starts[chosen], self.pairs.valid[chosen], lead


_FEWEST_SAMPLES = 2


@dataclass(frozen=True)
class Prepared:
    """Data that are ready for training."""

    inputs: FieldSource  # source of the inputs
    targets: FieldSource  # source of the targets
    splits: Mapping[str, GridSamples]  # samples named `train`, `validation` and `test`, if there is one
    periods: Mapping[str, Period]  # the periods of the splits but `train`, and of `train` if it was given
    statistics: Statistics  # statistics of the training samples
    lead_scale: float | None  # seconds that the channel of lead times is divided by; None without such a channel
    samples: dict[str, int]  # number of samples of each split, and of those that are left out, by the reason
    notes: tuple[str, ...]  # what a user should know of the data
    warnings: tuple[str, ...]  # what looks wrong in them


def _ignore(text: str) -> None:
    del text


def _logit(values: Any) -> Any:
    # Shares of 0 and 1 are as far as those of a thousandth.
    inside = np.where((values >= 0.0) & (values <= 1.0), np.clip(values, 1e-3, 1.0 - 1e-3), values)
    return np.log(inside / (1.0 - inside))


TRANSFORMS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "log1p": (np.log1p, np.expm1),
    "sqrt": (np.sqrt, lambda values: np.square(np.maximum(values, 0.0))),
    "logit": (_logit, lambda values: 1.0 / (1.0 + np.exp(-values))),
}
"""What targets are learned as, and the way back."""


def functions_of(transform: str) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """A transform and its inverse."""
    if isinstance(transform, OwnTransform):
        return transform.functions
    if transform == "own":
        raise DataError("the transform is one of its user's own: give it as transform=(function, inverse)")
    return TRANSFORMS[transform]


def transformed(dataset: Any, names: Sequence[str], transform: str | None) -> Any:
    """A data set with some of its variables transformed."""
    if transform is None:
        return dataset

    def checked(values: Any, name: str) -> Any:
        with np.errstate(invalid="ignore", divide="ignore"):
            found = functions_of(transform)[0](values)
        is_lost = ~np.isfinite(found) & np.isfinite(values)
        if is_lost.any():
            value = float(values[is_lost][0])
            raise DataError(f"{name} is {value:g}, of which there is no {transform}: use another transform")
        return found

    for name in dict.fromkeys(names):
        array = dataset[name]
        low, high = array.attrs.get("valid_range", (array.attrs.get("valid_min"), array.attrs.get("valid_max")))
        kept = array if low is None else array.where(array >= low)
        kept = kept if high is None else kept.where(kept <= high)
        found = import_xarray().apply_ufunc(
            checked, kept, kwargs={"name": name}, dask="parallelized", output_dtypes=[np.float32]
        )
        found.attrs = {key: value for key, value in array.attrs.items() if not key.startswith("valid_")}
        found.encoding = array.encoding
        dataset = dataset.assign({name: found})
    return dataset


def join_leads(lead: Any) -> str:
    """A lead, or several (a list, or text with commas) in ascending order, as text that `config.json` keeps."""
    given = lead.split(",") if isinstance(lead, str) else lead if isinstance(lead, (list, tuple)) else [lead]
    found = sorted({parse_lead(each) for each in given}, key=lambda each: (each.months, each.seconds))
    if len({bool(each.months) for each in found}) > 1:
        raise OptionError(f"leads are in months or in days and hours, not in both, got {lead!r}")
    return ", ".join(map(str, found))


def lead_name(variable: str, lead: str) -> str:
    """Name of a variable at one of several leads, such as `t2m_6h`."""
    return f"{variable}_{lead.replace(' ', '_')}"


def open_targets(
    y: Any, options: RegressorOptions, variables: Any, open_options: OpenOptions | None
) -> tuple[xr.Dataset, Sequence[str] | None]:
    """The targets as a data set, and the variables of it to use; for several leads, one variable for each.

    At the time of the last lead lies what was before it, at the time of each other lead: a sample has one time.
    """
    dataset = open_fields(y, "targets", options.location, variables, open_options)
    if len(options.leads) < 2:
        return dataset, variables
    source = FieldSource(dataset, variables, "targets")
    time, labels, last = source.axes.time, source.labels, parse_lead(options.last_lead)
    if labels is None or time is None:
        return dataset, variables
    rows = []
    for each in map(parse_lead, options.leads):
        row = np.arange(len(labels))
        if each != last:
            pairs = pair_by_time(labels, labels, Lead(last.seconds - each.seconds, last.months - each.months))
            row = np.full(len(labels), -1)
            row[pairs.targets] = pairs.inputs
        rows.append(row)
    kept = np.flatnonzero((np.stack(rows) >= 0).all(axis=0))
    names = list(source.variable_axes)
    times = {str(name): each.isel({time: kept}) for name, each in dataset.coords.items() if time in each.dims}
    fields = {
        lead_name(name, lead): dataset[name].isel({time: row[kept]}).drop_vars(times).assign_coords(times)
        for name in names
        for lead, row in zip(options.leads, rows, strict=True)
    }
    return dataset.drop_vars(names).isel({time: kept}).assign(fields), list(fields)


def without_lead(channels: Sequence[Channel], options: RegressorOptions) -> tuple[Channel, ...]:
    """Channels of several leads with the names of their variables."""
    if len(options.leads) < 2:
        return tuple(channels)
    ends = [lead_name("", lead) for lead in options.leads]
    return tuple(
        replace(each, variable=each.variable.removesuffix(next(end for end in ends if each.variable.endswith(end))))
        for each in channels
    )


def open_sources(
    x: Any,
    y: Any,
    options: RegressorOptions,
    input_variables: Any = None,
    target_variables: Any = None,
    open_options: OpenOptions | None = None,
) -> tuple[FieldSource, FieldSource]:
    """Opens inputs and targets and compares their grids."""
    opened = open_fields(x, "inputs", options.location, input_variables, open_options)
    inputs = FieldSource(opened, input_variables, "inputs", with_series=True)
    of_targets, target_variables = open_targets(y, options, target_variables, open_options)
    targets = FieldSource(of_targets, target_variables, "targets")
    if options.transform is not None:
        same = find_references(inputs.channels, without_lead(targets.channels, options))
        names = [inputs.channels[number].variable for number in same if number >= 0]
        inputs = FieldSource(transformed(opened, names, options.transform), input_variables, "inputs", with_series=True)
        names = [channel.variable for channel in targets.channels]
        targets = FieldSource(transformed(of_targets, names, options.transform), target_variables, "targets")
    check_net_name(options.net, targets.grid)
    if targets.lead_times is not None:
        raise DataError(
            "the targets are forecasts with start and lead times: targets have a valid time only; were inputs and "
            "targets swapped?"
        )
    if targets.labels is None or inputs.labels is None:
        which = "targets" if targets.labels is None else "inputs"
        raise DataError(f"the {which} have no time dimension: a regressor learns from many times")
    if any(channel.is_static for channel in targets.channels):
        static = next(channel.name for channel in targets.channels if channel.is_static)
        raise DataError(f"the target {static} does not depend on time: give it among the inputs, or leave it out")
    for source in (inputs, targets):
        assert source.labels is not None
        if len(source.labels) < _FEWEST_SAMPLES:
            raise DataError(f"the {source.where} have one time step only: a regressor learns from many times")
    difference = inputs.grid.difference(targets.grid)
    if difference is not None:
        if not options.regrid:
            raise DataError(
                f"inputs and targets are on different grids, {difference}; regrid one of them, or set regrid"
            )
        inputs.regrid_to(targets.grid)
    return inputs, targets


def pair_sources(inputs: FieldSource, targets: FieldSource, options: RegressorOptions) -> Pairs:
    """Aligns inputs and targets by time."""
    assert inputs.labels is not None
    assert targets.labels is not None
    lead = parse_lead(options.last_lead)
    if inputs.lead_times is None:
        return pair_by_time(inputs.labels, targets.labels, lead)
    if len(options.leads) > 1:
        raise DataError(f"the forecasts have lead times of their own: give one lead, or none, not {options.lead}")
    pairs = pair_by_time(inputs.labels, targets.labels, parse_lead(None), lead_times=inputs.lead_times)
    if options.lead is None:
        return pairs
    has_lead = inputs.lead_times[pairs.inputs % len(inputs.lead_times)] == lead.seconds
    if not has_lead.any():
        known = ", ".join(f"{seconds / 3600:g}h" for seconds in inputs.lead_times)
        raise DataError(f"the forecasts have no lead time {options.lead}, but {known}")
    return pairs.select(has_lead)


def split_pairs(
    pairs: Pairs, given: Mapping[str, Any], options: RegressorOptions
) -> tuple[dict[str, Pairs], dict[str, Period]]:
    """Samples of `train`, `validation` and, if it is given, `test`; contiguous and at least the lead apart."""
    first, last = int(min(pairs.starts.min(), pairs.valid.min())), int(max(pairs.starts.max(), pairs.valid.max()))
    periods = {
        name: parse_period(period, pairs.calendar, first, last) for name, period in given.items() if period is not None
    }
    if "validation" not in periods:
        usable = samples_in(pairs.starts, pairs.valid, periods["train"]) if "train" in periods else None
        if usable is None:
            usable = remaining_samples(pairs.starts, pairs.valid, periods)
        if not usable.any():
            raise DataError("no sample is left to validate with: give the period validation")
        periods["validation"] = split_off_last(
            pairs.starts[usable], pairs.valid[usable], options.validation_share, pairs.calendar
        )
        if "train" in periods:
            periods["train"] = Period(periods["train"].start, periods["validation"].start, pairs.calendar)
    check_apart(periods)
    chosen = {name: samples_in(pairs.starts, pairs.valid, period) for name, period in periods.items()}
    if "train" not in chosen:
        # Targets before and inputs after the other periods: none of their times is learned from.
        chosen["train"] = remaining_samples(pairs.starts, pairs.valid, periods)
    splits = {name: pairs.select(which) for name, which in chosen.items()}
    for name, split in splits.items():
        if len(split) < (_FEWEST_SAMPLES if name == "train" else 1):
            where = f" ({periods[name]})" if name in periods else ""
            raise DataError(
                f"{name}{where} holds {len(split)} samples of {len(pairs)}, which lie from {_span(pairs)}: choose "
                "another period, or a longer one"
            )
    return splits, periods


def _span(pairs: Pairs) -> str:
    return str(Period(int(pairs.starts.min()), int(pairs.valid.max()) + 1, pairs.calendar))


def prepare(
    x: Any,
    y: Any,
    options: RegressorOptions,
    periods: Mapping[str, Any],
    *,
    input_variables: Any = None,
    target_variables: Any = None,
    open_options: OpenOptions | None = None,
    cache: Path,
    notify: Callable[[str], None] = _ignore,
    progress: Progress | None = None,
) -> Prepared:
    """Makes samples of inputs and targets."""
    inputs, targets = open_sources(x, y, options, input_variables, target_variables, open_options)
    reference = find_references(inputs.channels, without_lead(targets.channels, options))
    pairs = pair_sources(inputs, targets, options)
    splits, found_periods = split_pairs(pairs, periods, options)
    used = np.unique(np.concatenate([split.inputs for split in splits.values()]))
    used_targets = np.unique(np.concatenate([split.targets for split in splits.values()]))
    num_inputs = inputs.num_positions
    if inputs.lead_times is not None and options.lead is not None:
        num_inputs //= len(inputs.lead_times)
    num_in_periods = sum(map(len, splits.values()))
    folders = _folders(inputs, targets, len(used), len(used_targets), options, cache, notify)
    limit = memory_limit(options)
    _warn_of_large_chunks(targets, limit, notify)
    target_table = collect_fields(targets, used_targets, folder=folders[1], block_bytes=limit // 16, progress=progress)
    check_gaps(target_table, targets, options.missing)
    _warn_of_large_chunks(inputs, limit, notify)
    input_table = collect_fields(inputs, used, folder=folders[0], block_bytes=limit // 16, progress=progress)
    check_gaps(input_table, inputs, options.missing)
    if options.missing == "drop":
        splits = {name: _without_gaps(split, input_table, target_table) for name, split in splits.items()}
        for name, split in splits.items():
            if not len(split):
                raise DataError(f"every sample of {name} has missing values: set missing to 'fill', or mend the data")
    counts = {name: len(splits[name]) for name in ("train", "validation", "test") if name in splits}
    left_out = {
        f"without a target{'' if options.lead is None else f' {options.last_lead} later'}": num_inputs - len(pairs),
        "outside of the periods": len(pairs) - num_in_periods,
        "with missing values": num_in_periods - sum(counts.values()),
    }
    left_out = {reason: count for reason, count in left_out.items() if count}
    notes = (*inputs.notes, *targets.notes, _describe_samples(counts, left_out))
    notes += tuple(
        f"{name} of {source.where}: {describe_invalid(source, name)}, they count as missing"
        for source in (inputs, targets)
        for name in source.num_invalid
    )
    if options.lower is None and options.transform is None:
        # Some times tell: zeros are many where there is no rain or ice.
        some = target_table.values[:: max(1, len(target_table.values) // 200)]
        notes += tuple(
            f"{channel.name} is never below 0 and often 0, but predictions may be below: set lower to 0"
            for number, channel in enumerate(targets.channels)
            if np.nanmin(some[:, number], initial=1.0) == 0.0 and np.mean(some[:, number] == 0.0) > 0.01
        )
    lost = None
    if inputs.lead_times is None and inputs.labels is not None and targets.labels is not None:
        lost = describe_lost(inputs.labels, targets.labels, parse_lead(options.last_lead))
    outliers = (find_outlier(input_table, inputs), find_outlier(target_table, targets))
    statistics = gather_statistics(input_table, target_table, splits["train"], reference)
    leads = inputs.lead_times
    scale = float(leads.max()) if leads is not None and len(leads) > 1 and options.lead is None else None
    samples = {
        name: GridSamples(input_table, target_table, split, statistics, lead_channel(split.inputs, leads, scale))
        for name, split in splits.items()
    }
    # Names come from files, and lines go to terminals.
    notes = tuple(map(printable, notes))
    for note in notes:
        notify(note)
    warnings = tuple(printable(each) for each in (lost, *outliers) if each is not None)
    return Prepared(inputs, targets, samples, found_periods, statistics, scale, {**counts, **left_out}, notes, warnings)


def _describe_samples(counts: Mapping[str, int], left_out: Mapping[str, int]) -> str:
    used = ", ".join(f"{count} {name}" for name, count in counts.items())
    lost = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
    return f"samples: {used}{f'; left out: {lost}' if lost else ''}"


def lead_channel(positions: np.ndarray, lead_times: np.ndarray | None, scale: float | None) -> np.ndarray | None:
    """Lead time of each sample in units of the longest, for forecasts of several lead times."""
    if scale is None:
        return None
    assert lead_times is not None
    return lead_times[positions % len(lead_times)] / scale


def memory_limit(options: RegressorOptions) -> int:
    """Bytes that data may take in memory."""
    if options.max_memory_gb is not None:
        return int(options.max_memory_gb * 1e9)
    return free_memory() // 2


def _folders(
    inputs: FieldSource, targets: FieldSource, num_inputs: int, num_targets: int, options: RegressorOptions,
    cache: Path, notify: Callable[[str], None],
) -> tuple[Path | None, Path | None]:  # fmt: skip
    needed = inputs.num_bytes * num_inputs // inputs.num_positions
    needed += targets.num_bytes * num_targets // targets.num_positions
    limit = memory_limit(options)
    if needed <= limit:
        return None, None
    notify(
        f"the fields take {needed / 1e9:.2f} GB, more than the {limit / 1e9:.2f} GB of memory for them: they are "
        f"streamed into {cache}, which needs as much disk"
    )
    return cache / "inputs", cache / "targets"


def _warn_of_large_chunks(source: FieldSource, limit: int, notify: Callable[[str], None]) -> None:
    pixels = source.grid.shape[0] * source.grid.shape[1]
    chunk = 4 * source.time_chunk * pixels * len(source.channels)
    if chunk > limit // 4:
        notify(
            f"one chunk of the {source.where} holds {source.time_chunk} times, {chunk / 1e9:.2f} GB: reading it needs "
            "as much memory; rewrite the file with fewer times in a chunk"
        )


def _without_gaps(pairs: Pairs, inputs: FieldTable, targets: FieldTable) -> Pairs:
    is_bad = has_gap(inputs)[inputs.rows_of(pairs.inputs)] | has_gap(targets)[targets.rows_of(pairs.targets)]
    return pairs.select(~is_bad)


@dataclass(frozen=True)
class Statistics:
    """Numbers from the training part alone; C inputs, K targets."""

    input_mean: np.ndarray  # mean of each input at each pixel, float32, `(C, H, W)`; of a static input, over the grid
    input_std: np.ndarray  # standard deviation of the same
    # what replaces missing values: the mean of the pixel; where there is none, the mean of the target that
    # continues the input, else of the channel
    input_fill: np.ndarray
    mean_error: np.ndarray  # mean of target less reference at each pixel; NaN for targets without one, `(K, H, W)`
    reference: np.ndarray  # input that each target continues, or -1, `(K,)`
    target_mask: np.ndarray  # pixels where targets have values, `(K, H, W)`

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


def find_references(inputs: tuple[Channel, ...], targets: tuple[Channel, ...]) -> np.ndarray:
    """Input that each target continues: of the same name or standard name, with the same level and units."""
    found = []
    for target in targets:
        same = [i for i, one in enumerate(inputs) if _is_same(one, target) and not one.is_static]
        # Daily minimum and maximum have one standard name: the name in the file tells them apart.
        chosen = min(same, key=lambda number: inputs[number].variable != target.variable, default=-1)
        if same and not are_same_units(inputs[chosen].units, target.units):
            raise DataError(
                f"{target.name} is in {target.units or '(no units)'!r} among the targets and its like among the "
                f"inputs, {inputs[chosen].name}, in {inputs[chosen].units or '(no units)'!r}: convert one of them"
            )
        found.append(chosen)
    return np.asarray(found, np.int64)


def _is_same(one: Channel, target: Channel) -> bool:
    # GRIB's readers call what has no standard name unknown.
    has_standard = one.standard_name not in ("", "unknown") and one.standard_name == target.standard_name
    is_named = one.variable == target.variable or has_standard
    # A target may be one level of an input: `data["z"].sel(level=500)`.
    is_selected = target.level is None and one.level is not None and one.level == target.selected_level
    return is_named and (one.level == target.level or is_selected)


# Standard deviations beyond which normalising overflows in float32.
_SMALLEST, _LARGEST = 1e-35, 1e35
# Bytes of the fields of one step; a few times as much is held.
_PIECE_BYTES = 1 << 26


def gather_statistics(inputs: FieldTable, targets: FieldTable, pairs: Pairs, reference: np.ndarray) -> Statistics:
    """Statistics of the training samples."""
    num_targets, *grid = targets.always_missing.shape
    of_inputs, of_targets, of_errors = (
        FieldMoments((count, *grid)) for count in (len(inputs.channels), num_targets, num_targets)
    )
    has_reference = (reference >= 0)[:, None, None]
    input_rows, target_rows = inputs.rows_of(pairs.inputs), targets.rows_of(pairs.targets)
    step = max(1, _PIECE_BYTES // (4 * (len(inputs.channels) + num_targets) * grid[0] * grid[1]))
    for first in range(0, len(pairs), step):
        rows = slice(first, first + step)
        before, after = inputs.fields(input_rows[rows]), targets.fields(target_rows[rows])
        of_inputs.add(before)
        of_targets.add(after)
        of_errors.add(after - np.where(has_reference, before[:, reference], np.float32(0.0)))
    _check_varies(of_targets, targets.channels, "target", "there is nothing to learn")
    _check_varies(of_inputs, inputs.channels, "input", "leave it out")
    for number in np.flatnonzero(reference >= 0):
        if not of_errors.means[number].any() and not of_errors.squares[number].any():
            raise DataError(
                f"the target {targets.channels[number].name} is the same as the input "
                f"{inputs.channels[reference[number]].name} at all times of the training period: did you forget "
                "lead (--lead)? Leave it out of the inputs"
            )
    target_mean = of_targets.by_pixel()[0]
    input_mean, input_std = of_inputs.by_pixel()
    means, usual = (each[:, None, None] for each in of_inputs.by_channel())
    fill = input_mean.copy()
    for target, channel in enumerate(reference):
        if channel >= 0:
            fill[channel] = np.where(np.isnan(fill[channel]), target_mean[target], fill[channel])
    fill = np.where(np.isnan(fill), means, fill)
    is_static = np.asarray([channel.is_static for channel in inputs.channels])[:, None, None]
    # Clip the standard deviation of a pixel at 1 % of the channel's, to avoid amplifying noise.
    input_std = np.where(np.isnan(input_std), usual, np.maximum(input_std, 0.01 * usual))
    # A target without a value of its reference is corrected from what stands in for it.
    errors = of_errors.by_pixel()[0]
    errors = np.where(np.isnan(errors), target_mean - fill[reference], errors)
    return Statistics(
        input_mean=np.where(is_static, means, np.where(np.isnan(input_mean), fill, input_mean)).astype(np.float32),
        input_std=np.where(is_static, usual, input_std).astype(np.float32),
        input_fill=fill.astype(np.float32),
        mean_error=np.where(has_reference, errors, np.nan).astype(np.float32),
        reference=reference,
        target_mask=~targets.always_missing,
    )


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
