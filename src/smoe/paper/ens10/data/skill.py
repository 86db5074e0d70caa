"""Whether forecasts and truth are of the same times: a forecast of 48 h is nearer to its own time than to others."""

from __future__ import annotations

import numpy as np

from smoe.errors import DataError

_MAX_DATES = 24


def check_skill(mean: np.ndarray, truth: np.ndarray, dates: np.ndarray) -> None:
    """Refuses forecasts that are mostly nearer to the truth of the date before or after.

    Shuffled or shifted times are found by this where the dates of all files look right.

    Args:
        mean: of the ensemble, `(T, H, W)`.
        truth: at the same dates.
        dates: that the forecasts are for.

    Raises:
        DataError: with how many of the dates that were looked at are nearer to another.
    """
    if len(dates) < 3:
        return
    rows = np.unique(np.linspace(1, len(dates) - 2, min(_MAX_DATES, len(dates) - 2)).round().astype(int))
    nearest = []
    for row in rows:
        distances = [float(np.abs(mean[row] - truth[row + shift]).mean()) for shift in (-1, 0, 1)]
        nearest.append(int(np.argmin(distances)) - 1)
    num_wrong = sum(shift != 0 for shift in nearest)
    if 2 * num_wrong > len(rows):
        place = next(place for place, shift in enumerate(nearest) if shift)
        other = dates[rows[place] + nearest[place]]
        raise DataError(
            f"{num_wrong} of {len(rows)} forecasts are nearer to the truth of a neighbouring date than to their own, "
            f"the first that for {dates[rows[place]]}, nearer to {other}: times of forecasts or truth are shuffled or "
            "shifted; make both files again"
        )
