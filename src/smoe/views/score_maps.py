"""Where a correction helps: a score of two forecasts on the globe, and the change from one to the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from smoe.views.globe import draw_globe
from smoe.views.picture import save_picture


def draw_score_maps(
    before: np.ndarray,
    after: np.ndarray,
    latitude: Sequence[float] | np.ndarray,
    longitude: Sequence[float] | np.ndarray,
    path: str | Path,
    *,
    names: tuple[str, str],
    score: str,
    title: str,
) -> None:
    """Draw both scores with the same colours, and the relative change in per cent; blue is better, red is worse.

    Args:
        before: Score at each pixel, `(H, W)`, smaller is better.
        after: The same of the other forecast.
        latitude: Of the rows, in degrees, `(H,)`.
        longitude: Of the columns, in degrees, `(W,)`.
        path: Picture to write.
        names: Of both forecasts.
        score: Its name and units, such as `CRPS, in K`.
        title: Above everything.

    Raises:
        ValueError: If a value is not finite.
    """
    if not (np.isfinite(before).all() and np.isfinite(after).all()):
        raise ValueError(f"the maps of {score} hold values that are not finite")
    change = 100.0 * (after - before) / np.where(before > 0, before, np.inf)
    largest = float(np.quantile(np.abs(change), 0.99)) or 1.0
    values = Normalize(0.0, float(np.quantile(np.stack([before, after]), 0.995)))
    figure = Figure(figsize=(14.5, 3.1), layout="constrained")
    figure.suptitle(title, fontsize=13, fontweight="bold")
    panels = (
        (f"{names[0]}: mean {before.mean():.4g}", before, "magma", values, score),
        (f"{names[1]}: mean {after.mean():.4g}", after, "magma", values, ""),
        ("change", change, "RdBu_r", Normalize(-largest, largest), "change, in %"),
    )
    for column, (caption, field, palette, norm, label) in enumerate(panels):
        axes = figure.add_subplot(1, 3, column + 1)
        mesh = draw_globe(axes, latitude, longitude, field, palette=palette, norm=norm)
        axes.set_title(caption, fontsize=11, pad=6)
        if label:
            bar = figure.colorbar(mesh, ax=axes, location="left" if column == 0 else "right", shrink=0.9, extend="both")
            bar.set_label(label)
            bar.outline.set_visible(False)
    save_picture(figure, path)
