"""The cosine and models that are evaluated on another grid, in the loop."""

from __future__ import annotations

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
from smoe.training.loop import Loop
from smoe.training.plan import TrainingPlan
from smoe.training.run_directory import RunDirectory, load_checkpoint
from smoe.training.task import Metric, Task
from smoe_paper.metrics import MeanSquaredError

PLAN = TrainingPlan(batch_size=8, evaluation_batch_size=4, max_epochs=3, monitor="mse", device="cpu")
RULE = RoutingClassification(error_quantile=0.6, weight=50.0)
DAMPING = Damping(factor=0.1, error_quantile=0.6)


class Fields(Dataset[tuple[Tensor, Tensor]]):
    """Random fields."""

    def __init__(self, num_samples: int, size: int = 6) -> None:
        generator = torch.Generator().manual_seed(num_samples)
        self.fields = torch.randn(num_samples, 2, 2, size, size, dtype=torch.float64, generator=generator)

    def __len__(self) -> int:
        return len(self.fields)

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        fields = self.fields[indices]
        return fields[:, 0], fields[:, 1]

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


def as_it_is(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return batch


def make_task(size: int = 6, **options: object) -> Task:
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
    return Task(model, optimizer, F.mse_loss, metrics, splits, as_it_is, 0, **options)  # type: ignore[arg-type]


def fit(path: Path, task: Task, plan: TrainingPlan) -> tuple[list[dict], dict[str, Tensor]]:
    run = RunDirectory(path)
    Loop(task, plan, run).fit()
    return without_times(run.read_history()), load_checkpoint(run.last_checkpoint)["model"]


@pytest.mark.parametrize("num_steps", [3, 4])
def test_all_of_it_resumes(tmp_path: Path, num_steps: int) -> None:
    plan = replace(PLAN, schedule="cosine", warmup_epochs=1)
    expected, weights = fit(tmp_path / "whole", make_task(), plan)
    run = RunDirectory(tmp_path / "stopped")
    with pytest.raises(Interrupted):
        Loop(make_task(), plan, run, StopAfter(num_steps, signal.SIGTERM)).fit()
    Loop(make_task(), plan, run).fit(resume=True)
    assert without_times(run.read_history()) == expected
    again = load_checkpoint(run.last_checkpoint)["model"]
    assert all(torch.equal(again[name], tensor) for name, tensor in weights.items())
    assert [record["learning_rate"] for record in expected[:3]] == pytest.approx([0.005, 0.5, 0.25])


def test_a_net_is_evaluated_on_another_grid(tmp_path: Path) -> None:
    def enlarge(model: nn.Module) -> nn.Module:
        return smoe.interpolate_grids(model, example_input=torch.zeros(1, 2, 8, 8, dtype=torch.float64))

    history, _ = fit(tmp_path, make_task(size=8, for_evaluation=enlarge), PLAN)
    task = make_task()
    task.model.load_state_dict(load_checkpoint(RunDirectory(tmp_path).best_checkpoint)["model"])
    input, target = Fields(10, 8).__getitems__(list(range(10)))
    with torch.no_grad():
        error = F.mse_loss(enlarge(task.model).eval()(input), target)
    assert history[-1]["test/mse"] == pytest.approx(float(error))
