"""Batches in parts, averaged weights, the cosine and models that are evaluated on another grid, in the loop."""

from __future__ import annotations

import copy
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

import smoe
from small_training import StopAfter, without_times
from smoe.errors import Interrupted
from smoe.rules import Damping, RoutingClassification
from smoe.training.distribution import WeightAverage, rescaled_decay
from smoe.training.loop import Loop
from smoe.training.plan import TrainingPlan
from smoe.training.run_directory import RunDirectory, load_checkpoint
from smoe.training.task import Metric, Task
from smoe_paper.metrics import MeanSquaredError

PLAN = TrainingPlan(batch_size=8, evaluation_batch_size=4, max_epochs=3, monitor="mse", device="cpu")
RULE = RoutingClassification(error_quantile=0.6, weight=50.0)
DAMPING = Damping(factor=0.1, error_quantile=0.6)


class Fields(Dataset[tuple[Tensor, Tensor]]):
    """Random fields; the copies of a sample differ from it by noise of their number."""

    def __init__(self, num_samples: int, size: int = 6) -> None:
        generator = torch.Generator().manual_seed(num_samples)
        self.fields = torch.randn(num_samples, 2, 2, size, size, dtype=torch.float64, generator=generator)

    def __len__(self) -> int:
        return len(self.fields)

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        copies = torch.tensor(indices) // len(self)
        fields = self.fields[torch.tensor(indices) % len(self)]
        return fields[:, 0] + 0.1 * copies[:, None, None, None], fields[:, 1]

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


def as_it_is(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return batch


def make_task(size: int = 6, num_repetitions: int = 1, **options: object) -> Task:
    torch.manual_seed(0)
    gate = smoe.TensorGate(4, 2, (6, 6))
    model = nn.Sequential(
        smoe.SpatialMoE2d.from_experts(2, 4, 2, gate=gate, rule=RULE, damping=DAMPING),
        nn.Tanh(),
        smoe.SpatialMoE2d.from_experts(2, 4, 2, gate=gate, rule=RULE, damping=DAMPING),
    ).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    metrics: list[Metric] = [MeanSquaredError()]
    splits = {"train": Fields(24), "validation": Fields(9, size), "test": Fields(10, size)}
    return Task(model, optimizer, F.mse_loss, metrics, splits, as_it_is, 0,
                num_repetitions=num_repetitions, **options)  # type: ignore[arg-type]  # fmt: skip


def fit(path: Path, task: Task, plan: TrainingPlan) -> tuple[list[dict], dict[str, Tensor]]:
    run = RunDirectory(path)
    Loop(task, plan, run).fit()
    return without_times(run.read_history()), load_checkpoint(run.last_checkpoint)["model"]


def test_a_run_in_parts_is_the_run_of_whole_batches(tmp_path: Path) -> None:
    whole, weights = fit(tmp_path / "whole", make_task(), PLAN)
    parts, weights_of_parts = fit(tmp_path / "parts", make_task(), replace(PLAN, part_size=2))
    assert [record["epoch"] for record in parts] == [record["epoch"] for record in whole]
    for ours, theirs in zip(parts, whole, strict=True):
        # Measured on as many samples as a part, or a batch, has.
        for key in theirs.keys() - {"routing_gains", "warnings"}:
            value = theirs[key]
            assert ours[key] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-9)), key
    for name, tensor in weights.items():
        torch.testing.assert_close(weights_of_parts[name], tensor, msg=name)
    assert whole[0]["routing/changed"] > 0


@pytest.mark.parametrize("num_steps", [3, 4])
def test_all_of_it_resumes(tmp_path: Path, num_steps: int) -> None:
    plan = replace(PLAN, part_size=2, schedule="cosine", warmup_epochs=1, average_every=2, average_decay=0.95)
    expected, weights = fit(tmp_path / "whole", make_task(num_repetitions=2), plan)
    run = RunDirectory(tmp_path / "stopped")
    with pytest.raises(Interrupted):
        Loop(make_task(num_repetitions=2), plan, run, StopAfter(num_steps, signal.SIGTERM)).fit()
    Loop(make_task(num_repetitions=2), plan, run).fit(resume=True)
    assert without_times(run.read_history()) == expected
    again = load_checkpoint(run.last_checkpoint)["model"]
    assert all(torch.equal(again[name], tensor) for name, tensor in weights.items())
    assert [record["learning_rate"] for record in expected[:3]] == pytest.approx([0.005, 0.5, 0.25])


def test_the_average_is_what_is_evaluated_and_kept(tmp_path: Path) -> None:
    plan = replace(PLAN, average_every=1, average_decay=0.999)
    plain, _ = fit(tmp_path / "plain", make_task(), PLAN)
    averaged, weights = fit(tmp_path / "averaged", make_task(), plan)
    assert averaged[0]["train/loss"] == plain[0]["train/loss"], "the average must not touch the training"
    assert averaged[-1]["test/mse"] != plain[-1]["test/mse"]
    best = load_checkpoint(RunDirectory(tmp_path / "averaged").best_checkpoint)["model"]
    assert any(not torch.equal(best[name], tensor) for name, tensor in weights.items())
    task = make_task()
    task.model.load_state_dict(best)
    input, target = Fields(10).__getitems__(list(range(10)))
    with torch.no_grad():
        assert float(F.mse_loss(task.model.eval()(input), target)) == pytest.approx(averaged[-1]["test/mse"])


@pytest.mark.parametrize("average_every", [None, 1])
def test_a_net_is_evaluated_on_another_grid(tmp_path: Path, average_every: int | None) -> None:
    plan = replace(PLAN, average_every=average_every, average_decay=0.9)

    def enlarge(model: nn.Module) -> nn.Module:
        return smoe.interpolate_grids(model, example_input=torch.zeros(1, 2, 8, 8, dtype=torch.float64))

    history, _ = fit(tmp_path, make_task(size=8, for_evaluation=enlarge), plan)
    task = make_task()
    task.model.load_state_dict(load_checkpoint(RunDirectory(tmp_path).best_checkpoint)["model"])
    input, target = Fields(10, 8).__getitems__(list(range(10)))
    with torch.no_grad():
        error = F.mse_loss(enlarge(task.model).eval()(input), target)
    assert history[-1]["test/mse"] == pytest.approx(float(error))


def test_the_decay_of_the_published_recipe() -> None:
    # 1 - 2e-5 * 1024 * 32 / 600, and for the paper's batch 8 times as much.
    plan = TrainingPlan(batch_size=1024, max_epochs=600, average_every=32)
    assert rescaled_decay(plan) == pytest.approx(1.0 - 2e-5 * 1024 * 32 / 600)
    assert 1.0 - rescaled_decay(plan) == pytest.approx(1.0922667e-3)
    plan = TrainingPlan(batch_size=8192, max_epochs=600, average_every=32)
    assert 1.0 - rescaled_decay(plan) == pytest.approx(8.738133e-3)
    assert rescaled_decay(TrainingPlan(batch_size=8192, max_epochs=1, average_every=32)) == 0.0


def test_the_average_is_the_definition() -> None:
    torch.manual_seed(0)
    gate = smoe.TensorGate(4, 2, (3, 3), order="families")
    model = nn.Sequential(
        smoe.SpatialMoE2d.from_experts(2, 4, 2, gate=gate),
        nn.BatchNorm2d(2),
        smoe.SpatialMoE2d.from_experts(2, 4, 2, gate=gate),
    ).double()
    # 1 - 0.9 of a sample and epoch, times 4 samples and 2 steps over 4 epochs: 0.2.
    plan = TrainingPlan(
        batch_size=4, max_epochs=4, average_every=2, average_decay=0.9, schedule="cosine", warmup_epochs=1
    )
    average = WeightAverage(model, plan)
    expected = copy.deepcopy(model.state_dict())
    for epoch in range(1, 4):
        for step in range(1, 6):
            for name, tensor in model.state_dict().items():
                if not name.endswith("order_code"):
                    tensor += torch.randn(tensor.shape).to(tensor.dtype) if tensor.is_floating_point() else 1
            average.observe(model, epoch, step)
            if step in (1, 3, 5):
                # The last update of the warm-up counts as none: the first one after it copies too.
                copies = epoch == 1 or (epoch == 2 and step == 1)
                for name, value in model.state_dict().items():
                    is_copied = copies or not value.is_floating_point()
                    expected[name] = value.clone() if is_copied else 0.8 * expected[name] + 0.2 * value
    ours = average.model.state_dict()
    assert list(ours) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(ours[name], value, msg=name)
    assert isinstance(average.model, nn.Sequential)
    assert average.model[0].gate is average.model[2].gate
    assert average.model[0].gate is not gate

    again = WeightAverage(model, plan)
    again.model.load_state_dict(average.model.state_dict())
    again.has_begun = average.has_begun
    for held in (average, again):
        held.observe(model, 3, 7)
    for name, value in average.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value), name


def test_a_rule_that_is_not_in_force_does_not_mix_up_the_buffers() -> None:
    torch.manual_seed(0)
    layer, norm = smoe.SpatialMoE2d.from_experts(2, 4, 2, spatial_shape=(3, 3)), nn.BatchNorm2d(2)
    model = nn.Sequential(layer, norm)
    average = WeightAverage(model, TrainingPlan(batch_size=4, max_epochs=4, average_every=1, average_decay=0.9))
    # As the warm-up of the routing does: the state of the rule is gone meanwhile.
    layer.rule = "frozen"
    norm.get_buffer("running_mean").add_(1.0)
    average.observe(model, 1, 1)
    assert average.model.state_dict()["1.running_mean"].tolist() == [1.0, 1.0]
