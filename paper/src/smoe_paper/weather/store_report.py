"""Describes a prepared store."""

from __future__ import annotations

from smoe.gridded._output import describe_size
from smoe_paper.weather.data.store import WeatherStore


def describe_store(store: WeatherStore) -> str:
    """Returns lines with times, channels and size of a store, and the values that were left out or replaced."""
    metadata = store.metadata
    rows, columns = store.grid.shape
    first, last = store.statistics_years
    lines = [
        f"{store.path}: {len(store.times):,} times, {store.times[0]} h to {store.times[-1]} h, every "
        f"{store.step_hours} h; {len(store.channels)} channels, {rows} x {columns}; "
        f"{describe_size(metadata.num_bytes)}",
        f"mean and deviation are of {first} to {last}{' of another store' if metadata.statistics_from else ''}",
    ]
    for year in metadata.years:
        if year.num_dropped:
            lines.append(
                f"{year.year}: {year.num_dropped} steps left out at the beginning, where sums over past hours are not "
                "defined"
            )
        if year.num_filled:
            named = ", ".join(f"{count:,} of {channel}" for channel, count in year.num_filled.items())
            lines.append(f"{year.year}: NaNs replaced ({metadata.on_nan}): {named}")
    return "\n".join(lines) + "\n"
