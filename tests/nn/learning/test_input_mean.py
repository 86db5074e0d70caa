"""Candidates that are compared without the mean input, and what layers say of inputs that should be normalised."""

from __future__ import annotations

import copy

import pytest
import torch

import smoe

GRID = (6, 8)


def make_layer() -> smoe.SpatialMoE2d:
    torch.manual_seed(0)
    return smoe.SpatialMoE2d(2, 3, spatial_shape=GRID)


@pytest.mark.filterwarnings("ignore:channel 0 of an SMoE layer")
def test_a_new_layer_is_a_convolution_and_candidates_of_one_output_agree_on_the_mean() -> None:
    layer, x = make_layer(), 300.0 + torch.randn(4, 2, *GRID)
    expected = torch.nn.functional.conv2d(x, layer.weight[::2], padding=1)
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-3)
    single = smoe.SpatialMoE2d(2, 1, spatial_shape=GRID)
    single(x)
    mean = x.mean(dim=(0, 2, 3), keepdim=True).expand_as(x[:1])
    found = single.eval()(mean)[..., 1:-1, 1:-1]
    common = torch.nn.functional.conv2d(mean, single.weight.mean(dim=0, keepdim=True))
    torch.testing.assert_close(found, common, rtol=1e-4, atol=1e-3)


@pytest.mark.filterwarnings("ignore:channel 0 of an SMoE layer")
def test_the_first_training_pass_keeps_the_function_of_filters_that_are_not_new() -> None:
    layer, x = make_layer(), 300.0 + torch.randn(4, 2, *GRID)
    with torch.no_grad():
        layer.weight.mul_(1.5)
    start = copy.deepcopy(layer).eval()
    torch.testing.assert_close(layer(x), start(x))
    torch.testing.assert_close(layer.state_dict()["_input_mean.mean"], x.mean(dim=(0, 2, 3)))
    layer(x + 5.0)
    torch.testing.assert_close(layer.state_dict()["_input_mean.mean"], x.mean(dim=(0, 2, 3)))
    # A change that distinguishes the candidates acts on what differs from the mean: not on a constant input.
    with torch.no_grad():
        change = torch.randn_like(layer.weight).unflatten(0, (3, 2))
        layer.weight.add_((change - change.mean(dim=1, keepdim=True)).flatten(0, 1))
        mean = x.mean(dim=(0, 2, 3), keepdim=True).expand_as(x[:1])
        old, new = start(mean), layer.eval()(mean)
    torch.testing.assert_close(new[..., 1:-1, 1:-1], old[..., 1:-1, 1:-1], rtol=1e-3, atol=5e-3)
    twin = make_layer()
    twin.load_state_dict(layer.state_dict())
    torch.testing.assert_close(twin.eval()(x), layer(x))
    frozen = smoe.freeze(layer)
    torch.testing.assert_close(frozen(x), layer(x), rtol=1e-4, atol=1e-3)
    assert copy.deepcopy(layer).bfloat16().state_dict()["_input_mean.mean"].dtype == torch.float32


def test_an_input_far_from_zero_is_warned_of_once() -> None:
    layer, x = make_layer(), 300.0 + 15.0 * torch.randn(4, 2, *GRID)
    with pytest.warns(
        UserWarning, match=r"channel 0 .* mean of 300.* and deviates by 1\d.*normalise inputs and targets"
    ):
        layer(x)
    layer(x)


def test_layers_share_an_embedding_and_stand_once_in_a_state_dict() -> None:
    first = smoe.SpatialMoE2d(2, 3, spatial_shape=GRID)
    second = smoe.SpatialMoE2d(3, 5, spatial_shape=GRID, embedding=first.gate.embedding)  # type: ignore[arg-type]
    assert second.gate.embedding is first.gate.embedding
    with pytest.raises(ValueError, match="give gate= or embedding="):
        smoe.SpatialMoE2d(3, 5, gate=second.gate, embedding=first.gate.embedding)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="embedding= is for the default gate of families"):
        smoe.SpatialMoE2d(3, 5, spatial_shape=GRID, rule="rc", embedding=first.gate.embedding)  # type: ignore[arg-type]
