"""Checks that forecasts and truth have the same times: a forecast of 48 h is nearer to its own date than to others."""

from __future__ import annotations

import numpy as np

from smoe.errors import DataError

_MAX_DATES = 24


def check_skill(mean: np.ndarray, truth: np.ndarray, dates: np.ndarray) -> None:
    """Refuses forecasts that are mostly nearer to the truth of the date before or after.

    This finds shuffled or shifted times in files whose dates look right.

    Args:
        mean: Mean of the ensemble, `(T, H, W)`.
        truth: Truth at the same dates.
        dates: Dates for which the forecasts are valid.

    Raises:
        DataError: If too many forecasts are nearer to another date; the message contains their number.
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
