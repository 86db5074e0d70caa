"""Every row of every heat table can be built and takes a training step."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from smoe.rules import EndToEnd
from smoe_paper.experiments.task import count_parameters
from smoe_paper.heat.model import build_task
from smoe_paper.heat.recipes import HEAT_RECIPES, HeatDiffusion, HeatRecipe, SpatialMoEModel
from smoe_paper.heat.tables import HEAT

# Twenty pixels: patches of four divide it, and the largest dilation of the low-rank combiner fits.
TINY = HeatDiffusion(spatial_shape=(20, 20), num_steps=4, num_train_runs=2, num_validation_runs=1, num_test_runs=1)
ROWS = {f"{table.name}: {row.label}": row for table in HEAT.tables.tables for row in table.rows}


def quietly(_: str) -> None:
    pass


# One of each kind of network, gate, loss and rule; the others with -m slow.
SAMPLED = {
    *(f"heat/main: {label}" for label in ("Convolution", "CondConv", "LRLCN", "LCN", "FC", "V-MoE", "SMoE")),
    *(f"heat/gates: {label}" for label in ("Fully-connected", "3 x 3 LCN", "3 x 3 CoordConv x 3")),
    "heat/starts: perfect, yes, random, no",
    "heat/auxiliary: yes, yes, yes, yes",
    "heat/experts: CoordConv",
    "heat/weighted: yes",
    "heat/rules: two of six, summed, default",
    "heat/units: 0.001, default",
}


@pytest.mark.parametrize(
    "name", [name if name in SAMPLED else pytest.param(name, marks=pytest.mark.slow) for name in ROWS]
)
def test_every_row_takes_a_step(name: str) -> None:
    recipe = ROWS[name].recipe
    assert isinstance(recipe, HeatRecipe)
    task = build_task(replace(recipe, data=TINY), splits=("train",), notify=quietly)
    input, target = task.splits["train"].__getitems__(list(range(8)))  # type: ignore[attr-defined]
    learning = [parameter for parameter in task.model.parameters() if parameter.requires_grad]
    before = [parameter.detach().clone() for parameter in learning]
    task.model.train()
    prediction = task.model(input)
    assert prediction.shape == target.shape
    loss = task.loss(prediction, target)
    if task.auxiliary_loss is not None:
        loss = loss + task.auxiliary_loss(task.model)
    loss.backward()
    task.optimizer.step()
    assert torch.isfinite(loss)
    assert any(not torch.equal(old, new) for old, new in zip(before, learning, strict=True))
    assert all(torch.isfinite(parameter).all() for parameter in learning)


@pytest.mark.parametrize(
    ("recipe", "counts"),
    {
        "heat/smoe": (27, 12288),
        "heat/conv": (146, 0),
        "heat/coordconv": (56, 0),
        "heat/condconv": (200, 0),
        "heat/conv-plain": (160, 0),
        "heat/condconv-plain": (186, 0),
        "heat/lrlcn": (516, 0),
        "heat/lrlcn-nd": (12315, 0),
        "heat/lcn": (36864, 0),
        "heat/fc": (16_777_216, 0),
        "heat/vit": (202_768, 0),
        "heat/vmoe": (466_576, 0),
    }.items(),
)
def test_parameters_of_the_main_table(recipe: str, counts: tuple[int, int]) -> None:
    assert count_parameters(build_task(HEAT_RECIPES[recipe], splits=(), notify=quietly).model) == counts


def test_every_row_of_the_paper_has_its_number() -> None:
    for table in HEAT.tables.tables:
        for row in table.rows:
            assert (not row.paper) == (not table.source or "not residual" in row.label), (table.name, row.label)
    numbers = {table.name: len(table.rows) for table in HEAT.tables.tables}
    assert numbers["heat/main"] == 13 and numbers["heat/gates"] == 6 and numbers["heat/starts"] == 6
    assert numbers["heat/auxiliary"] == numbers["heat/auxiliary-end-to-end"] == 11


def test_the_table_of_losses_trains_each_model_by_both() -> None:
    (table,) = HEAT.tables.select("heat/losses")
    for row in table.rows:
        task = build_task(replace(row.recipe, data=TINY), splits=(), notify=quietly)  # type: ignore[arg-type]
        kind = {"squared": 4.0, "absolute": 2.0}[row.labels[1]]
        assert float(task.loss(torch.tensor([3.0]), torch.tensor([1.0]))) == kind, row.label
    with pytest.raises(ValueError, match="loss must be mse or mae, got 'huber'"):
        HeatRecipe(loss="huber")  # type: ignore[arg-type]


def test_a_true_start_is_exact() -> None:
    model = SpatialMoEModel(gate_start="true", experts_start="true")
    recipe = HeatRecipe(data=TINY, model=model, rule=EndToEnd())
    task = build_task(recipe, splits=("test",), notify=quietly)
    input, target = task.splits["test"].__getitems__([0, 1, 2])  # type: ignore[attr-defined]
    torch.testing.assert_close(task.model(input), target, rtol=1e-5, atol=1e-6)


def test_frozen_experts_stay() -> None:
    model = SpatialMoEModel(experts_start="true", experts_frozen=True)
    task = build_task(HeatRecipe(data=TINY, model=model), splits=(), notify=quietly)
    assert {name for name, parameter in task.model.named_parameters() if parameter.requires_grad} == {
        "layer.gate.scores"
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gate_start": "true", "gate": "conv"}, "start of a tensor gate"),
        ({"experts_start": "true", "experts": "coordconv"}, "needs convolution experts"),
        ({"experts_start": "true", "kernel_size": 1}, "at least 3 x 3"),
        ({"experts_start": "true", "num_selected": 2}, "num_selected=2"),
    ],
)
def test_starts_that_do_not_exist_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SpatialMoEModel(**options)  # type: ignore[arg-type]
