"""Writes the extreme forecast index of a simulated ensemble, and describes its spread, bias and possible gains."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import xarray as xr

from simulation import ens10_layout
from simulation.efi import write_index
from simulation.report import made_by, run_report


def describe(root: Path) -> str:
    """The whole report as Markdown; the forecasts for the last year are scored, those before give the correction."""
    if not (root / "ERA5_z500.nc").exists():
        raise ValueError(f"{root} holds no finished ensemble: run `make simulate-ensemble` first")
    with xr.open_dataset(root / "ERA5_z500.nc") as truth:
        starts = list(truth["time"].values.astype("datetime64[D]") - ens10_layout.LEAD)
    write_index(root)
    lines = [
        "# The simulated ensemble",
        "",
        f"{len(starts)} starts from {starts[0]} to {starts[-1]}, ten members each, 48 h; {ens10_layout.ORIGIN}.",
        f"Made by `make simulate-ensemble{_options(root)}`; {made_by()}.",
        "",
        *_growth(root, starts),
        *_scores(root),
    ]
    return "\n".join(lines) + "\n"


def _options(root: Path) -> str:
    """What was asked for besides the defaults, as `make` is told it."""
    settings = root / ".run" / "settings.json"
    every = json.loads(settings.read_text()).get("every", 1) if settings.exists() else 1
    return "" if every == 1 else f" ENSEMBLE_EVERY={every}"


def crps(members: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Continuous ranked probability score of ensembles `(T, M, H, W)` at each point, in its plain form."""
    members = np.sort(members, axis=1)
    count = members.shape[1]
    # Mean distance of all pairs, from the sorted members: sum over i of (2 i - M + 1) x_i.
    ranks = (2.0 * np.arange(count) - count + 1.0)[None, :, None, None]
    half_distance = (ranks * members).sum(axis=1) / count**2
    return np.abs(members - truth[:, None]).mean(axis=1) - half_distance


def _growth(root: Path, starts: list[np.datetime64]) -> list[str]:
    spreads = []
    for start in starts:
        with xr.open_dataset(ens10_layout.members_file(root, "pl", start)) as data:
            spreads.append([data.attrs[f"temperature_spread_at_{when}"] for when in ("start", "end")])
    first, last = np.mean(spreads, axis=0)
    share = np.mean([later > earlier for earlier, later in spreads])
    return [
        f"The spread of temperature around 850 hPa grows from {first:.2f} to {last:.2f} K in the 48 hours, in "
        f"{share:.0%} of the forecasts.",
        "",
    ]


def _scores(root: Path) -> list[str]:
    lines = [
        "| | RMSE of the mean | spread | mean bias | RMS bias of points | CRPS | CRPS without the points' bias |",
        "|---|---|---|---|---|---|---|",
    ]
    years = np.array([])
    for task, (_, _, _, title) in ens10_layout.TASKS.items():
        members, truth, times = ens10_layout.read_task(root, task)
        years = times.astype("datetime64[Y]").astype(int) + 1970
        is_last = years == _last_year(years)
        is_before = years < _last_year(years)
        error = members.mean(axis=1) - truth
        bias = error[is_before].mean(axis=0) if is_before.any() else error.mean(axis=0)
        digits = 1 if task == "z500" else 3
        numbers = (
            _root_mean(error[is_last] ** 2),
            _root_mean(members[is_last].var(axis=1)),
            _mean(bias),
            _root_mean(bias**2),
            crps(members[is_last], truth[is_last]).mean(),
            crps(members[is_last] - bias[None], truth[is_last]).mean(),
        )
        lines.append(f"| {title} | {' | '.join(f'{number:.{digits}f}' for number in numbers)} |")
    note = (
        f"Forecasts for {_last_year(years)}; the points' bias is that of the years before. Weighted by area, but "
        "for the CRPS, which is the plain mean over points and dates as in ENS-10."
    )
    return [*lines, "", note]


def _last_year(years: np.ndarray) -> int:
    """The last year with more than one forecast: that from New Year's Eve is for the next one."""
    return max(int(year) for year in set(years) if (years == year).sum() > 1)


def _mean(values: np.ndarray) -> float:
    weight = np.cos(np.radians(ens10_layout.LATITUDE))[:, None]
    return float((values * weight).mean() / weight.mean())


def _root_mean(values: np.ndarray) -> float:
    return float(np.sqrt(_mean(values)))


if __name__ == "__main__":
    run_report(describe, "a simulated ensemble", "data/simulated-ensemble", "paper/results/ens10/simulated_ensemble.md")
