from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from small_training import PLAN, StopAfter, make_task, without_times
from smoe import SpatialMoE2d, TensorGate
from smoe.errors import Interrupted
from smoe.rules import Damping, RoutingClassification
from smoe.training.loop import Loop
from smoe.training.run_directory import RunDirectory, load_checkpoint
from smoe.training.task import Task
from smoe_paper.experiments.task import RoutingWarmup

PAPER = RoutingClassification.paper()


def make_net() -> nn.Sequential:
    """Two layers on one gate, one with a damping of its own, and a third that owns its gate."""
    torch.manual_seed(0)
    gate = TensorGate(4, 2, (5, 6))
    return nn.Sequential(
        SpatialMoE2d.from_experts(1, 4, 2, gate=gate, rule=PAPER),
        nn.Tanh(),
        SpatialMoE2d.from_experts(2, 4, 2, gate=gate, rule=PAPER, damping=Damping(factor=0.5)),
        nn.Tanh(),
        SpatialMoE2d.from_experts(2, 4, 2, spatial_shape=(5, 6), rule=PAPER),
    )


def layer(net: nn.Sequential, place: int) -> SpatialMoE2d:
    found = net[place]
    assert isinstance(found, SpatialMoE2d)
    return found


def gradients(net: nn.Sequential) -> dict[str, torch.Tensor]:
    net.zero_grad()
    x = torch.randn(3, 1, 5, 6, generator=torch.Generator().manual_seed(1))
    net(x).square().mean().backward()
    return {name: parameter.grad.clone() for name, parameter in net.named_parameters() if parameter.grad is not None}


def test_the_routing_waits_and_the_experts_learn_undamped() -> None:
    net, expected = make_net(), make_net()
    warmup = RoutingWarmup(net, num_epochs=2)
    always = gradients(net)
    for epoch in (1, 2):
        warmup.begin_epoch(epoch)
    paused = gradients(net)
    # Gradients of zero, so that an optimiser counts the steps in one process as in several.
    assert not any(gradient.any() for name, gradient in paused.items() if "gate" in name)
    # In evaluation mode gradients are those of the function computed.
    whole = gradients(expected.eval())
    for name in ("0.weight", "2.weight", "4.weight"):
        torch.testing.assert_close(paused[name], whole[name])
    assert not torch.equal(paused["0.weight"], always["0.weight"])
    warmup.begin_epoch(3)
    after = gradients(net)
    assert after["0.gate.scores"].any() and after["4.gate.scores"].any()
    assert after.keys() == always.keys()
    for name, gradient in always.items():
        torch.testing.assert_close(after[name], gradient)


def test_a_paused_layer_still_counts_errors_that_are_not_finite() -> None:
    net = make_net()
    RoutingWarmup(net, num_epochs=1).begin_epoch(1)
    (net(torch.randn(1, 1, 5, 6)) * torch.inf).sum().backward()
    assert int(layer(net, 4)._signal.num_nonfinite) == 1


def warm_task(rule: str) -> Task:
    task = make_task(rule=rule)
    task.begin_epoch = RoutingWarmup(task.model, 2).begin_epoch
    return task


@pytest.mark.parametrize("num_steps", [2, 6])
@pytest.mark.parametrize("rule", ["rc", "end_to_end"])
def test_a_run_is_resumed_within_the_warm_up_and_after_it(tmp_path: Path, num_steps: int, rule: str) -> None:
    plan = replace(PLAN, monitor="loss", monitor_mode="min")
    whole, stopped = RunDirectory(tmp_path / "whole"), RunDirectory(tmp_path / "stopped")
    Loop(warm_task(rule), plan, whole).fit()
    with pytest.raises(Interrupted):
        Loop(warm_task(rule), plan, stopped, StopAfter(num_steps, signal.SIGTERM)).fit()
    Loop(warm_task(rule), plan, stopped).fit(resume=True)
    assert without_times(stopped.read_history()) == without_times(whole.read_history())
    theirs, ours = load_checkpoint(whole.last_checkpoint)["model"], load_checkpoint(stopped.last_checkpoint)["model"]
    assert all(torch.equal(ours[key], value) for key, value in theirs.items())
    # Three batches to an epoch, two epochs of warm-up.
    assert [record["routing/changed"] > 0 for record in whole.read_history()[:2]] == [False, False]
