"""What a model that corrects ensembles is made for, and the data that decide it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smoe.errors import DataError
from smoe.paper.ens10.build_model import EnsembleShape
from smoe.paper.ens10.data.store import EnsembleStore
from smoe.paper.ens10.data.variables import TASKS
from smoe.paper.ens10.recipes import EnsembleData


@dataclass(frozen=True)
class EnsembleSetting:
    """What the data decide.

    Attributes:
        shape: that the model is made for.
        latitude: of the rows, in degrees.
        has_efi: whether the Extreme Forecast Index is known, for some dates at least.
    """

    shape: EnsembleShape
    latitude: tuple[float, ...]
    has_efi: bool


def open_store(data: EnsembleData) -> EnsembleStore:
    """The store a recipe names.

    Raises:
        DataError: if it names none, one that cannot be used, or one of another task or number of members.
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
    """What a store decides."""
    rows, columns = store.grid.shape
    shape = EnsembleShape(store.task, store.num_members, len(store.channels), (rows, columns))
    return EnsembleSetting(shape, tuple(store.grid.latitude), store.efi is not None)


def usual_setting(grid: tuple[int, int] = (361, 720)) -> EnsembleSetting:
    """That of ENS-10's geopotential with ten members, for plans that are made before there are data."""
    latitude = tuple(np.linspace(90.0, -90.0, grid[0]).tolist())
    return EnsembleSetting(EnsembleShape("z500", 10, len(TASKS["z500"].channels), grid), latitude, has_efi=True)
