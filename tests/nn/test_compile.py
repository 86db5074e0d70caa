from __future__ import annotations

import copy
import shutil
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smoe
from definitions import gate_gradient
from smoe.rules import Damping, RoutingClassification
from smoe_paper.baselines.layers import CoordConvGate

RC = RoutingClassification.released()

pytestmark = [
    # The tracer of torch 2.13 instantiates autograd functions, and its inductor imports scripted methods.
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),
]
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")

GENERATOR = torch.Generator().manual_seed(0)
X, TARGET = torch.randn(3, 2, 7, 8, generator=GENERATOR), torch.randn(3, 4, 7, 8, generator=GENERATOR)
LAYERS: dict[str, dict[str, Any]] = {
    "tensor": {"spatial_shape": (7, 8), "order": "score", "rule": RC},
    "undamped": {"spatial_shape": (7, 8), "order": "score", "rule": "rc"},
    "two_thresholds": {"spatial_shape": (7, 8), "order": "score", "rule": "rc", "damping": Damping(0.1, 0.3)},
    "weighted": {"spatial_shape": (7, 8), "order": "score", "weighted": True, "rule": "end_to_end", "damping": 0.1},
    "index_longitude": {"spatial_shape": (7, 8), "order": "index", "rule": RC, "padding_mode": "longitude"},
    "coord_conv": {"gate": lambda: CoordConvGate(2, 5, 2), "rule": RC},
    # Without noise: a compiled pass draws other random numbers.
    "families": {
        "spatial_shape": (7, 8),
        "order": "families",
        "rule": "straight_through(noise=0.0)",
        "bias": "expert",
    },
    "frozen": {"spatial_shape": (7, 8), "order": "score", "rule": "frozen"},
    "frozen_damped": {"spatial_shape": (7, 8), "order": "score", "rule": "frozen", "damping": 0.1},
}


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compare_with_eager(options: dict[str, Any], backend: str, scale: float) -> None:
    torch.manual_seed(0)
    options = {name: value() if name == "gate" else value for name, value in options.items()}
    eager = smoe.SpatialMoE2d.from_experts(2, 5, 2, expert_channels=2, **options)
    torch.nn.init.normal_(eager.weight)  # experts of a family start equal, which gives the gate nothing to learn
    inner = copy.deepcopy(eager)
    compiled = torch.compile(inner, backend=backend, fullgraph=True)
    for layer, call in ((eager, eager), (inner, compiled)):
        # Twice, so that the second backward runs with what the first one left behind.
        for factor in (1.0, scale):
            layer.zero_grad()
            loss = smoe.nn.track_loss_scale(F.mse_loss(call(X), TARGET), layer)
            (loss * factor).backward()
    torch.testing.assert_close(compiled(X), eager(X))
    for (name, actual), expected in zip(inner.named_parameters(), eager.parameters(), strict=True):
        if not expected.requires_grad:
            assert actual.grad is None and expected.grad is None, name
            continue
        assert actual.grad is not None, name
        assert expected.grad is not None, name
        assert expected.grad.abs().max() > 0, name
        torch.testing.assert_close(actual.grad, expected.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", LAYERS)
def test_compiled_layer_trains_as_the_eager_one(name):
    compare_with_eager(LAYERS[name], "aot_eager", scale=1024.0)


@needs_compiler
def test_inductor():
    compare_with_eager(LAYERS["tensor"], "inductor", scale=16.0)


def test_compiled_layer_counts_errors_that_are_not_finite():
    layer = smoe.SpatialMoE2d.from_experts(2, 5, 2, spatial_shape=(7, 8), rule=RC, order="score")
    (torch.compile(layer, backend="aot_eager", fullgraph=True)(X) * torch.nan).sum().backward()
    assert layer._signal.num_nonfinite == 1
    assert gate_gradient(layer).abs().max() == 0
