"""`make simulate-ensemble`: forecasts of a simulated truth by a biased model, and goes on where it was stopped."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from simulation.atmosphere import AtmosphereSettings
from simulation.ensemble_model import BIASED_CONSTANTS, EnsembleModel
from simulation.ensemble_run import is_complete, run_ensemble, write_summaries
from simulation.perturbations import Perturbations
from simulation.run_folder import RunFolder
from simulation.start_dates import LEAD_DAYS, start_dates

# The truth starts half a year before, at rest; the last three months of it give the first perturbations.
FIRST_YEAR = 2001
FIRST_STATE = np.datetime64("2000-10-01")


def simulate(
    output: Path,
    last: np.datetime64,
    every: int,
    settings: AtmosphereSettings,
    bias: Mapping[str, Any],
    perturbations: Perturbations,
) -> None:
    """Runs until the forecasts from every start up to `last` are in `output`."""
    first = np.datetime64(f"{FIRST_YEAR}-01-01")
    starts = start_dates(FIRST_STATE, last, every)
    folder = RunFolder(output / ".run")
    with folder.locked():
        versions = {name: version(name) for name in ("jcm", "jax", "dinosaur")}
        noted = {**asdict(settings), "bias": dict(bias), **asdict(perturbations), "every": every, "versions": versions}
        folder.check_settings(noted)
        forecasts = [start for start in starts if start >= first]
        if is_complete(folder, output, forecasts):
            write_summaries(folder, output, forecasts)
            print(f"{output} holds the {len(forecasts)} forecasts up to {last} already")
            return
        print("building two models (one minute), then compiling them (one minute)", flush=True)
        model = EnsembleModel(settings, bias, LEAD_DAYS)
        if folder.state.exists():
            model.restore(folder.state)
            print(f"resuming from {model.time}", flush=True)
        progress = _Progress(len(starts), sum(bool(start < model.time) for start in starts))
        run_ensemble(model, folder, output, starts, first, perturbations, progress.update)
        print(f"{len(forecasts)} forecasts are in {output}")


class _Progress:
    """A bar over the starts, with the time left."""

    def __init__(self, total: int, done: int):
        from tqdm import tqdm

        self._bar = tqdm(total=total, initial=done, unit="start", smoothing=0.05)

    def update(self) -> None:
        """One more start is done."""
        self._bar.update(1)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Simulates an ensemble and its truth in ENS-10's file layout.")
    parser.add_argument("--years", type=int, default=3, help=f"years of starts from {FIRST_YEAR} on (default 3)")
    parser.add_argument("--last", type=np.datetime64, help="last day on which a forecast starts, instead of --years")
    parser.add_argument("--every", type=int, default=1, help="take every n-th of ENS-10's 105 start days (default 1)")
    parser.add_argument("--output", type=Path, default=Path("data/simulated-ensemble"))
    arguments = parser.parse_args()
    if arguments.years < 1:
        parser.error(f"--years must be at least 1, got {arguments.years}")
    if arguments.every < 1:
        parser.error(f"--every must be at least 1, got {arguments.every}")
    last = arguments.last or np.datetime64(f"{FIRST_YEAR + arguments.years - 1}-12-31")
    if last < np.datetime64(f"{FIRST_YEAR}-01-01"):
        parser.error(f"--last must be in {FIRST_YEAR} or later, got {last}")
    try:
        simulate(arguments.output, last, arguments.every, AtmosphereSettings(), BIASED_CONSTANTS, Perturbations())
    except (ValueError, FloatingPointError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; the same command resumes from the last start")


if __name__ == "__main__":
    main()
