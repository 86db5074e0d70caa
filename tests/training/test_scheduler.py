from __future__ import annotations

import torch
from torch import nn

from smoe.training.loop import make_scheduler
from smoe.training.plan import TrainingPlan


def learning_rates(plan: TrainingPlan, values: list[float], lrs: tuple[float, ...] = (1e-3,)) -> list[list[float]]:
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": lr} for lr in lrs]
    optimizer = torch.optim.Adam(groups)
    scheduler = make_scheduler(optimizer, plan)
    seen = []
    for value in values:
        scheduler.step(value)
        seen.append([group["lr"] for group in optimizer.param_groups])
    return seen


def test_the_learning_rate_of_every_group_falls_to_the_floor() -> None:
    plan = TrainingPlan(monitor_mode="min", plateau_patience=0, plateau_factor=0.1, min_lr=1e-5)
    seen = learning_rates(plan, [1.0] * 4, lrs=(1e-3, 1e-2))
    torch.testing.assert_close(torch.tensor(seen[-1]), torch.tensor([1e-5, 1e-5]))
    torch.testing.assert_close(torch.tensor(seen[1]), torch.tensor([1e-4, 1e-3]))


def test_the_margin_of_an_improvement_is_absolute() -> None:
    plan = TrainingPlan(monitor_mode="min", plateau_patience=0, min_delta=0.1)
    assert learning_rates(plan, [1.0, 0.95])[-1] != [1e-3]
    assert learning_rates(plan, [1.0, 0.85])[-1] == [1e-3]
