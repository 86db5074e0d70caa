"""Runs a model until whole years are written; a run that was killed at any moment goes on from its last stretch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from simulation import layout
from simulation.chunks import ChunkFolder
from simulation.fields import to_weatherbench
from simulation.frames import Frames, ModelGrid
from simulation.run_folder import RunFolder

# One length for every stretch, because another length would be compiled again; it need not divide a year.
CHUNK_DAYS = 10


class Model(Protocol):
    """What a run needs of a model; `simulation.atmosphere.Atmosphere` is one."""

    @property
    def grid(self) -> ModelGrid:
        """The model's own grid."""
        ...

    @property
    def time(self) -> np.datetime64:
        """The model's clock."""
        ...

    def advance(self, days: int) -> Frames:
        """Runs on and gives the fields after every six hours."""
        ...

    def save(self, path: Path) -> None:
        """Writes the state so that the file is whole or the old one stays."""
        ...


def run_years(
    model: Model,
    folder: RunFolder,
    output: Path,
    years: range,
    attributes: dict[str, str],
    on_stretch: Callable[[list[int]], None],
) -> None:
    """Goes on from the model's present state until every year is in `output`.

    The order makes interruptions safe: fields first, then the state that follows them, then years. A stretch whose
    state was not saved is computed again, with the same values, and replaces its file.

    Args:
        model: Model at its start, or restored from `folder.state`.
        folder: Folder of state and stretches.
        output: Root of WeatherBench's layout.
        years: Calendar years; the time before them is spin-up and is dropped.
        attributes: Attributes of the files.
        on_stretch: Called after each stretch with the years completed by it.
    """
    chunks = ChunkFolder(folder.chunks)
    first, last = layout.year_times(years[0])[0], layout.year_times(years[-1])[-1]
    while model.time < last:
        frames = model.advance(CHUNK_DAYS)
        values = to_weatherbench(frames, model.grid)
        kept = frames.times >= first
        chunks.write(frames.times[kept], {name: value[kept] for name, value in values.items()})
        model.save(folder.state)
        on_stretch(chunks.finish_years(output, years, attributes))
    chunks.finish_years(output, years, attributes)
