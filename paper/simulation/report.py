"""Writes a page about the atmosphere: how real it looks and how hard it is to predict."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import xarray as xr

from simulation import climate, layout
from simulation.baselines import climatology_rmse, persistence_rmse, weekly_climatology_rmse
from simulation.simulated_years import SimulatedYears

# Scored variables: short name, level, title; and WeatherBench's own scores on ERA5 2017-2018 at 5.625 degrees
# (persistence at 3 and 5 days, climatology, weekly climatology), for comparison.
SCORED = (
    ("z", 500, "Z500 [m2 s-2]", (936, 1033, 1075, 816)),
    ("t", 850, "T850 [K]", (4.29, 4.56, 5.51, 3.50)),
    ("t2m", None, "T2m [K]", (3.00, 3.27, 6.07, 3.19)),
)
TEST_YEARS = 2


def describe(root: Path) -> str:
    """The whole report as Markdown."""
    data = SimulatedYears(root)
    if len(data.years) <= TEST_YEARS:
        raise ValueError(f"{TEST_YEARS + 1} complete years are needed for the scores, {root} holds {data.years}")
    earlier, test = data.years[:-TEST_YEARS], data.years[-TEST_YEARS:]
    with xr.open_dataset(layout.constants_file(root)) as constants:
        versions = ", ".join(f"{name} {constants.attrs[f'{name}_version']}" for name in ("jcm", "jax", "dinosaur"))
    lines = [
        "# The simulated atmosphere",
        "",
        f"Years {data.years[0]}-{data.years[-1]}, {layout.ORIGIN}. Made by `make simulate YEARS={len(data.years)}`.",
        f"{versions}; {made_by()}.",
        "",
        *_predictability(data, earlier, test),
        *_drift(data),
        *_climate(data),
    ]
    return "\n".join(lines) + "\n"


def _predictability(data: SimulatedYears, earlier: list[int], test: list[int]) -> list[str]:
    lines = [
        "## How hard it is",
        "",
        f"Latitude-weighted RMSE (root of the mean over time and space) on {test[0]}-{test[-1]}; climatologies of",
        f"{earlier[0]}-{earlier[-1]}. In brackets the same on ERA5 2017-2018, as published with WeatherBench.",
        "",
        "| | persistence, 3 days | persistence, 5 days | climatology | weekly climatology |",
        "|---|---|---|---|---|",
    ]
    for name, level, title, era5 in SCORED:
        truth, past = data.read(name, test, level), data.read(name, earlier, level)
        scores = (
            persistence_rmse(truth, 72),
            persistence_rmse(truth, 120),
            climatology_rmse(truth, past),
            weekly_climatology_rmse(truth, data.times(test), past, data.times(earlier)),
        )
        digits = 0 if name == "z" else 2
        cells = (f"{score:.{digits}f} ({known:.{digits}f})" for score, known in zip(scores, era5, strict=True))
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return [*lines, ""]


def _drift(data: SimulatedYears) -> list[str]:
    lines = [
        "## Year by year",
        "",
        "Global means, and the fastest zonal mean wind of the year's mean at 250 hPa.",
        "",
        "| year | Z500 [m2 s-2] | T850 [K] | T2m [K] | precipitation [mm/day] | wind [m/s] |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {year} | {z:.0f} | {t:.2f} | {t2m:.2f} | {rain:.2f} | {wind:.1f} |"
        for year, z, t, t2m, rain, wind in climate.annual_means(data)
    ]
    return [*lines, ""]


def _climate(data: SimulatedYears) -> list[str]:
    land, sea = climate.winter_land_sea_contrast(data, data.years)
    sun = climate.global_mean(data.read("tisr", data.years)) / 3600
    lines = [
        "## How real it looks",
        "",
        "Means over all years.",
        "",
        "| quantity | value |",
        "|---|---|",
        f"| incoming sunlight, global mean | {sun:.1f} W/m2 |",
        f"| T2m of land below 1000 m, 30-60 N, Dec-Feb | {land:.1f} K |",
        f"| T2m of sea, 30-60 N, Dec-Feb | {sea:.1f} K (land is {sea - land:.1f} K colder) |",
    ]
    lines += [
        f"| strongest zonal mean wind at 250 hPa, {season}, {hemisphere} | {speed:.1f} m/s at {latitude:.1f} degrees |"
        for season, hemisphere, speed, latitude in climate.jets(data, data.years)
    ]
    lines += [
        f"| standard deviation of Z500 about the season's mean, {belt}, {season} | {deviation:.0f} m |"
        for season, belt, deviation in climate.transient_height(data, data.years)
    ]
    return lines


def made_by() -> str:
    """Commit and date of a report."""
    command = ["git", "describe", "--always", "--dirty"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"commit {result.stdout.strip() or 'unknown'}; {datetime.now(UTC):%Y-%m-%d}"


def run_report(describe: Callable[[Path], str], what: str, data: str, output: str) -> None:
    """The command line of a report: describes what lies in a folder, in a file and on the screen."""
    parser = argparse.ArgumentParser(description=f"Describes {what}.")
    parser.add_argument("--data", type=Path, default=Path(data))
    parser.add_argument("--output", type=Path, default=Path(output))
    arguments = parser.parse_args()
    try:
        text = describe(arguments.data)
    except (ValueError, FileNotFoundError) as error:
        sys.exit(f"error: {error}")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(text)
    print(text)


if __name__ == "__main__":
    run_report(describe, "a simulated atmosphere", "data/simulated", "paper/results/weather/simulated_atmosphere.md")
