"""Small planned runs, and a program that makes them: `python tiny_runs.py STORE RUNS EPOCHS`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from smoe_paper.experiments.runs import PlannedRun, make_runs
from smoe_paper.experiments.stored_runs import RunStore
from smoe_paper.heat.recipes import HEAT_TRAINING, HeatDiffusion, HeatRecipe


def tiny_runs(num_seeds: int, max_epochs: int) -> list[PlannedRun]:
    """Runs of a few seconds or, with many epochs, of minutes."""
    data = HeatDiffusion(spatial_shape=(9, 7), num_steps=10, num_train_runs=20, num_validation_runs=2, num_test_runs=2)
    plan = replace(HEAT_TRAINING, max_epochs=max_epochs, early_stop_patience=max_epochs, stop_at=None, device="cpu")
    return [PlannedRun(HeatRecipe(data=data, training=plan, seed=seed), f"seed {seed}") for seed in range(num_seeds)]


def main() -> None:
    """Makes the runs of the command line in two processes."""
    store, runs_dir, epochs = sys.argv[1:]
    # The second one ends at once, so that one is stored and one under way when the program is stopped.
    runs = tiny_runs(1, int(epochs)) + tiny_runs(2, 1)[1:]
    make_runs(runs, RunStore(Path(store)), Path(runs_dir), jobs=2)


if __name__ == "__main__":
    main()
