"""Fields of many times, in memory or in a memory-mapped file that goes on where it was stopped."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smoe._files import read_ahead, write_atomically
from smoe.errors import DataError
from smoe.gridded._source import Channel, FieldSource


class FieldStream:
    """Rows of float32 in `fields.f32`, and the number of those that have reached the disk in `fields.json`.

    A journal with another plan is not continued. `values` is the file, mapped into memory; `done` counts the rows that
    an earlier stream left.
    """

    def __init__(self, folder: Path, shape: tuple[int, ...], plan: dict[str, Any]) -> None:
        self._data, self._journal, self._plan = folder / "fields.f32", folder / "fields.json", plan
        num_bytes, self.done = 4 * int(np.prod(shape, dtype=np.int64)), 0
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(OSError, ValueError, KeyError, TypeError):
            # A journal that is damaged, or of other fields, says nothing: the rows are read again.
            content = json.loads(self._journal.read_text())
            if content["plan"] == plan and self._data.stat().st_size == num_bytes:
                self.done = int(content["done"])
        if not self.done:
            if num_bytes > (free := shutil.disk_usage(folder).free):
                sizes = f"{free / 1e9:.1f} GB free, fields need {num_bytes / 1e9:.1f} GB"
                raise DataError(f"{folder} has {sizes}: choose another folder")
            self._journal.unlink(missing_ok=True)
            with self._data.open("wb") as file:
                file.truncate(num_bytes)
        self.values = np.memmap(self._data, np.float32, "r", shape=shape) if num_bytes else np.empty(shape, np.float32)

    def write(self, rows: slice, block: np.ndarray) -> None:
        try:
            # Written, not mapped: mapped pages that wait for the disk would count as memory of the process.
            with self._data.open("r+b") as file:
                file.seek(rows.start * self.values[0].nbytes)
                file.write(np.ascontiguousarray(block, np.float32).data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise DataError(f"{self._data} cannot be written: {error.strerror or error}") from error
        text = json.dumps({"plan": self._plan, "done": rows.stop}) + "\n"
        write_atomically(self._journal, lambda file: file.write(text.encode()))


# Those that programs write: CMIP, the NetCDF library, GrADS, and usual ones by hand. Not 9999, a usual largest value.
_MARKS = np.asarray(
    [1e20, -1e20, 9.969209968386869e36, 1e30, -1e30, 1e34, -1e34, 9.999e20, -9.99e8, -999.0, -9999.0, -99999.0,
     -32768.0, -32767.0], np.float32,
)  # fmt: skip

Progress = Callable[[int, int], None]
"""Called with the number of fields that are ready and the number of all."""


@dataclass(frozen=True)
class FieldTable:
    channels: tuple[Channel, ...]  # in the order of the source
    positions: np.ndarray  # position in the source of each row, ascending, `(N,)`
    values: np.ndarray  # channels that depend on time, float32, `(N, C', H, W)`; an array or a memory map
    static: np.ndarray  # channels that do not, float32, `(C - C', H, W)`
    num_missing: np.ndarray  # missing values of each row and channel, `(N, C)`
    always_missing: np.ndarray  # pixels without a value at any row, `(C, H, W)`
    ever_missing: np.ndarray  # pixels without a value at some row, `(C, H, W)`
    lows: np.ndarray  # smallest value of each row and channel that depends on time, `(N, C')`
    highs: np.ndarray  # largest value of the same

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def has_steady_gaps(self) -> np.ndarray:
        """Whether the missing pixels of each channel are the same at all rows, `(C,)`."""
        return (self.always_missing == self.ever_missing).all(axis=(1, 2))

    def rows_of(self, positions: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.positions, positions)

    def fields(self, rows: np.ndarray) -> np.ndarray:
        dynamic, is_static = np.ascontiguousarray(self.values[rows]), _is_static(self.channels)
        if not len(self.static):
            return dynamic
        output = np.empty((len(dynamic), len(is_static), *dynamic.shape[2:]), np.float32)
        output[:, ~is_static], output[:, is_static] = dynamic, self.static
        return output


def _is_static(channels: tuple[Channel, ...]) -> np.ndarray:
    return np.asarray([channel.is_static for channel in channels], dtype=bool)


def collect_fields(
    source: FieldSource,
    positions: np.ndarray,
    *,
    folder: Path | None = None,
    block_bytes: int = 1 << 28,
    progress: Progress | None = None,
) -> FieldTable:
    """Reads fields into memory, or streams them into a file that is mapped into memory. The source is read once.

    A block is read while the one before is worked on. A stream that was stopped goes on from the last block.
    """
    positions = np.unique(np.asarray(positions, np.int64))
    channels, is_static = source.channels, _is_static(source.channels)
    shape = (len(positions), int((~is_static).sum()), *source.grid.shape)
    static = np.empty((0, *source.grid.shape), np.float32)
    if is_static.any():
        static = source.read(positions[:1])[0, is_static]
        _check_block(static[None], [c for c in channels if c.is_static], source, positions[:1])
    step = block_rows(source, block_bytes)
    gaps = _Gaps(len(positions), is_static, static)
    if folder is None:
        values, done = np.empty(shape, np.float32), 0
        write = values.__setitem__
    else:
        stream = FieldStream(folder, shape, _plan(source, positions, shape))
        values, done, write = stream.values, stream.done, stream.write
    for first in range(0, done, step):
        gaps.add(first, np.asarray(values[first : min(first + step, done)]))
    firsts = range(done, len(positions), step)
    for first, block in read_ahead(lambda first: source.read(positions[first : first + step]), firsts):
        dynamic = block[:, ~is_static] if is_static.any() else block
        _check_block(dynamic, [c for c in channels if not c.is_static], source, positions[first:])
        gaps.add(first, dynamic)
        write(slice(first, first + len(block)), dynamic)
        if progress is not None:
            progress(first + len(block), len(positions))
    found = gaps.counts, gaps.always, gaps.ever, gaps.lows, gaps.highs
    return FieldTable(channels, positions, values, static, *found)


def block_rows(source: FieldSource, block_bytes: int) -> int:
    """Rows that are read at once: as many as fit, in whole chunks of the file.

    A chunk is read as a whole in any case: one that is up to four times too large is a block, so that it is read once.
    """
    row_bytes = 4 * len(source.channels) * source.grid.shape[0] * source.grid.shape[1]
    # Reading and converting holds the block about twice.
    rows = max(1, block_bytes // (2 * row_bytes))
    chunk = source.time_chunk * source.num_leads
    return rows // chunk * chunk if rows >= chunk else chunk if chunk <= 4 * rows else rows


def free_memory(root: Path = Path("/")) -> int:
    """Bytes of memory that are free: of the machine, or of what the control group of this process may take."""
    free = 8 << 30
    with suppress(OSError, StopIteration, ValueError):
        lines = (root / "proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    groups = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/memory"]
    with suppress(OSError):
        own = [line.split(":", 2)[2].lstrip("/") for line in (root / "proc/self/cgroup").read_text().splitlines()]
        groups = [group / path for group in groups for path in ("", *own)]
    names = ("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")
    for group, (limit, used) in itertools.product(groups, names):
        # Without a limit, the text is `max`.
        with suppress(OSError, ValueError):
            rest = int((group / limit).read_text()) - int((group / used).read_text())
            # What was read from files is given back when it is needed.
            cached = [line.split() for line in (group / "memory.stat").read_text().splitlines()]
            free = min(free, max(0, rest) + sum(int(size) for name, size in cached if name == "inactive_file"))
    return free


class _Gaps:
    """Missing values and ranges of the rows, which come in blocks of the channels that depend on time."""

    def __init__(self, num_rows: int, is_static: np.ndarray, static: np.ndarray) -> None:
        self._dynamic = ~is_static
        self.always, self.ever = (np.full((len(is_static), *static.shape[1:]), value) for value in (True, False))
        self.always[is_static] = self.ever[is_static] = np.isnan(static)
        self.counts = np.zeros((num_rows, len(is_static)), np.int32)
        self.counts[:, is_static] = np.isnan(static).sum(axis=(1, 2))
        self.lows, self.highs = np.zeros((2, num_rows, int(self._dynamic.sum())), np.float32)

    def add(self, first: int, block: np.ndarray) -> None:
        rows = slice(first, first + len(block))
        self.lows[rows], self.highs[rows] = (end.reduce(block, axis=(2, 3)) for end in (np.fmin, np.fmax))
        missing = np.isnan(block)
        self.always[self._dynamic] &= missing.all(axis=0)
        self.ever[self._dynamic] |= missing.any(axis=0)
        self.counts[rows, self._dynamic] = missing.sum(axis=(2, 3))


def _check_block(block: np.ndarray, channels: list[Channel], source: FieldSource, positions: np.ndarray) -> None:
    def refuse(is_wrong: np.ndarray, what: str, remedy: str) -> None:
        row, channel = (int(place[0]) for place in np.nonzero(is_wrong.any(axis=(2, 3))))
        at = describe_position(source, int(positions[row]), channels[channel])
        count = int(is_wrong[row, channel].sum())
        raise DataError(f"{channels[channel].name} of {source.where} has {count} {what}{at}{remedy}")

    if (infinite := np.isinf(block)).any():
        refuse(infinite, "infinite values", ": correct the file or mark them as missing")
    if (found := find_mark(block)) is not None:
        channel, mark = found
        is_mark = np.zeros(block.shape, bool)
        is_mark[:, channel] = block[:, channel] == np.float32(mark)
        remedy = f"declare it by the attribute _FillValue, or mask it by .where(data != {mark:g})"
        refuse(is_mark, f"values of {mark:g}", f", which look like a mark of missing values: {remedy}")


def find_mark(fields: np.ndarray) -> tuple[int, float] | None:
    """The first channel with a number that is not a value but a mark, and that number.

    A mark is one of the usual numbers, if it is farther from all other values than these are from each other.
    """
    for channel in range(fields.shape[1]):
        values = fields[:, channel]
        for end in (np.fmin.reduce(values, axis=None), np.fmax.reduce(values, axis=None)):
            if (end == _MARKS).any() and _is_apart(values, end):
                return channel, float(end)
    return None


def _is_apart(values: np.ndarray, mark: np.floating) -> bool:
    others = values[~(np.isnan(values) | (values == mark))]
    if not others.size:
        return False
    low, high = float(others.min()), float(others.max())
    return min(abs(float(mark) - low), abs(float(mark) - high)) > high - low


def describe_position(source: FieldSource, position: int, channel: Channel | None = None) -> str:
    """The time of a position as ` at 2016-01-01`, or nothing for fields without time."""
    if source.labels is None or (channel is not None and channel.is_static):
        return ""
    return f" at {source.labels.text(int(source.labels.seconds[position // source.num_leads]))}"


def _plan(source: FieldSource, positions: np.ndarray, shape: tuple[int, ...]) -> dict[str, Any]:
    times = b"" if source.labels is None else source.labels.seconds.tobytes()
    origin = source.dataset.encoding.get("source")
    changed = os.stat(origin).st_mtime_ns if isinstance(origin, str) and os.path.exists(origin) else None
    return {
        "channels": [channel.name for channel in source.channels],
        "grid": source.grid.hash,
        "positions": hashlib.sha256(positions.tobytes() + times).hexdigest(),
        "shape": list(shape),
        "changed": changed,
    }


# Times whose moments are taken at once.
_MOST_ROWS = 64


class FieldMoments:
    """Count, mean and sum of squared deviations from it at each pixel `(C, H, W)`; missing values do not count."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count, self.means, self.squares = np.zeros((3, *shape))

    def add(self, fields: np.ndarray) -> None:
        """Adds fields `(N, C, H, W)`: the moments of two sets are those of each and the distance of their means."""
        for first in range(0, len(fields), _MOST_ROWS):
            piece = fields[first : first + _MOST_ROWS].astype(np.float64)
            missing = np.isnan(piece)
            count = len(piece) - missing.sum(axis=0)
            total = self.count + count
            piece[missing] = 0.0
            means = piece.sum(axis=0) / np.maximum(count, 1)
            piece -= means
            piece[missing] = 0.0
            share, apart = count / np.maximum(total, 1), means - self.means
            self.squares += np.einsum("nchw,nchw->chw", piece, piece) + np.square(apart) * self.count * share
            self.means += apart * share
            self.count = total

    def by_channel(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation over times and pixels, each `(C,)`; NaN for a channel without values."""
        count = self.count.sum(axis=(1, 2))
        safe = np.where(count > 0, count, np.nan)
        mean = (self.count * self.means).sum(axis=(1, 2)) / safe
        between = (self.count * np.square(self.means - mean[:, None, None])).sum(axis=(1, 2))
        return mean, np.sqrt((self.squares.sum(axis=(1, 2)) + between) / safe)

    def by_pixel(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation over times, each `(C, H, W)`; NaN at pixels without values."""
        safe = np.where(self.count > 0, self.count, np.nan)
        return self.means + 0.0 * safe, np.sqrt(self.squares / safe)


# Robust standard deviations from the median beyond which the values of a time may be wrong, and values to find these.
_FAR, _SAMPLED = 10.0, 200_000


def check_gaps(table: FieldTable, source: FieldSource, policy: str) -> None:
    """Refuses channels without any value, and gaps that change with time unless a policy is named."""
    for number, channel in enumerate(table.channels):
        if table.always_missing[number].all():
            raise DataError(f"{channel.name} of {source.where} has no value at all: leave it out")
        if table.has_steady_gaps[number] or policy != "refuse":
            continue
        steady = int(table.always_missing[number].sum())
        rows = np.flatnonzero(table.num_missing[:, number] > steady)
        count = int(table.num_missing[rows[0], number]) - steady
        why = describe_invalid(source, channel.variable)
        raise DataError(
            f"{channel.name} of {source.where} has {count} missing values"
            f"{describe_position(source, int(table.positions[rows[0]]), channel)} that are there at other times, and "
            f"such gaps at {len(rows)} of {len(table)} times{f' ({why})' if why else ''}: set missing to 'drop' to "
            "leave these times out or to 'fill' to fill them"
        )


def describe_invalid(source: FieldSource, variable: str) -> str:
    """How many values of a variable are missing because they lie outside of its valid range; nothing if none are."""
    if variable not in source.num_invalid:
        return ""
    low, high = source.valid_ranges[variable]
    return f"{source.num_invalid[variable]} values lie outside of its valid range, {low:g} to {high:g}"


def has_gap(table: FieldTable) -> np.ndarray:
    """Whether a row has missing values beyond those that are missing at all rows, `(N,)`."""
    steady = table.always_missing.sum(axis=(1, 2))
    return (table.num_missing > steady).any(axis=1)


def find_outlier(table: FieldTable, source: FieldSource) -> str | None:
    """The value that is farthest from all others, if it is so far that it must be wrong; in words.

    Times with values beyond ten robust standard deviations from the median count if they are fewer than half, and each
    of them is farther from the values of the others than these are from each other: rain comes in all amounts.
    """
    dynamic = [channel for channel in table.channels if not channel.is_static]
    for number, channel in enumerate(dynamic):
        lows, highs = table.lows[:, number], table.highs[:, number]
        values = table.values[:: max(1, len(table) // 16), number].ravel()
        values = values[:: max(1, values.size // _SAMPLED)].astype(np.float64)
        values = values[~np.isnan(values)]
        if not values.size:
            continue
        median = np.median(values)
        limit = _FAR * 1.4826 * np.median(np.abs(values - median))
        is_far = np.fmax(highs - median, median - lows) > limit
        is_usual = ~(is_far | np.isnan(lows))
        if limit == 0.0 or not is_far.any() or 2 * is_usual.sum() <= len(table):
            continue
        low, high = float(lows[is_usual].min()), float(highs[is_usual].max())
        distances = np.fmax(highs - high, low - lows)
        if distances[is_far].min() <= high - low:
            continue
        row = int(np.argmax(np.where(is_far, distances, -np.inf)))
        field = np.asarray(table.values[row, number], np.float64)
        is_outside = (field < low) | (field > high)
        worst = np.unravel_index(np.nanargmax(np.fmax(field - high, low - field)), field.shape)
        count = int(is_outside.sum())
        place = source.grid.describe_pixel(int(worst[0]), int(worst[1]))
        many = f" and {count - 1} more" if count > 1 else ""
        return (
            f"{channel.name} of {source.where} is {field[worst]:g}"
            f"{describe_position(source, int(table.positions[row]), channel)} at {place}{many}, where {low:g} to "
            f"{high:g} are usual at other times: correct such values, or mark them as missing"
        )
    return None
