"""Draws a forecast beside the truth: maps of both and of the error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from smoe.views._charts import save_picture
from smoe.views._globe import draw_globe


@dataclass(frozen=True)
class ForecastMap:
    """One variable of one forecast.

    Attributes:
        name: Name of the variable, such as `Z500`.
        units: Units of the values.
        forecast: Forecast field, `(H, W)`.
        truth: True field, `(H, W)`.
        rmse: Latitude-weighted error of this forecast, printed above the map of the error.
        palette: Colours of forecast and truth.
    """

    name: str
    units: str
    forecast: np.ndarray
    truth: np.ndarray
    rmse: float
    palette: str = "viridis"


def draw_forecast(
    maps: Sequence[ForecastMap],
    latitude: Sequence[float] | np.ndarray,
    longitude: Sequence[float] | np.ndarray,
    path: str | Path,
    *,
    title: str,
) -> None:
    """Draw a row of truth, forecast and error for each variable; truth and forecast have the colours of the truth.

    Args:
        maps: Variables to draw, at least one.
        latitude: Latitudes of the rows, in degrees, `(H,)`.
        longitude: Longitudes of the columns, in degrees, `(W,)`.
        path: Picture to write.
        title: Title of the picture, such as the times of the forecast.

    Raises:
        ValueError: If there is no map, or one holds values that are not finite.
    """
    if not maps:
        raise ValueError("there must be at least one map")
    figure = Figure(figsize=(14.5, 0.7 + 2.35 * len(maps)), layout="constrained")
    figure.suptitle(title, fontsize=14, fontweight="bold")
    for row, shown in enumerate(maps):
        both = np.stack([shown.truth, shown.forecast])
        if not np.isfinite(both).all():
            raise ValueError(f"the map of {shown.name} holds values that are not finite")
        error = shown.forecast - shown.truth
        # The range of the truth: one wrong pixel of a forecast must not make all others look alike.
        values = Normalize(shown.truth.min(), shown.truth.max())
        extend = _extend(shown.forecast, values)
        # Symmetric, so that white is no error; a single outlier does not fade all others.
        largest = float(np.quantile(np.abs(error), 0.995)) or 1.0
        panels = (
            (f"{shown.name}, truth", shown.truth, shown.palette, values),
            (f"{shown.name}, forecast", shown.forecast, shown.palette, values),
            (
                f"forecast - truth, RMSE {_digits(shown.rmse)} {shown.units}",
                error,
                "RdBu_r",
                Normalize(-largest, largest),
            ),
        )
        for column, (caption, field, palette, norm) in enumerate(panels):
            axes = figure.add_subplot(len(maps), 3, 3 * row + column + 1)
            mesh = draw_globe(axes, latitude, longitude, field, palette=palette, norm=norm)
            axes.set_title(caption, fontsize=11, pad=6)
            if column != 1:
                bar = figure.colorbar(
                    mesh,
                    ax=axes,
                    location="left" if column == 0 else "right",
                    shrink=0.9,
                    aspect=18,
                    extend=extend if column == 0 else _extend(error, norm),
                )
                bar.set_label(shown.units)
                bar.outline.set_visible(False)
    save_picture(figure, path)


def _extend(field: np.ndarray, norm: Normalize) -> str:
    """Returns the ends of a colour bar that are pointed, because there are values beyond."""
    is_below, is_above = bool(np.any(norm(field) < 0)), bool(np.any(norm(field) > 1))
    if is_below and is_above:
        return "both"
    return "min" if is_below else "max" if is_above else "neither"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
