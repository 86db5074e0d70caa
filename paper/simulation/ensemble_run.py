"""Runs truth and forecasts from start to start; a run that was killed at any moment goes on from its last start."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from simulation import ens10_layout
from simulation.frames import Frames, ModelGrid
from simulation.member_fields import to_ens10, to_truth
from simulation.member_frames import MemberFrames
from simulation.perturbations import Perturbations, State
from simulation.run_folder import RunFolder
from simulation.start_dates import LEAD_DAYS

# Ten weeks: long enough for different weather, short enough for one season.
BANK_DAYS = 70


class Model(Protocol):
    """What a run needs of its two models; `simulation.ensemble_model.EnsembleModel` is one."""

    @property
    def orography(self) -> np.ndarray:
        """Height of the surface in m, `(H, W)`."""
        ...

    @property
    def land(self) -> np.ndarray:
        """Share of land, `(H, W)`."""
        ...

    @property
    def grid(self) -> ModelGrid:
        """The grid of both models."""
        ...

    @property
    def time(self) -> np.datetime64:
        """The clock of the truth."""
        ...

    def advance(self, days: int) -> Frames:
        """The truth goes on; its fields after every six hours."""
        ...

    def state(self) -> State:
        """The parts of the truth's present state that are perturbed."""
        ...

    def forecast(self, perturbations: Mapping[str, np.ndarray]) -> MemberFrames:
        """The members' fields after the lead time, from the truth's present state."""
        ...

    def save(self, path: Path) -> None:
        """Writes the state of the truth so that the file is whole or the old one stays."""
        ...


@dataclass(frozen=True)
class EnsembleFolder:
    """Where a run keeps what it needs to go on, besides the state of the truth."""

    run: RunFolder

    def truth_file(self, start: np.datetime64) -> Path:
        """The truth at the time that the forecast from a start is for."""
        return self.run.path / "truth" / f"{start}.npz"

    def state_file(self, start: np.datetime64) -> Path:
        """The truth's state at a start, for perturbations of later ones."""
        return self.run.path / "states" / f"{start}.npz"

    def read_bank(self, start: np.datetime64) -> list[State]:
        """The states of the ten weeks before a start."""
        return [_read(path) for day, path in self._states() if start - BANK_DAYS <= day < start]

    def drop_states(self, start: np.datetime64) -> None:
        """Deletes states that no start from this one on needs."""
        for day, path in self._states():
            if day < start - BANK_DAYS:
                path.unlink()

    def _states(self) -> list[tuple[np.datetime64, Path]]:
        paths = sorted((self.run.path / "states").glob("*.npz"))
        return [(np.datetime64(path.stem, "D"), path) for path in paths]


def run_ensemble(
    model: Model,
    folder: RunFolder,
    output: Path,
    starts: Sequence[np.datetime64],
    first: np.datetime64,
    perturbations: Perturbations,
    on_start: Callable[[], None],
) -> None:
    """Goes on from the truth's present state until the forecasts of every start are in `output`.

    The order makes interruptions safe: members first, then the truth that they are compared with, then the state at
    the next start. A repeated computation gives the same values.

    Args:
        model: Model at its beginning, or restored from `folder.state`.
        folder: Folder of state, truth and past states.
        output: Root of ENS-10's layout.
        starts: Start dates in order, from some before the first forecast on: their states give the perturbations.
        first: First start date of a forecast.
        perturbations: Perturbations of the members.
        on_start: Called after each start.
    """
    kept = EnsembleFolder(folder)
    forecasts = [start for start in starts if start >= first]
    lead = np.timedelta64(LEAD_DAYS, "D")
    # Day by day: the forecast from New Year's Eve is valid one day after the start on New Year's Day.
    while True:
        today = model.time.astype("datetime64[D]")
        if today in starts:
            model.save(folder.state)
            _write(kept.state_file(today), model.state())
            kept.drop_states(today)
            if today >= first and not ens10_layout.has_members(output, today):
                _forecast(model, kept, output, today, perturbations)
            on_start()
        if today >= starts[-1] + lead:
            break
        frames = model.advance(1)
        for start in forecasts:
            if start + lead == model.time:
                _write(kept.truth_file(start), to_truth(frames, model.grid))
    write_summaries(folder, output, forecasts)


def is_complete(folder: RunFolder, output: Path, forecasts: Sequence[np.datetime64]) -> bool:
    """Whether members and truth of all forecasts are there."""
    kept = EnsembleFolder(folder)
    return all(ens10_layout.has_members(output, start) and kept.truth_file(start).exists() for start in forecasts)


def write_summaries(folder: RunFolder, output: Path, forecasts: Sequence[np.datetime64]) -> None:
    """Writes the truth of complete forecasts, in files that hold all dates."""
    truth = [_read(EnsembleFolder(folder).truth_file(start)) for start in forecasts]
    ens10_layout.write_truth(output, forecasts, {name: np.stack([each[name] for each in truth]) for name in truth[0]})


def _forecast(
    model: Model, kept: EnsembleFolder, output: Path, start: np.datetime64, perturbations: Perturbations
) -> None:
    frames = model.forecast(perturbations.draw(start, kept.read_bank(start)))
    low = int(np.argmin(np.abs(model.grid.sigma - 0.85)))
    spreads = {
        "temperature_spread_at_start": _spread(frames.initial_temperature[:, low], model.grid),
        "temperature_spread_at_end": _spread(frames.temperature[:, low], model.grid),
    }
    levels, surface = to_ens10(frames, model.grid, model.orography, model.land)
    ens10_layout.write_members(output, "pl", start, levels, spreads)
    ens10_layout.write_members(output, "sfc", start, surface, {})


def _spread(members: np.ndarray, grid: ModelGrid) -> float:
    """Root of the area mean of the members' variance, of the layer around 850 hPa."""
    weight = np.cos(np.radians(grid.latitude))[:, None]
    return float(np.sqrt((members.var(axis=0, dtype=np.float64) * weight).mean() / weight.mean()))


def _write(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    with temporary.open("wb") as file:
        np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _read(path: Path) -> State:
    with path.open("rb") as file, np.load(file) as arrays:
        return {name: arrays[name] for name in arrays.files}
