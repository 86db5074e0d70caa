"""`make simulate`: runs the model, year after year, and goes on where it was stopped."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import numpy as np

from simulation import layout
from simulation.atmosphere import Atmosphere, AtmosphereSettings
from simulation.latitudes import to_latitudes
from simulation.run_folder import RunFolder
from simulation.years import CHUNK_DAYS, run_years

# The model starts half a year before; these days are its spin-up.
FIRST_YEAR = 2001


def simulate(output: Path, num_years: int, settings: AtmosphereSettings) -> None:
    """Runs until `num_years` whole years are in `output`."""
    years = range(FIRST_YEAR, FIRST_YEAR + num_years)
    folder = RunFolder(output / ".run")
    with folder.locked():
        versions = {name: version(name) for name in ("jcm", "jax", "dinosaur")}
        folder.check_settings({**asdict(settings), "chunk_days": CHUNK_DAYS, "versions": versions})
        if all(layout.has_year(output, year) for year in years) and layout.constants_file(output).exists():
            print(f"{output} holds {years[0]} to {years[-1]} already")
            return
        print("building the model (half a minute), then compiling it (one minute)", flush=True)
        atmosphere = Atmosphere(settings)
        if folder.state.exists():
            atmosphere.restore(folder.state)
            print(f"resuming from {atmosphere.time}", flush=True)
        attributes = {"source": layout.ORIGIN, **{f"{name}_version": value for name, value in versions.items()}}
        grid = atmosphere.grid
        layout.write_constants(
            output,
            to_latitudes(atmosphere.orography, grid.latitude, layout.LATITUDE),
            to_latitudes(atmosphere.land, grid.latitude, layout.LATITUDE),
            attributes,
        )
        progress = _Progress(atmosphere, np.datetime64(settings.start, "h"), layout.year_times(years[-1])[-1])
        run_years(atmosphere, folder, output, years, attributes, progress.update)


class _Progress:
    """A bar over the days of the run, with the time left, and a line for each complete year."""

    def __init__(self, atmosphere: Atmosphere, start: np.datetime64, last: np.datetime64):
        from tqdm import tqdm

        day = np.timedelta64(24, "h")
        stretches = -int((start - last) // (CHUNK_DAYS * day))
        done = int((atmosphere.time - start) / day)
        self._atmosphere = atmosphere
        self._bar = tqdm(total=stretches * CHUNK_DAYS, initial=done, unit="day", smoothing=0.05)
        self._year_started = time.monotonic()

    def update(self, finished_years: list[int]) -> None:
        """One more stretch is done."""
        self._bar.set_postfix_str(f"model date {str(self._atmosphere.time)[:10]}", refresh=False)
        self._bar.update(CHUNK_DAYS)
        for year in finished_years:
            self._bar.write(f"{year} is complete after {time.monotonic() - self._year_started:.0f} s", file=sys.stdout)
            sys.stdout.flush()
            self._year_started = time.monotonic()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Simulates an atmosphere in WeatherBench's file layout.")
    parser.add_argument("--years", type=int, default=8, help=f"whole years from {FIRST_YEAR} on (default 8)")
    parser.add_argument("--output", type=Path, default=Path("data/simulated"), help="default data/simulated")
    arguments = parser.parse_args()
    if arguments.years < 1:
        parser.error(f"--years must be at least 1, got {arguments.years}")
    try:
        simulate(arguments.output, arguments.years, AtmosphereSettings())
    except (ValueError, FloatingPointError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; the same command resumes from the last complete stretch")


if __name__ == "__main__":
    main()
