from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import smoe
from smoe.training.distribution import WeightAverage, rescaled_decay
from smoe.training.plan import TrainingPlan


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
