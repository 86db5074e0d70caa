"""The layers of the library are equal to the page that explains them."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.nn.functional as F

import smoe
from smoe import reference
from smoe.reference import FamilyMoE2d, PaperMoE2d
from smoe.rules import RoutingClassification, StraightThrough


def test_the_page_is_a_page() -> None:
    assert len(inspect.getsource(reference).splitlines()) <= 150


def _gradients(layer: torch.nn.Module, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.clone().requires_grad_()
    output = layer(x)
    F.mse_loss(output, target).backward()
    assert x.grad is not None
    return output.detach(), x.grad


@pytest.mark.parametrize(("num_experts", "num_selected"), [(3, 1), (5, 2), (4, 3)])
def test_the_papers_layer_is_equal(num_experts: int, num_selected: int) -> None:
    torch.manual_seed(0)
    page = PaperMoE2d(2, num_experts, num_selected, (7, 5))
    layer = smoe.SpatialMoE2d.from_experts(
        2, num_experts, num_selected, spatial_shape=(7, 5), order="score", rule=RoutingClassification.paper()
    )
    layer.load_state_dict({"weight": page.weight, "gate.scores": page.scores}, strict=False)
    x, target = torch.randn(4, 2, 7, 5), torch.randn(4, num_selected, 7, 5)
    output, input_gradient = _gradients(page, x, target)
    found, found_gradient = _gradients(layer, x, target)
    torch.testing.assert_close(found, output)
    torch.testing.assert_close(found_gradient, input_gradient)
    torch.testing.assert_close(layer.weight.grad, page.weight.grad)
    torch.testing.assert_close(layer.gate.get_parameter("scores").grad, page.scores.grad)


@pytest.mark.parametrize("num_candidates", [2, 3])
def test_the_default_layer_takes_the_same_steps(num_candidates: int) -> None:
    torch.manual_seed(0)
    page = FamilyMoE2d(2, 4, num_candidates, (7, 5))
    torch.nn.init.normal_(page.weight)
    torch.nn.init.normal_(page.bias)
    rule = StraightThrough(noise=0.0, share=1.0)
    layer = smoe.SpatialMoE2d(2, 4, num_candidates=num_candidates, spatial_shape=(7, 5), rule=rule)
    layer.load_state_dict(
        {
            "weight": page.weight.flatten(0, 1),
            "bias": page.bias.flatten(),
            "gate.keys": page.get_buffer("keys").flatten(0, 1),
            "gate.embedding.values": page.embedding,
        },
        strict=False,
    )
    assert layer._input_mean is not None
    layer._input_mean.start(layer.weight)
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (page, layer)]
    for _ in range(6):
        x, target = torch.randn(4, 2, 7, 5) + 2.0, torch.randn(4, 4, 7, 5)
        for each in optimizers:
            each.zero_grad()
        output, input_gradient = _gradients(page, x, target)
        found, found_gradient = _gradients(layer, x, target)
        torch.testing.assert_close(found, output)
        torch.testing.assert_close(found_gradient, input_gradient)
        for each in optimizers:
            each.step()
        page.step_gate()
    state = layer.state_dict()
    torch.testing.assert_close(state["weight"], page.weight.detach().flatten(0, 1))
    torch.testing.assert_close(state["bias"], page.bias.detach().flatten())
    for name in ("scale", "offset"):
        start = 1.0 if name == "scale" else 0.0
        assert (state[f"_affine.{name}"] - start).abs().max() > 1e-3
        torch.testing.assert_close(state[f"_affine.{name}"], page.get_parameter(name).detach())
    torch.testing.assert_close(state["gate.keys"], page.get_buffer("keys").detach().flatten(0, 1))
    torch.testing.assert_close(state["gate.embedding.values"], page.get_buffer("embedding").detach())
