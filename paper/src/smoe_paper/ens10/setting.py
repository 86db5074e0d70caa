"""Properties of the data on which a model that corrects ensembles depends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smoe.errors import DataError
from smoe_paper.ens10.build_model import EnsembleShape
from smoe_paper.ens10.data.store import EnsembleStore
from smoe_paper.ens10.data.variables import TASKS
from smoe_paper.ens10.recipes import EnsembleData


@dataclass(frozen=True)
class EnsembleSetting:
    """Properties of the data.

    Attributes:
        shape: Shape of the model's inputs.
        latitude: Latitudes of the rows, in degrees.
        has_efi: Whether the extreme forecast index is known for at least some dates.
    """

    shape: EnsembleShape
    latitude: tuple[float, ...]
    has_efi: bool


def open_store(data: EnsembleData) -> EnsembleStore:
    """Opens the store of a recipe.

    Raises:
        DataError: If the recipe names no store, an unusable one, or one of another task or number of members.
    """
    if data.store is None:
        raise DataError(
            "no ensemble data are named: make a store with `smoe data prepare ens10` and give its folder as "
            "--data.store FOLDER"
        )
    store = EnsembleStore.open(data.store)
    for name, wanted, found in (("task", data.task, store.task), ("members", data.members, store.num_members)):
        if wanted is not None and wanted != found:
            raise DataError(
                f"{store.path} is of {store.task} with {store.num_members} members, but data.{name} is {wanted}: name "
                f"another store, or prepare one with --{name} {wanted}"
            )
    return store


def setting_of(store: EnsembleStore) -> EnsembleSetting:
    """Returns the setting of a store."""
    rows, columns = store.grid.shape
    shape = EnsembleShape(store.task, store.num_members, len(store.channels), (rows, columns))
    return EnsembleSetting(shape, tuple(store.grid.latitude), store.efi is not None)


def usual_setting() -> EnsembleSetting:
    """Returns the setting of ENS-10's geopotential with ten members, for models without data."""
    grid = (361, 720)
    latitude = tuple(np.linspace(90.0, -90.0, grid[0]).tolist())
    return EnsembleSetting(EnsembleShape("z500", 10, len(TASKS["z500"].channels), grid), latitude, has_efi=True)
