"""Networks that correct ensembles, their training and their scores."""

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
from smoe import SpatialMoE2d
from smoe.errors import DataError
from smoe.rules import Damping, RoutingClassification
from smoe.training.loop import Loop
from smoe.training.run_directory import RunDirectory
from smoe.training.task import Task
from smoe_paper.ens10.model import build_model, build_task, make_split, make_task, trunk
from smoe_paper.ens10.recipes import (
    ENSEMBLE_RECIPES,
    EmosModel,
    EnsembleModel,
    PixelModel,
    SpatialMoEUNetModel,
    UNetModel,
)
from smoe_paper.ens10.scores import score_raw_ensemble
from smoe_paper.experiments.task import Learning, count_parameters
from smoe_paper.models import Emos

LEARNING = Learning(RoutingClassification.released(), None)
STORE = make_ensemble()


def build_small(model: EnsembleModel, learning: Learning = LEARNING) -> torch.nn.Module:
    return build_model(model, learning, STORE)


def moe_layers(model: torch.nn.Module) -> dict[str, SpatialMoE2d]:
    return {name: module for name, module in model.named_modules() if isinstance(module, SpatialMoE2d)}


def test_parameters_of_ens10() -> None:
    # Kernels of 14 channels: 633,698 less 578 of the head, 800 biases and twice as many numbers of the norms.
    kernels = 633_698 - 578 - 3 * 800
    # On 9 x 8, 4 x 4 and 2 x 2: encoder 128, 256 and 512 experts; decoder 128, 256 and 128, 512 and 256.
    gates = 128 * 72 + 256 * 16 + 512 * 4 + 128 * 72 + (256 + 128) * 16 + (512 + 256) * 4
    assert count_parameters(build_small(UNetModel())) == (633_698, 0)
    assert count_parameters(build_small(SpatialMoEUNetModel())) == (633_698 + 3 * kernels, gates)
    assert count_parameters(build_small(EmosModel())) == (5 + 3, 0)


def test_rivals_know_the_place_and_start_without_it() -> None:
    """Each pixel's numbers start where they change nothing, and each receives a gradient of its own pixel."""
    statistics, members = torch.randn(2, 14, 9, 8), torch.rand(2, 5, 9, 8)
    places = {
        PixelModel(hidden=0, embedding=2): 2 * 72,
        PixelModel(): 8 * 72 + (22 * 64 + 64) + (64 * 64 + 64) + (64 * 2 + 2),
        EmosModel(places="constants"): 8 + 2 * 72,
        EmosModel(places="all"): 8 + (2 + 6) * 72,
        UNetModel(learned_channels=8): 633_698 + 8 * (72 + 9 * 32),
        UNetModel(local_affine=True): 633_698 + 2 * (128 * 72 + (128 + 96) * 16 + (256 + 192) * 4),
    }
    for model, number in places.items():
        torch.manual_seed(0)
        net = build_small(model)
        tables = [p for p in net.parameters() if set(p.shape) >= {9, 8}]
        assert tables, model
        assert count_parameters(net) == (number, 0), model
        input = members if isinstance(model, EmosModel) else statistics
        first = net(input)
        assert first.shape == (2, 2, 9, 8)
        first[..., 3, 5].sum().backward()
        for table in tables:
            gradient = table.grad
            assert gradient is not None and gradient.abs().sum() > 0, model
            if not isinstance(model, UNetModel):
                kept = gradient.reshape(-1, 9, 8) if table.shape[-1] == 8 else gradient.movedim(-1, 0)
                kept[:, 3, 5] = 0.0
                assert kept.abs().sum() == 0, model


def test_gates_are_shared_by_grid_and_bank_but_not_across_the_trunks() -> None:
    layers = moe_layers(build_small(SpatialMoEUNetModel(filters=4)))
    assert len(layers) == 12
    assert {trunk(name) for name in layers} == {"encoder", "decoder"}
    assert all(layer.gate.num_experts == 4 * layer.gate.num_selected for layer in layers.values())
    assert all(layer.bias is not None for layer in layers.values())
    gates: dict[int, set[tuple[str, tuple[int, ...] | None, int]]] = {}
    for name, layer in layers.items():
        gates.setdefault(id(layer.gate), set()).add((trunk(name), layer.gate.spatial_shape, layer.gate.num_experts))
    # Each gate has one trunk, grid and bank, and each of these one gate: three in the encoder, five in the decoder.
    assert all(len(users) == 1 for users in gates.values())
    assert sorted(next(iter(users)) for users in gates.values()) == [
        ("decoder", (2, 2), 32),
        ("decoder", (2, 2), 64),
        ("decoder", (4, 4), 16),
        ("decoder", (4, 4), 32),
        ("decoder", (9, 8), 16),
        ("encoder", (2, 2), 64),
        ("encoder", (4, 4), 32),
        ("encoder", (9, 8), 16),
    ]
    unshared = moe_layers(build_small(SpatialMoEUNetModel(filters=4, share_gates=False)))
    assert len({id(layer.gate) for layer in unshared.values()}) == 12


def test_all_layers_hold_the_rule_of_the_recipe() -> None:
    learning = Learning(RoutingClassification(error_quantile=0.6, tolerance_unit="output"), Damping(factor=0.3))
    layers = moe_layers(build_small(SpatialMoEUNetModel(filters=4, order="index"), learning))
    assert len(layers) == 12
    assert all((layer.rule, layer.damping) == learning and layer.gate.order == "index" for layer in layers.values())


def test_emos_scales_by_the_range_of_its_task() -> None:
    for task, low in {"z500": 48_200.0, "t850": 240.0, "t2m": 218.0}.items():
        model = build_model(EmosModel(), LEARNING, make_ensemble(task=task, num_members=10))
        assert isinstance(model, Emos) and (model.num_members, model.low) == (10, low)


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
    assert {"test/crps", "test/eecrps"} <= set(record)
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
    known = [row for row in range(24, 36) if row not in (24, 30)]
    spread, error = store.target_std[known], store.truth[known] - store.target_mean[known]
    scores = scoringrules.crps_normal(error, 0.0, spread)
    assert raw["eecrps"] == pytest.approx((np.abs(store.efi[known]) * scores).mean(), rel=1e-4)
    assert len(splits["test"]) == 12


def test_the_raw_ensemble() -> None:
    store = make_ensemble()
    assert store.efi is not None
    values = score_raw_ensemble(store, (2002, 2002), batch_size=5)
    truth = store.truth[24:].astype(np.float64)
    gaussian = scoringrules.crps_normal(truth, store.target_mean[24:], store.target_std[24:])
    assert values["crps"] == pytest.approx(gaussian.mean(), rel=1e-5)
    assert values["eecrps"] == pytest.approx((np.abs(store.efi[24:]) * gaussian).mean(), rel=1e-5)


def test_data_that_are_not_there() -> None:
    with pytest.raises(DataError, match="make a store with `smoe data prepare ens10`"):
        build_task(tiny_recipe("ens10/unet"))
    said: list[str] = []
    recipe = tiny_recipe("ens10/unet")
    recipe = replace(recipe, data=replace(recipe.data, train_years=(1999, 2000)))
    make_split(recipe, make_ensemble(), "train", said.append)
    assert len(said) == 1 and "1999" in said[0]
