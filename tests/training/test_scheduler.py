from __future__ import annotations

import pytest
import torch
from torch import nn

from smoe.training.distribution import make_schedule
from smoe.training.plan import TrainingPlan


def learning_rates(plan: TrainingPlan, values: list[float], lrs: tuple[float, ...] = (1e-3,)) -> list[list[float]]:
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": lr} for lr in lrs]
    optimizer = torch.optim.Adam(groups)
    scheduler = make_schedule(optimizer, plan)
    seen = []
    for value in values:
        optimizer.step()
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


def test_the_wave_is_torchs() -> None:
    plan = TrainingPlan(max_epochs=9, schedule="cosine", warmup_epochs=3, warmup_start=0.1, min_lr=1e-3)
    ours, theirs = (torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5) for _ in range(2))
    schedule = make_schedule(ours, plan)
    warmup = torch.optim.lr_scheduler.LinearLR(theirs, start_factor=0.1, total_iters=3)
    wave = torch.optim.lr_scheduler.CosineAnnealingLR(theirs, T_max=6, eta_min=1e-3)
    both = torch.optim.lr_scheduler.SequentialLR(theirs, [warmup, wave], milestones=[3])
    for _ in range(9):
        assert ours.param_groups[0]["lr"] == pytest.approx(theirs.param_groups[0]["lr"])
        theirs.step()
        both.step()
        schedule.step(0.0)
        # As after a resume.
        kept, state = ours.state_dict(), schedule.state_dict()
        ours = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
        schedule = make_schedule(ours, plan)
        ours.load_state_dict(kept)
        schedule.load_state_dict(state)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="warmup_epochs belongs to schedule='cosine', but schedule is 'plateau'"):
        TrainingPlan(warmup_epochs=3)
    with pytest.raises(ValueError, match="warmup_epochs must be below max_epochs, 3, got 3"):
        TrainingPlan(schedule="cosine", warmup_epochs=3, max_epochs=3)
    with pytest.raises(ValueError, match="warmup_start must be above 0 and at most 1, got 0"):
        TrainingPlan(schedule="cosine", warmup_start=0.0)
    with pytest.raises(ValueError, match="average_decay must be in"):
        TrainingPlan(average_decay=1.0)
    with pytest.raises(ValueError, match="part_size must be at least 1, got 0"):
        TrainingPlan(part_size=0)
