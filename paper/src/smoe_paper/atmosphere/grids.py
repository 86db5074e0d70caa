"""WeatherBench's three grids: regular in latitude and longitude, without points at the poles."""

from __future__ import annotations

from smoe.gridded.grid import Grid


def _regular_grid(degrees: float) -> Grid:
    rows, columns = round(180 / degrees), round(360 / degrees)
    # All three spacings are multiples of 2^-5, so that these values are exact.
    latitude = tuple(-90.0 + degrees / 2 + degrees * row for row in range(rows))
    return Grid(latitude, tuple(degrees * column for column in range(columns)))


GRIDS: dict[str, Grid] = {f"{degrees:g}deg": _regular_grid(degrees) for degrees in (5.625, 2.8125, 1.40625)}
