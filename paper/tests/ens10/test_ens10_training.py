from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scoringrules
import torch

from memory_ensemble import make_ensemble, tiny_recipe
from smoe.errors import DataError
from smoe.training.loop import Loop
from smoe.training.run_directory import RunDirectory
from smoe.training.task import Task
from smoe_paper.ens10.model import build_task, make_split, make_task
from smoe_paper.ens10.recipes import ENSEMBLE_RECIPES
from smoe_paper.ens10.scores import score_raw_ensemble

SPLITS = ("train", "validation", "test")


def quietly(_: str) -> None:
    pass


def make_tiny_task(name: str, **options: Any) -> Task:
    store = make_ensemble(**options.pop("store", {}))
    recipe = tiny_recipe(name, **options)
    return make_task(recipe, store, {split: make_split(recipe, store, split, quietly) for split in SPLITS})


@pytest.mark.parametrize("name", list(ENSEMBLE_RECIPES))
def test_every_recipe_trains_and_is_scored(name: str, tmp_path: Path) -> None:
    task = make_tiny_task(name)
    before = {key: value.clone() for key, value in task.model.state_dict().items()}
    record = Loop(task, tiny_recipe(name).training, RunDirectory(tmp_path / "run")).fit()
    assert {"test/crps", "test/spread_skill", "test/eecrps", "test/efi_dates"} <= set(record)
    assert 0.0 < record["test/eecrps"] < record["test/crps"] < 2.0
    # The validation years have no index.
    assert "validation/eecrps" not in record or math.isnan(record["validation/eecrps"])
    after = task.model.state_dict()
    assert all(not torch.equal(before[key], after[key]) for key, _ in task.model.named_parameters())


def test_emos_sees_the_members_and_the_others_the_statistics() -> None:
    store = make_ensemble()
    for name, field in (("ens10/emos", "members"), ("ens10/unet", "inputs")):
        samples = make_split(tiny_recipe(name), store, "test", quietly)
        input, target = samples[3]
        row = 24 + 3
        np.testing.assert_array_equal(input, getattr(store, field)[row])
        expected = [store.truth[row], store.target_mean[row], store.target_std[row]]
        np.testing.assert_array_equal(target[:3], np.stack(expected))
        assert store.efi is not None
        np.testing.assert_array_equal(target[3], store.efi[row])


def test_forecasts_without_an_index_are_left_out_of_the_eecrps_and_said() -> None:
    store = make_ensemble()
    assert store.efi is not None
    store.efi[[24, 30]] = np.nan
    said: list[str] = []
    recipe = tiny_recipe("ens10/unet")
    splits = {split: make_split(recipe, store, split, said.append) for split in SPLITS}
    assert said == [
        "validation: 12 of 12 forecasts have no extreme forecast index, and the EECRPS leaves them out",
        "test: 2 of 12 forecasts have no extreme forecast index, and the EECRPS leaves them out",
    ]
    raw = score_raw_ensemble(store, (2002, 2002))
    assert raw["efi_dates"] == 10
    known = [row for row in range(24, 36) if row not in (24, 30)]
    spread, error = store.target_std[known], store.truth[known] - store.target_mean[known]
    scores = scoringrules.crps_normal(error, 0.0, spread)
    assert raw["eecrps"] == pytest.approx((np.abs(store.efi[known]) * scores).mean(), rel=1e-4)
    assert len(splits["test"]) == 12


def test_the_raw_ensemble() -> None:
    store = make_ensemble()
    assert store.members is not None and store.efi is not None
    values = score_raw_ensemble(store, (2002, 2002), batch_size=5)
    truth, members = store.truth[24:].astype(np.float64), store.members[24:].astype(np.float64)
    gaussian = scoringrules.crps_normal(truth, store.target_mean[24:], store.target_std[24:])
    assert values["crps"] == pytest.approx(gaussian.mean(), rel=1e-5)
    assert values["eecrps"] == pytest.approx((np.abs(store.efi[24:]) * gaussian).mean(), rel=1e-5)
    for name, estimator in (("ensemble_crps", "nrg"), ("fair_ensemble_crps", "fair")):
        expected = scoringrules.crps_ensemble(truth, members, m_axis=1, estimator=estimator)
        assert expected is not None
        assert values[name] == pytest.approx(expected.mean(), rel=1e-5)
    # Too cold and too narrow.
    assert values["ensemble_spread_skill"] < 0.6


def test_data_that_are_not_there() -> None:
    with pytest.raises(DataError, match="make a store with `smoe data prepare ens10`"):
        build_task(tiny_recipe("ens10/unet"))
    said: list[str] = []
    recipe = tiny_recipe("ens10/unet")
    recipe = replace(recipe, data=replace(recipe.data, train_years=(1999, 2000)))
    make_split(recipe, make_ensemble(), "train", said.append)
    assert len(said) == 1 and "1999" in said[0]
