"""An ensemble in memory, in the form of a store, and recipes small enough for it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from smoe_paper.atmosphere.fields import Grid
from smoe_paper.ens10.recipes import ENSEMBLE_RECIPES, EmosModel, EnsembleData, EnsembleRecipe, PixelModel
from smoe_paper.ens10.source import TaskName
from smoe_paper.ens10.store import EnsembleStore

# An odd number of rows with both poles, as ENS-10 has, and a multiple of 4 columns.
GRID = Grid((90.0, 67.5, 45.0, 22.5, 0.0, -22.5, -45.0, -67.5, -90.0), tuple(45.0 * j for j in range(8)))


@dataclass
class MemoryEnsemble(EnsembleStore):
    """Five members whose mean is too low by half a kelvin and which differ by less than their error.

    Twelve forecasts in each of three years. The EFI is known in the last one.
    """

    task: TaskName = "t850"
    num_members: int = 5
    grid: Grid = GRID
    path: Path = Path("memory")
    num_dates: int = 36
    has_efi: bool = True
    channels: tuple[str, ...] = tuple(f"{name}_{kind}" for name in "ZTQWDUV" for kind in ("mean", "std"))
    fields: dict[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(0)
        shape = self.grid.shape
        truth = 270 + 8 * rng.standard_normal((self.num_dates, *shape))
        centre = truth - 0.5 + 0.5 * rng.standard_normal(truth.shape)
        members = centre[:, None] + 0.3 * rng.standard_normal((self.num_dates, self.num_members, *shape))
        inputs = rng.standard_normal((self.num_dates, len(self.channels), *shape))
        efi = np.tanh(rng.standard_normal(truth.shape))
        efi[:-12] = np.nan
        values = {
            "truth": truth,
            "members": members,
            "inputs": inputs,
            "efi": efi if self.has_efi else None,
            "target_mean": members.mean(axis=1),
            "target_std": members.std(axis=1),
        }
        self.fields = {name: None if value is None else value.astype(np.float32) for name, value in values.items()}
        years, months = np.divmod(np.arange(self.num_dates), 12)
        self.dates = np.array([f"{2000 + year}-{month + 1:02d}-05" for year, month in zip(years, months, strict=True)])
        self.dates = self.dates.astype("datetime64[D]")

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__.get("fields", {})
        if name in fields:
            return fields[name]
        raise AttributeError(name)


def make_ensemble(**options: Any) -> Any:
    """An ensemble in memory, for what reads stores."""
    return MemoryEnsemble(**options)


def tiny_recipe(name: str, **changes: Any) -> EnsembleRecipe:
    """A recipe with a network of a few filters and one epoch."""
    recipe = ENSEMBLE_RECIPES[name]
    data = EnsembleData(None, (2000, 2000), (2001, 2001), (2002, 2002))
    model = recipe.model if isinstance(recipe.model, EmosModel | PixelModel) else replace(recipe.model, filters=4)
    plan = replace(recipe.training, batch_size=4, max_epochs=1, device="cpu")
    return replace(recipe, **{"data": data, "model": model, "training": plan, **changes})
