"""Accuracy of one stencil for all pixels of heat diffusion: of least squares, of least absolute error, each region's.

Run: smoe bench single-stencil [--runs 6]. Prints the table and stores it in results/bench.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from smoe.benchmarks.stored_table import circumstances, write_table
from smoe.paper.heat.build import make_region_map, make_split
from smoe.paper.heat.data import diffusion_stencil
from smoe.paper.heat.recipes import HeatDiffusion


def least_absolute(inputs: np.ndarray, targets: np.ndarray, start: np.ndarray) -> np.ndarray:
    """By least squares, each time weighted by the inverse of the errors before."""
    stencil = start
    for _ in range(40):
        weighted = inputs / np.maximum(np.abs(inputs @ stencil - targets), 1e-6)[:, None]
        stencil = np.linalg.solve(weighted.T @ inputs, weighted.T @ targets)
    return stencil


def main(args: list[str] | None = None) -> None:
    """Measures and stores."""
    parser = argparse.ArgumentParser("smoe bench single-stencil", description=__doc__)
    parser.add_argument("--runs", type=int, default=6, help="of the test split")
    arguments = parser.parse_args(args)
    data = HeatDiffusion(num_test_runs=arguments.runs)
    region_map = make_region_map(data)
    pairs = make_split(data, region_map, "test")
    before, after = (part[:, 0].double().numpy() for part in pairs.__getitems__(list(range(len(pairs)))))
    padded = np.pad(before, ((0, 0), (1, 1), (1, 1)))
    windows = sliding_window_view(padded, (3, 3), axis=(1, 2)).reshape(*before.shape, 9)
    inputs, targets = windows.reshape(-1, 9), after.reshape(-1)
    squares = np.linalg.lstsq(inputs.T @ inputs, inputs.T @ targets, rcond=None)[0]
    some = np.random.default_rng(0).choice(len(inputs), min(400_000, len(inputs)), replace=False)
    stencils = {"least squares": squares, "least absolute error": least_absolute(inputs[some], targets[some], squares)}
    stencils |= {f"diffusivity {d:g}": diffusion_stencil(d).reshape(9) for d in data.diffusivities}
    rows = []
    for name, stencil in stencils.items():
        is_within = np.abs(windows @ stencil - after) <= 0.01 * np.abs(after) + 1e-8
        regions = {
            f"region {d:g}, %": f"{100 * is_within[:, region_map == number].mean():.1f}"
            for number, d in enumerate(data.diffusivities)
        }
        rows.append({"stencil": name, "within 1 %, %": f"{100 * is_within.mean():.1f}", **regions})
    notes = (
        f"{arguments.runs} test runs, " + ", ".join(f"{key} {value}" for key, value in circumstances().items()) + "."
    )
    path = Path("results/bench") / "single_stencil.md"
    command = f"smoe bench single-stencil --runs {arguments.runs}"
    print(write_table(path, "One stencil for all pixels", command, list(rows[0]), rows, notes))


if __name__ == "__main__":
    main()
