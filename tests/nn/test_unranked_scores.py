"""Scores that are not finite where a selection cannot raise an error: the outputs at their pixels are NaN."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import smoe
from smoe.nn import _gate as banded
from smoe.nn import _gates as gates

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec:FutureWarning"),
]
GRID = (4, 6)
GATES: dict[str, Callable[[], smoe.SpatialGate]] = {
    "tensor": lambda: smoe.TensorGate(6, 2, GRID),
    "seldom sorted": lambda: smoe.TensorGate(20, 17, GRID),
    "by number": lambda: smoe.TensorGate(6, 2, GRID, order="index"),
    "families": lambda: smoe.TensorGate(6, 2, GRID, order="families"),
    "factorised": lambda: smoe.FactorisedGate(6, 2, GRID),
}


def make(name: str, value: float) -> smoe.SpatialMoE2d:
    """A layer in evaluation mode, one of whose scores at the pixel (1, 2) is not finite."""
    torch.manual_seed(0)
    gate = GATES[name]()
    layer = smoe.SpatialMoE2d.from_experts(3, gate.num_experts, gate.num_selected, gate=gate).eval()
    with torch.no_grad():
        values = next(each for each in (*gate.parameters(), *gate._learned_numbers()) if each.shape[1:] == GRID)
        values[1, 1, 2] = value
    return layer


@pytest.mark.parametrize(("name", "value"), [*zip(GATES, [torch.nan, torch.inf, -torch.inf] * 2, strict=False)])
def test_a_plain_program_marks_the_pixel(name: str, value: float) -> None:
    layer, input = make(name, value), torch.randn(2, 3, *GRID)
    program = torch.export.export(layer, (input,)).run_decompositions(smoe.ops.plain_operators())
    is_marked = program.module()(input).isnan()
    assert is_marked[:, :, 1, 2].all()
    assert is_marked.sum() == is_marked[:, :, 1, 2].numel()


@pytest.mark.parametrize("name", ["seldom sorted", "families", "factorised"])
def test_an_exported_program_raises_and_leaves_gradients_on(name: str) -> None:
    layer, input = make(name, torch.nan), torch.randn(2, 3, *GRID)
    program = torch.export.export(layer, (input,)).module()
    with pytest.raises(ValueError, match="not finite"):
        program(input)
    assert torch.is_grad_enabled()


def test_a_draw_in_bands_marks_the_pixel_where_the_device_cannot_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(banded, "_MAX_SCORES", 1)
    monkeypatch.setattr(gates, "has_library", lambda: False)
    monkeypatch.setattr(banded, "refuses_nonfinite", lambda device: False)
    monkeypatch.setattr("smoe.ops._routing.refuse_nonfinite", lambda scores: None)
    layer, input = make("factorised", torch.nan), torch.randn(2, 3, *GRID)
    assert len(layer.gate._bands(24)) > 1
    is_marked = layer(input).isnan()
    assert is_marked[:, :, 1, 2].all()
    assert is_marked.sum() == is_marked[:, :, 1, 2].numel()
