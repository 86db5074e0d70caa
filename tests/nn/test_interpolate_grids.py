"""A network trained on one size of images, taken to another: the gates of 44 x 44 pixels meet 56 x 56."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smoe
from smoe.rules import RoutingClassification
from smoe_paper.baselines.layers import ConvGate, CoordConv2d, LinearGate
from smoe_paper.baselines.routing_losses import ScoreGate

RC = RoutingClassification.released()


def layer_with(scores: torch.Tensor, num_selected: int = 2, **options: Any) -> smoe.SpatialMoE2d:
    num_experts, height, width = scores.shape
    layer = smoe.SpatialMoE2d.from_experts(
        3, num_experts, num_selected, spatial_shape=(height, width), order="score", rule=RC, **options
    )
    assert isinstance(layer.gate, smoe.TensorGate)
    layer.gate.scores.data = scores
    return layer


def scores_of(layer: nn.Module) -> torch.Tensor:
    assert isinstance(layer, smoe.SpatialMoE2d)
    assert isinstance(layer.gate, smoe.TensorGate)
    return layer.gate.scores


def small_net() -> nn.Module:
    torch.manual_seed(0)
    sizes = [(4, 4, 1), (4, 4, 1), (4, 8, 2), (8, 8, 2), (8, 8, 2)]
    layers = [nn.Conv2d(inputs, outputs, 3, stride, 1) for inputs, outputs, stride in sizes]
    net = nn.Sequential(nn.Conv2d(3, 4, 7, 4, 3), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    return smoe.convert(net, example_input=torch.zeros(1, 3, 176, 176), rule=RC, order="score").eval()


def test_the_published_sizes() -> None:
    net = small_net()
    with pytest.raises(ValueError, match=r"grid of \(44, 44\)"):
        net(torch.zeros(1, 3, 224, 224))
    new = smoe.interpolate_grids(net, example_input=torch.zeros(1, 3, 224, 224))
    assert new(torch.randn(2, 3, 224, 224)).shape == (2, 5)
    layers = {name: layer for name, layer in new.named_modules() if isinstance(layer, smoe.SpatialMoE2d)}
    grids = {name: layer.gate.spatial_shape for name, layer in layers.items()}
    assert grids == {
        "1": (56, 56), "2": (56, 56), "3": (28, 28), "4": (14, 14), "5": (7, 7)
    }  # fmt: skip
    assert layers["1"].gate is layers["2"].gate
    for name, layer in layers.items():
        old = net.get_submodule(name)
        assert isinstance(old, smoe.SpatialMoE2d)
        assert torch.equal(layer.weight, old.weight)
        assert is_near(scores_of(old), scores_of(layer)).all()
    assert scores_of(net.get_submodule("1")).shape == (8, 44, 44)


def test_the_same_size_is_the_same_network() -> None:
    net = small_net()
    same = smoe.interpolate_grids(net, example_input=torch.zeros(1, 3, 176, 176))
    x = torch.randn(2, 3, 176, 176)
    assert torch.equal(net(x), same(x))
    for (name, ours), (_, theirs) in zip(net.named_parameters(), same.named_parameters(), strict=True):
        assert torch.equal(ours, theirs), name
        assert ours.data_ptr() != theirs.data_ptr()


def is_near(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Whether each new pixel has the numbers of an old one that is less than a pixel away along each axis."""
    found = torch.zeros(new.shape[1:], dtype=torch.bool)
    for place in itertools.product(*map(range, new.shape[1:])):
        centres = [(i + 0.5) * n / m - 0.5 for i, n, m in zip(place, old.shape[1:], new.shape[1:], strict=True)]
        around = [{min(max(math.floor(c) + s, 0), n - 1) for s in (0, 1)}
                  for c, n in zip(centres, old.shape[1:], strict=True)]  # fmt: skip
        numbers = new[(slice(None), *place)]
        found[place] = any(torch.equal(numbers, old[(slice(None), *each)]) for each in itertools.product(*around))
    return found


REGIONS = torch.tensor([[0, 0, 0, 1, 1, 1]] * 3 + [[0, 0, 2, 2, 1, 1], [2, 2, 2, 2, 2, 2], [2, 2, 2, 2, 2, 2]])


@pytest.mark.parametrize("kind", ["table", "scores", "fixed", "coordinates", "volume", "sphere", "nodes"])
def test_pixels_of_a_border_have_the_experts_of_a_side(kind: str) -> None:
    """Three regions, whose numbers have sizes from 1 to 100 and in whose means other experts would be the best."""
    torch.manual_seed(0)
    old, new = (
        torch.stack(torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij"), -1) for size in (6, 12)
    )
    front = {"volume": (2,), "sphere": (12,)}.get(kind, ())
    grid, finer = ((36,), (144,)) if kind == "nodes" else ((*front, 6, 6), (*front, 12, 12))
    regions = REGIONS.expand(*front, 6, 6).reshape(grid)
    numbers = (torch.randn(8, 3)[:, regions] * 100.0 ** torch.rand(grid)).detach()
    if kind in ("scores", "fixed"):
        gate: Any = smoe.TensorGate(8, 2, grid, order="families") if kind == "scores" else smoe.FixedGate(numbers, 2)
        gate.scores.data = numbers
    else:
        embedding = smoe.nn.CoordinateEmbedding(8, old) if kind == "coordinates" else smoe.PixelEmbedding(8, grid)
        embedding.values.data = numbers - (embedding() - embedding.values).detach()
        gate = smoe.FactorisedGate(64, 8, embedding=embedding)
    if kind == "nodes":
        moved = smoe.transfer_gate(gate, old.flatten(0, 1), (new.flatten(0, 1) - 0.5) / 2)
    else:
        options: dict[str, Any] = {"gate": gate, "rule": "frozen"}
        layer: Any = {"volume": smoe.SpatialMoE3d, "sphere": smoe.HEALPixMoE}.get(kind, smoe.SpatialMoE2d)
        options |= {"nside": 6, "pixel_order": "ring"} if kind == "sphere" else {}
        layer = layer.from_experts(1, gate.num_experts, gate.num_selected, 1, **options)
        moved = smoe.interpolate_grids(layer, example_input=torch.zeros(1, 1, *finer)).gate
    before = gate.forward().indices[0].double().unflatten(1, (*front, 6, 6))
    after = moved.forward().indices[0].double().unflatten(1, (*front, 12, 12))
    assert is_near(before, after).all()
    # Along straight borders each fine pixel has what the coarse one had in which it lies.
    doubled = before.repeat_interleave(2, -1).repeat_interleave(2, -2)
    assert torch.equal(after[..., :5, :], doubled[..., :5, :])


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("kind", ["GCN", "GIN", "sequence"])
def test_nodes_and_sequences_follow_their_coordinates(kind: str, copies: int) -> None:
    """The same places in another order, each once or twice: then the same outputs."""
    torch.manual_seed(0)
    nodes, index = torch.arange(10), torch.randperm(10).repeat(copies)
    if kind == "sequence":
        plain: nn.Module = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
        old, new = (torch.randn(1, 10, 8),), ()
    else:
        plain = getattr(pytest.importorskip("torch_geometric.nn.models"), kind)(8, 8, 2)
        edges = torch.stack([nodes, (nodes + 1) % 10])
        number = torch.empty(10, dtype=torch.long).index_copy(0, index[:10], nodes)
        old = (torch.randn(1, 10, 8)[0], edges)
        new = (torch.cat([number[edges] + 10 * copy for copy in range(copies)], dim=1),)
    net = smoe.convert(plain.eval(), example_input=old, linear=True)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_(std=0.5)
        expected, example = net(*old)[..., index, :], (old[0][..., index, :], *new)
        places = torch.randn(10, 2)
        moved = smoe.interpolate_grids(net, example_input=example, coordinates=(places, places[index]))
        torch.testing.assert_close(moved(*example), expected)


def test_linear_layers_of_images_have_a_grid() -> None:
    net = smoe.convert(nn.Sequential(nn.Linear(3, 4)), example_input=torch.randn(2, 4, 6, 3), linear=True)
    new = smoe.interpolate_grids(net, example_input=torch.randn(2, 6, 6, 3))
    (old_values, values), (old_scale, scale) = (
        [layer.get_parameter(name) if "scale" in name else layer.get_buffer(name) for layer in (net[0], new[0])]  # type: ignore[index]
        for name in ("gate.embedding.values", "_affine.scale")
    )
    assert is_near(old_values.unflatten(1, (4, 6)), values.unflatten(1, (6, 6))).all()
    assert old_scale.shape[1:] == (24,) and scale.shape[1:] == (36,)
    assert new(torch.randn(2, 6, 6, 3)).shape == (2, 6, 6, 4)


def test_what_wraps_has_neighbours_beyond_the_border() -> None:
    scores = torch.zeros(2, 2, 4)
    scores[0, 0, 0] = scores[1, 1, 0] = scores[1, :, 3] = 1.0
    for padding_mode, expected in (("zeros", 0), ("longitude", 1), ("circular", 1)):
        layer = layer_with(scores.clone(), 1, padding_mode=padding_mode)
        new = smoe.interpolate_grids(layer, example_input=torch.zeros(1, 3, 6, 12))
        assert new.routing().indices[0, 2, 0] == expected


def test_what_is_frozen_stays_frozen_and_modes_stay() -> None:
    layer = layer_with(torch.randn(4, 3, 3), local_affine=True)
    assert layer._affine is not None
    layer._affine.scale.data.normal_()
    layer.gate.requires_grad_(False)
    new = smoe.interpolate_grids(nn.Sequential(layer, nn.BatchNorm2d(2)), example_input=torch.zeros(1, 3, 5, 5))
    assert new.training
    assert not scores_of(new[0]).requires_grad
    expected = F.interpolate(layer._affine.scale[None], (5, 5), mode="bilinear", align_corners=False)[0]
    torch.testing.assert_close(new[0].get_parameter("_affine.scale"), expected)
    assert new[0].weight.requires_grad
    assert new[1].num_batches_tracked == 0


def test_gates_of_other_kinds() -> None:
    x = torch.randn(1, 3, 6, 6)
    noisy = smoe.SpatialMoE2d.from_experts(3, 4, 2, gate=ScoreGate(smoe.TensorGate(4, 2, (4, 4))), rule=RC)
    fixed = smoe.SpatialMoE2d.from_experts(3, 4, 2, gate=smoe.FixedGate.random(4, 2, (4, 4)), rule=RC)
    free = smoe.SpatialMoE2d.from_experts(3, 4, 2, gate=ConvGate(3, 4, 2), rule=RC)
    module = smoe.SpatialMoE(CoordConv2d(3, 4), 4, 2, spatial_shape=(4, 4), rule=RC, order="score")
    for layer in (noisy, fixed, free, module):
        new = smoe.interpolate_grids(layer, example_input=x)
        assert new.gate.spatial_shape in ((6, 6), None)
        assert new(x).shape == (1, 2, 6, 6)
        assert set(layer.state_dict()) == set(new.state_dict())


def test_factorised_gates_share_their_embedding_on_the_new_grid() -> None:
    torch.manual_seed(0)
    embedding = smoe.PixelEmbedding(3, (4, 4), init="kaiming")
    first, second = (smoe.FactorisedGate(num_experts, 2, embedding=embedding) for num_experts in (4, 6))
    net = nn.Sequential(
        smoe.SpatialMoE2d.from_experts(3, 4, 2, gate=first, rule="straight_through"),
        smoe.SpatialMoE2d.from_experts(2, 6, 2, gate=second, rule="straight_through"),
    )
    new = smoe.interpolate_grids(net, example_input=torch.zeros(1, 3, 8, 9))
    gates = [layer.gate for layer in new if isinstance(layer, smoe.SpatialMoE2d)]
    assert isinstance(gates[0], smoe.FactorisedGate) and isinstance(gates[1], smoe.FactorisedGate)
    assert gates[0].embedding is gates[1].embedding
    assert is_near(embedding.values, gates[0].embedding.values).all()
    assert torch.equal(gates[1].keys, second.keys)
    assert new(torch.randn(2, 3, 8, 9)).shape == (2, 2, 8, 9)


class TwoGrids(nn.Module):
    """Two layers that share a gate, on grids that are the same for an even input of 8 only."""

    def __init__(self) -> None:
        super().__init__()
        gate = smoe.TensorGate(4, 2, (4, 4))
        self.first = smoe.SpatialMoE2d.from_experts(3, 4, 2, gate=gate, stride=2, rule=RC)
        self.second = smoe.SpatialMoE2d.from_experts(3, 4, 2, gate=gate, rule=RC)
        self.unused = smoe.SpatialMoE2d.from_experts(3, 4, 2, spatial_shape=(3, 3), rule=RC, order="score")
        self.uses_all = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x) + self.second(F.adaptive_avg_pool2d(x, 4))
        return y + self.unused(F.adaptive_avg_pool2d(x, 3)).mean() if self.uses_all else y


@pytest.mark.parametrize("num_axes", [1, 3])
def test_lines_and_volumes_learn_on_at_another_resolution(num_axes: int) -> None:
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[num_axes - 1]
    net = nn.Sequential(
        kind(2, 4, 3, padding=1, padding_mode="circular"), kind(4, 4, 3, padding=2, dilation=2, groups=2)
    )
    small, large = torch.randn(2, 2, *(4,) * num_axes), torch.randn(2, 2, *(6,) * num_axes)
    converted = smoe.convert(net, example_input=small)
    converted(small).square().mean().backward()
    with pytest.raises(ValueError, match=r"smoe\.interpolate_grids"):
        converted(large)
    larger = smoe.interpolate_grids(converted, example_input=large)
    assert [layer.gate.spatial_shape for layer in larger] == [(6,) * num_axes] * 2  # type: ignore[union-attr]
    torch.testing.assert_close(larger.eval()(large), net.eval()(large), rtol=1e-4, atol=1e-5)
    larger.train()(large).square().mean().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in larger.parameters())


@pytest.mark.parametrize("kind", ["table", "coordinates", "sphere"])
def test_what_was_learned_on_one_grid_is_tuned_on_a_finer_one(kind: str) -> None:
    """One half of the places doubles its input, on the finer grid three times, the other one turns its sign."""
    torch.manual_seed(0)

    def fields(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        grid = (12, size, size) if kind == "sphere" else (size, size)
        x = torch.randn(16, 1, *grid)
        return x, torch.where(torch.arange(size) < size // 2, x * (2.0 if size == 8 else 3.0), -x)

    def learn(layer: nn.Module, size: int, num_steps: int) -> float:
        optimizer = torch.optim.AdamW(layer.train().parameters(), 5e-2)
        for _ in range(num_steps):
            x, target = fields(size)
            optimizer.zero_grad()
            F.mse_loss(layer(x), target).backward()
            optimizer.step()
        x, target = fields(size)
        return F.mse_loss(layer.eval()(x), target).item()

    options: dict[str, Any] = {"local_affine": False}
    if kind == "coordinates":
        places = torch.stack(torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij"), dim=-1)
        options["embedding"] = smoe.nn.CoordinateEmbedding(8, places)
    layer: nn.Module
    if kind == "sphere":
        layer = smoe.HEALPixMoE(1, 1, 1, nside=8, **options)
        with pytest.raises(ValueError, match=r"got shape .* smoe\.interpolate_grids makes a layer for another nside"):
            layer(fields(16)[0])
    else:
        layer = smoe.SpatialMoE2d(1, 1, 1, **{"spatial_shape": (8, 8), **options} if kind == "table" else options)
    assert learn(layer, 8, 100) < 0.02
    finer = smoe.interpolate_grids(layer, example_input=fields(16)[0])
    assert 0.4 < learn(finer, 16, 0) < 0.6  # what the factors differ by, and no choice is wrong
    assert learn(finer, 16, 30) < 0.1


def test_refusals() -> None:
    with pytest.raises(TypeError, match="model must be a network, got the class TwoGrids"):
        smoe.interpolate_grids(TwoGrids, example_input=torch.zeros(1, 3, 12, 12))  # type: ignore[type-var]
    graph, edges = smoe.GraphMoE(3, 4, num_nodes=10), torch.zeros(2, 1, dtype=torch.long)
    example, places = (torch.randn(12, 3), edges), torch.randn(12, 2)
    for given, message in (
        (places, r"coordinates must be a pair \(old, new\), got a Tensor"),
        ((places.numpy(), places), "coordinates must be tensors, got ndarray and Tensor"),
        (
            (places[:9], places),
            r"was made for the places \(10,\), but the old coordinates are of \(9,\)",
        ),
        (None, r"x has 12 nodes, no multiple of the 10 .* by smoe\.interpolate_grids"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            smoe.interpolate_grids(graph, example_input=example, coordinates=given)  # type: ignore[arg-type]
    net = TwoGrids()
    with pytest.raises(ValueError, match=r"first needs the grid \(6, 6\) and second the grid \(4, 4\), but one field"):
        smoe.interpolate_grids(net, example_input=torch.zeros(1, 3, 12, 12))
    net.uses_all = False
    with pytest.raises(ValueError, match="the example input does not reach unused"):
        smoe.interpolate_grids(net, example_input=torch.zeros(1, 3, 8, 8))
    linear = smoe.SpatialMoE2d.from_experts(3, 4, 2, gate=LinearGate(3, 4, 2, (4, 4)), rule=RC)
    with pytest.raises(ValueError, match=r"the LinearGate of the model itself was made for the grid \(4, 4\)"):
        smoe.interpolate_grids(linear, example_input=torch.zeros(1, 3, 6, 6))
    broken = layer_with(torch.randn(4, 3, 3))
    scores_of(broken).data[1, 2, 0] = math.nan
    with pytest.raises(ValueError, match="1 values of the model itself are not finite"):
        smoe.interpolate_grids(broken, example_input=torch.zeros(1, 3, 6, 6))
