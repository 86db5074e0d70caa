"""A made-up model for the tests of the simulation's bookkeeping: its fields follow from a small state, step by step."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from simulation.frames import Frames, ModelGrid

GAUSSIAN_LATITUDE = np.degrees(np.arcsin(np.polynomial.legendre.leggauss(32)[0]))
SIGMA = np.array([0.025, 0.095, 0.2, 0.34, 0.51, 0.685, 0.835, 0.95])


class Killed(Exception):
    """Stands for the end of the process."""


class SimulatedModel:
    """Chaotic in one number, which every field shows; can be told to die in the middle of saving."""

    grid = ModelGrid(SIGMA, GAUSSIAN_LATITUDE, 5.625 * np.arange(64))

    def __init__(self, start: str):
        self.time = np.datetime64(start, "h")
        self.number = 0.3
        self.stretches_until_killed: int | None = None
        self.killed_after_saving = False

    def advance(self, days: int) -> Frames:
        steps = 4 * days
        numbers = np.empty(steps)
        for i in range(steps):
            self.number = 3.9 * self.number * (1 - self.number)
            numbers[i] = self.number
        times = self.time + np.arange(1, steps + 1) * np.timedelta64(6, "h")
        self.time = times[-1]
        flat = np.broadcast_to(numbers[:, None, None], (steps, 32, 64)).astype(np.float32)
        deep = np.broadcast_to(numbers[:, None, None, None], (steps, 8, 32, 64)).astype(np.float32)
        pressure = np.full_like(flat, 1e5)
        return Frames(times, deep, 250 + deep, deep, deep, 0.001 * deep, pressure, 280 + flat, flat, 0.001 * flat)

    def save(self, path: Path) -> None:
        if self.stretches_until_killed is not None:
            self.stretches_until_killed -= 1
            if self.stretches_until_killed == 0 and not self.killed_after_saving:
                raise Killed
        path.write_text(f"{self.time} {self.number!r}")
        if self.stretches_until_killed == 0:
            raise Killed

    def restore(self, path: Path) -> None:
        time, number = path.read_text().split()
        self.time, self.number = np.datetime64(time, "h"), float(number)
