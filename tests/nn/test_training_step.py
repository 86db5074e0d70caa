from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import smoe
from definitions import assert_same, define_layer_gradients, gate_gradient, layer_gradients
from smoe.ops import output_grid
from smoe.options import Order
from smoe.rules import Damping, RoutingClassification
from smoe_paper.baselines.layers import ConvGate

RC = RoutingClassification.released()


def compare_with_definition(
    num_experts: int = 4,
    num_selected: int = 2,
    *,
    batch: int = 2,
    grid: tuple[int, int] = (3, 4),
    gate: str = "tensor",
    stride: int = 1,
    order: Order = "score",
    **options: Any,
) -> dict[str, torch.Tensor]:
    """Output and gradients of one training step compared with the loops; returns them."""
    torch.manual_seed(7)
    options = {"rule": RC, **options}
    expert_channels = options.get("expert_channels", 1)
    if gate == "conv":
        options["gate"] = ConvGate(2, num_experts, num_selected, stride=stride, order=order)
    else:
        options["gate"] = smoe.TensorGate(
            num_experts, num_selected, output_grid(*grid, stride), expert_channels, order=order
        )
    layer = smoe.SpatialMoE2d.from_experts(2, num_experts, num_selected, stride=stride, **options).double()
    x = torch.randn(batch, 2, *grid, dtype=torch.float64)
    target = torch.randn(batch, num_selected * expert_channels, *output_grid(*grid, stride), dtype=torch.float64)
    actual = layer_gradients(layer, x, target)
    assert_same(actual, define_layer_gradients(layer, x, target))
    return actual


@pytest.mark.parametrize("rule", [RoutingClassification(0.3), "end_to_end", "frozen"], ids=str)
@pytest.mark.parametrize(
    ("num_selected", "expert_channels", "damping", "weighted"),
    [
        *[(1, 1, Damping(0.0, 0.3), False), (1, 2, None, True), (2, 1, Damping(0.1, 0.7), True)],
        *[(3, 2, Damping(0.1, 0.3), False), (3, 1, Damping(0.0, 0.3), True), (4, 2, Damping(0.1, 0.7), False)],
    ],
)
def test_training_equals_the_definition(num_selected, expert_channels, rule, damping, weighted):
    compare_with_definition(
        4, num_selected, expert_channels=expert_channels, rule=rule, damping=damping, weighted=weighted
    )


@pytest.mark.parametrize(
    ("stride", "rule", "weighted"),
    [(1, RC, True), (2, RC, False), (1, "end_to_end", True), (2, "frozen", False)],
    ids=str,
)
def test_gate_that_looks_at_its_input(stride, rule, weighted):
    compare_with_definition(gate="conv", stride=stride, rule=rule, weighted=weighted, damping=Damping(0.1, 0.3))


@pytest.mark.parametrize(
    "options",
    [
        {"rule": replace(RC, weight=3.0)},
        {"rule": replace(RC, weight=0.0)},
        {"rule": replace(RC, error_quantile=0.0)},
        {"rule": replace(RC, error_quantile=0.7)},
        {"rule": replace(RC, error_quantile=1.0)},
        {"rule": "rc(error_quantile=0.0)", "damping": "damping(error_quantile=0.0, factor=0.0)"},
        {"rule": "rc(error_quantile=1.0)", "damping": "damping(error_quantile=1.0, factor=0.0)"},
        {"rule": replace(RC, tolerance=0.5), "damping": Damping(0.0, 0.3, tolerance=0.0)},
        {"rule": replace(RC, tolerance=0.0), "damping": Damping(0.1, 0.3, tolerance=0.5)},
        {"rule": RoutingClassification.paper()},
        {"rule": replace(RC, tolerance_unit="output", tolerance=0.3)},
        {"damping": Damping(0.1, 0.3, tolerance_unit="output", tolerance=0.5)},
        {"order": "index"},
        {"order": "index", "weighted": True, "rule": "end_to_end", "expert_channels": 2},
        {"stride": 2, "expert_channels": 2},
        {"stride": 2, "padding_mode": "longitude"},
        {"padding_mode": "circular", "kernel_size": (1, 3)},
        {"padding_mode": "longitude", "kernel_size": (5, 3), "order": "index"},
        {"batch": 1, "grid": (1, 1)},
        {"num_experts": 7, "num_selected": 5},
        {"num_experts": 1, "num_selected": 1},
    ],
)
def test_each_option_equals_the_definition(options):
    compare_with_definition(**options)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_shape_and_option(data):
    num_experts = data.draw(st.integers(1, 5), "X")
    compare_with_definition(
        num_experts,
        data.draw(st.integers(1, num_experts), "E"),
        batch=data.draw(st.integers(1, 3), "B"),
        grid=(data.draw(st.integers(1, 4), "H"), data.draw(st.integers(1, 4), "W")),
        gate=data.draw(st.sampled_from(["tensor", "conv"]), "gate"),
        stride=data.draw(st.integers(1, 2), "stride"),
        kernel_size=(data.draw(st.sampled_from([1, 3]), "kh"), data.draw(st.sampled_from([1, 3]), "kw")),
        expert_channels=data.draw(st.integers(1, 2), "F"),
        padding_mode=data.draw(st.sampled_from(["zeros", "circular", "longitude"]), "padding_mode"),
        weighted=data.draw(st.booleans(), "weighted"),
        order=data.draw(st.sampled_from(["score", "index"]), "order"),
        rule=data.draw(
            st.one_of(
                st.sampled_from(["end_to_end", "frozen"]),
                st.builds(
                    RoutingClassification,
                    error_quantile=st.sampled_from([0.0, 0.3, 0.7, 1.0]),
                    weight=st.sampled_from([1.0, 0.2]),
                ),
            ),
            "rule",
        ),
        damping=data.draw(
            st.none()
            | st.builds(
                Damping, factor=st.sampled_from([0.0, 0.1]), error_quantile=st.sampled_from([0.0, 0.3, 0.7, 1.0])
            ),
            "damping",
        ),
    )


@pytest.mark.parametrize("rule", [RC, "rc", "end_to_end"], ids=str)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_errors_that_are_not_finite_are_visible(value, rule):
    layer = smoe.SpatialMoE2d.from_experts(1, 3, 1, spatial_shape=(4, 4), order="score", rule=rule)
    x = torch.randn(2, 1, 4, 4)
    layer(x).pow(2).mean().backward()
    assert layer._signal.num_nonfinite == 0
    layer.zero_grad()
    for expected in (1, 2):
        (layer(x) * value).sum().backward()
        assert layer._signal.num_nonfinite == expected
        assert gate_gradient(layer).abs().max() == 0
        assert layer.weight.grad is not None
        assert not layer.weight.grad.isfinite().all()
