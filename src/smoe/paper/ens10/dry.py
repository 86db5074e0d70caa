"""Makes the task of an ensemble recipe without its data, for estimates before a training."""

from __future__ import annotations

from smoe.experiments.dry_task import DryTask
from smoe.paper.ens10.build import make_split, make_task
from smoe.paper.ens10.model_options import EmosModel
from smoe.paper.ens10.recipes import EnsembleRecipe
from smoe.paper.ens10.setting import open_store, setting_of, usual_setting

# ENS-10 starts two forecasts a week.
_STARTS_A_YEAR = 105


def build_dry_task(recipe: EnsembleRecipe, grid: tuple[int, int] | None = None) -> DryTask:
    """Makes the task without reading fields.

    Args:
        recipe: Recipe.
        grid: Rows and columns of data that do not exist yet; None for those of the store, or ENS-10's.
    """
    data = recipe.data
    if data.store is None or grid is not None:
        setting = usual_setting() if grid is None else usual_setting(grid)
        spans = (data.train_years, data.validation_years)
        num_train, num_validation = (_STARTS_A_YEAR * (last - first + 1) for first, last in spans)
        source = f"no store is read: ENS-10's z500 with 10 members, {_STARTS_A_YEAR} forecasts a year"
    else:
        store = open_store(data)
        setting = setting_of(store)
        num_train, num_validation = (
            len(make_split(recipe, store, split, _ignore)) for split in ("train", "validation")
        )
        source = f"{data.store}: {store.task} with {store.num_members} members"
    shape = setting.shape
    num_channels = shape.num_members if isinstance(recipe.model, EmosModel) else shape.in_channels
    return DryTask(
        make_task(recipe, setting),
        (num_channels, *shape.grid),
        # Truth, mean and spread of the ensemble, and the EFI.
        (3 + setting.has_efi, *shape.grid),
        num_train,
        num_validation,
        source,
    )


def _ignore(_: str) -> None:
    pass
