"""Inference by one call of a kernel, and decisions that are kept: what a pass with gradients computes."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest
import torch

import smoe
from smoe.ops._operators import native_library

if native_library() is None:
    pytest.skip("the kernels are not built here; python -m smoe.ops.backends says why", allow_module_level=True)

LAYERS = {
    "pairs": (lambda: smoe.SpatialMoE2d(5, 20, 3, spatial_shape=(9, 11)), (2, 5, 9, 11)),
    "four": (lambda: smoe.SpatialMoE2d(20, 6, 3, spatial_shape=(9, 11), num_candidates=4), (1, 20, 9, 11)),
    "batch": (lambda: smoe.SpatialMoE2d(20, 6, 3, spatial_shape=(9, 11), num_candidates=3), (9, 20, 9, 11)),
    "tiny": (lambda: smoe.SpatialMoE2d(1, 1, 3, spatial_shape=(9, 11), num_candidates=3), (2, 1, 9, 11)),
    "stride": (
        lambda: smoe.SpatialMoE2d(3, 17, 3, spatial_shape=(5, 6), stride=2, padding_mode="circular", bias=False),
        (1, 3, 9, 11),
    ),
    "volume": (lambda: smoe.SpatialMoE3d(4, 16, 3, spatial_shape=(3, 5, 7)), (2, 4, 3, 5, 7)),
    "plain": (lambda: smoe.SpatialMoE2d(3, 8, 3, spatial_shape=(6, 5), local_affine=False), (2, 3, 6, 5)),
}


def make(name: str) -> tuple[smoe.SpatialMoE2d, torch.Tensor]:
    """A layer whose numbers all count, in evaluation mode, and an input."""
    torch.manual_seed(0)
    build, shape = LAYERS[name]
    layer, x = build(), torch.randn(shape) + 1.0
    with torch.no_grad():
        layer.gate.embedding.values.normal_()
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter))
    layer(x)  # the mean of the input
    with torch.no_grad():
        layer.weight.add_(torch.randn_like(layer.weight))
    return layer.eval(), x


def slowly(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The output of a pass that records gradients, with a decision that is made anew."""
    return copy.deepcopy(layer)(x).detach()


@pytest.mark.parametrize("name", LAYERS)
def test_inference_computes_what_a_pass_with_gradients_does(name: str) -> None:
    layer, x = make(name)
    for each in (layer, smoe.freeze(layer), pickle.loads(pickle.dumps(smoe.freeze(layer))), copy.deepcopy(layer)):
        for input in (x, x, x[:1], x.transpose(2, 3).contiguous().transpose(2, 3), x.double().float()):
            with torch.no_grad():
                output = each(input)
                assert each._call is not None, "the kernel was not called by itself"
            torch.testing.assert_close(output, slowly(layer, input), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("is_frozen", [False, True])
def test_every_change_is_seen(is_frozen: bool) -> None:
    layer, x = make("pairs")
    layer = smoe.freeze(layer) if is_frozen else layer
    assert layer._affine is not None
    numbers = [layer.weight, layer.bias, layer._affine.scale, layer._affine.offset]
    numbers += [] if is_frozen else [layer.gate.keys, layer.gate.embedding.values]
    for parameter in numbers:
        for change in (parameter.detach(), parameter.data):  # `.data` counts no versions
            with torch.no_grad():
                before = layer(x)
                change.copy_(torch.randn_like(change))
                after = layer(x)
            assert not torch.equal(before, after)
            torch.testing.assert_close(after, slowly(layer, x), rtol=1e-4, atol=1e-4)
    other = smoe.freeze(make("pairs")[0]) if is_frozen else make("pairs")[0]
    layer.load_state_dict(other.state_dict())
    with torch.no_grad():
        assert torch.equal(layer(x), other(x))


def test_a_decision_is_kept_and_can_be_trained_with() -> None:
    layer, x = make("pairs")
    with torch.inference_mode():
        first = layer.gate._decide(x)
        assert layer.gate._decide(x) is first
        layer(x)
    layer.freeze().train()(x).sum().backward()
    assert layer.gate._decide(x) is layer.gate._decide(x)
    assert layer.weight.grad is not None


def test_inference_is_seen_by_modes_and_transforms() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    layer, x = make("pairs")
    expected = slowly(layer, x)
    with torch.no_grad():
        with FlopCounterMode(display=False) as counter:
            layer(x)
        assert counter.get_total_flops() == 2 * expected.numel() * layer.weight[0].numel()
        torch.testing.assert_close(torch.vmap(layer)(x[None])[0], expected, rtol=1e-4, atol=1e-4)
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(x).dtype == torch.bfloat16


def _choose_others(layer: smoe.SpatialMoE2d) -> None:
    indices = layer.gate.get_buffer("indices")
    indices.copy_(indices ^ 1)


def _replace_gate(layer: smoe.SpatialMoE2d) -> None:
    torch.manual_seed(1)
    layer._replace_gate(smoe.freeze(LAYERS["pairs"][0]()).gate)


REPLACED = {
    "data": lambda layer: setattr(layer.bias, "data", torch.randn_like(layer.bias)),
    "parameter": lambda layer: setattr(layer, "weight", torch.nn.Parameter(torch.randn_like(layer.weight))),
    "map": lambda layer: setattr(layer._affine, "scale", torch.nn.Parameter(torch.randn_like(layer._affine.scale))),
    "choices": _choose_others,
    "gate": _replace_gate,
    "strides": lambda layer: setattr(layer.weight, "data", torch.randn(3, 3, 5, 40).permute(3, 2, 0, 1)),
    "transpose": lambda layer: setattr(layer.weight, "data", layer.weight.data.transpose(2, 3)),
    "gate assigned": lambda layer: setattr(layer, "gate", smoe.freeze(LAYERS["pairs"][0]()).gate),
    "map assigned": lambda layer: setattr(layer, "_affine", smoe.LocalAffine(20, (9, 11))),
    "dtype": lambda layer: layer.double().half().float(),
    "loading": lambda layer: layer.load_state_dict(smoe.freeze(make("pairs")[0]).state_dict(), assign=True),
}


@pytest.mark.parametrize("name", REPLACED)
def test_a_bound_call_sees_what_is_replaced(name: str) -> None:
    layer, x = make("pairs")
    layer = smoe.freeze(layer)
    with torch.no_grad():
        for _ in range(2):  # from the second pass on, the call is bound
            layer(x)
        REPLACED[name](layer)
        found = [layer(x) for _ in range(2)]
        copied = copy.deepcopy(layer)
        layer.weight.data.zero_()
        assert torch.equal(copied(x), found[1])
    for each in found:
        torch.testing.assert_close(each, slowly(copied, x), rtol=1e-4, atol=1e-4)


def test_a_bound_call_holds_no_layer() -> None:
    layer, x = make("pairs")
    layer = smoe.freeze(layer)
    with torch.no_grad():
        layer(x)
        layer(x)
    weight = weakref.ref(layer.weight)
    gc.collect()
    gc.disable()
    try:
        del layer
        assert weight() is None
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore:`torch.jit.", "ignore::torch.jit.TracerWarning")
def test_a_bound_call_gives_way() -> None:
    layer, x = make("pairs")
    layer = smoe.freeze(layer)
    expected = slowly(layer, x)
    with torch.no_grad():
        layer(x)
        assert layer._call is not None and layer._call.bound is not None
        programs: list[tuple[Any, torch.Tensor]] = [
            (torch.compile(layer, backend="aot_eager", fullgraph=True), x),
            (torch.export.export(layer, (x,)).module(), x),
            (torch.jit.trace(layer, x), x),
            (torch.vmap(layer, in_dims=1, out_dims=1), x[:, None]),
        ]
        for program, given in programs:
            torch.testing.assert_close(program(given).reshape(expected.shape), expected, rtol=1e-4, atol=1e-4)
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(x).dtype == torch.bfloat16
        with pytest.raises(ValueError, match="float64"):
            layer(x.double())
        without = torch.func.functional_call(layer, {"weight": torch.zeros_like(layer.weight)}, (x,))
        assert not torch.isclose(without, expected).all()
        layer(x)
    assert layer(x).requires_grad
    layer.train()(x).sum().backward()
    assert layer.weight.grad is not None
