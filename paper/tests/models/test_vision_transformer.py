from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from smoe_paper.baselines.patch_moe import FeedForward, PatchMoE
from smoe_paper.models import TransformerBlock, VisionTransformer, sine_cosine_position

GRID, PATCH, WIDTH, HEADS = (4, 6), 2, 8, 2


def tiny(**changes) -> VisionTransformer:
    arguments = {"patch_size": PATCH, "width": WIDTH, "num_heads": HEADS, "depth": 2, "hidden": 5, **changes}
    net = VisionTransformer(2, 3, GRID, **arguments).double()
    # Biases and layer norms start at zeros and ones, where a mistake would not show.
    for name, parameter in net.named_parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter, mean=1.0 if "norm.weight" in name else 0.0, std=0.3)
    return net


def normalize(token: torch.Tensor, norm: nn.LayerNorm) -> torch.Tensor:
    centred = token - token.mean()
    return centred / torch.sqrt((centred**2).mean() + norm.eps) * norm.weight + norm.bias


def feed_forward(layer: FeedForward, token: torch.Tensor) -> torch.Tensor:
    hidden = layer.widen.weight @ token + layer.widen.bias
    hidden = hidden * 0.5 * (1.0 + torch.erf(hidden / math.sqrt(2.0)))
    return layer.narrow.weight @ hidden + layer.narrow.bias


def mixture(layer: PatchMoE, token: torch.Tensor) -> torch.Tensor:
    """Without noise and with room for every token."""
    probabilities = torch.softmax(layer.gate.weight @ token, dim=0)
    best = int(probabilities.argmax())
    expert = layer.experts[best]
    assert isinstance(expert, FeedForward)
    return probabilities[best] * feed_forward(expert, token)


def attend(block: TransformerBlock, tokens: list[torch.Tensor]) -> list[torch.Tensor]:
    """Every query against every key, one head after the other."""
    attention = block.attention
    size = WIDTH // HEADS
    projected = [attention.project_in.weight @ token + attention.project_in.bias for token in tokens]
    outputs: list[torch.Tensor] = []
    for asking in projected:
        heads: list[torch.Tensor] = []
        for head in range(HEADS):
            start = head * size
            query = asking[start : start + size]
            keys = [asked[WIDTH + start : WIDTH + start + size] for asked in projected]
            values = [asked[2 * WIDTH + start : 2 * WIDTH + start + size] for asked in projected]
            weights = torch.stack([torch.exp((query @ key) / math.sqrt(size)) for key in keys])
            weighted = [weight / weights.sum() * value for weight, value in zip(weights, values, strict=True)]
            heads.append(torch.stack(weighted).sum(dim=0))
        outputs.append(attention.project_out.weight @ torch.cat(heads) + attention.project_out.bias)
    return outputs


def define(net: VisionTransformer, field: torch.Tensor) -> torch.Tensor:
    """One sample `(C, H, W)`, in loops."""
    corners = [(h, w) for h in range(0, GRID[0], PATCH) for w in range(0, GRID[1], PATCH)]
    tokens: list[torch.Tensor] = []
    for number, (h, w) in enumerate(corners):
        patch = field[:, h : h + PATCH, w : w + PATCH].flatten()
        tokens.append(net.embed.weight @ patch + net.embed.bias + net.position[number])
    for block in net.blocks:
        assert isinstance(block, TransformerBlock)
        attended = attend(block, [normalize(token, block.attention_norm) for token in tokens])
        tokens = [token + more for token, more in zip(tokens, attended, strict=True)]
        for number, token in enumerate(tokens):
            normal = normalize(token, block.feed_forward_norm)
            layer = block.feed_forward
            if isinstance(layer, PatchMoE):
                tokens[number] = token + mixture(layer, normal)
            else:
                assert isinstance(layer, FeedForward)
                tokens[number] = token + feed_forward(layer, normal)
    output = torch.zeros(3, *GRID, dtype=field.dtype)
    for (h, w), token in zip(corners, tokens, strict=True):
        pixels = net.head.weight @ normalize(token, net.norm) + net.head.bias
        output[:, h : h + PATCH, w : w + PATCH] = pixels.view(3, PATCH, PATCH)
    return output


@pytest.mark.parametrize("num_experts", [None, 3])
def test_equals_loops(num_experts):
    net = tiny(num_experts=num_experts, capacity_factor=3.0).eval()
    x = torch.randn(2, 2, *GRID, dtype=torch.float64, requires_grad=True)
    factors = torch.randn(2, 3, *GRID, dtype=torch.float64)
    wanted = [x, *net.parameters()]
    results: list[tuple[torch.Tensor, ...]] = []
    for output in (net(x), torch.stack([define(net, field) for field in x])):
        gradients = torch.autograd.grad((output * factors).sum(), wanted, materialize_grads=True)
        results.append((output, *gradients))
    names = ("output", "input", *(name for name, _ in net.named_parameters()))
    for name, actual, expected in zip(names, *results, strict=True):
        torch.testing.assert_close(actual, expected, msg=lambda text, name=name: f"{name}: {text}")


def test_position_by_hand():
    position = sine_cosine_position(3, 5, 8)
    assert position.shape == (15, 8)
    # Row 2, column 3 is place 13; the frequencies are 1 and 10000 ** -0.5 = 0.01.
    expected = [
        wave(place * frequency) for place in (2, 3) for wave in (math.sin, math.cos) for frequency in (1.0, 0.01)
    ]
    assert position[13].tolist() == pytest.approx(expected)
    grid = position.view(3, 5, 8)
    assert torch.equal(grid[:, :1, :4].expand(-1, 5, -1), grid[..., :4])
    assert torch.equal(grid[:1, :, 4:].expand(3, -1, -1), grid[..., 4:])


@pytest.mark.parametrize("positions", [True, False])
def test_without_positions_a_field_moved_by_a_patch_moves_the_output(positions):
    net, x = tiny(positions=positions), torch.randn(1, 2, *GRID, dtype=torch.float64)
    moved = net(x.roll(PATCH, dims=-1))
    assert torch.allclose(moved, net(x).roll(PATCH, dims=-1)) == (not positions)


@pytest.mark.parametrize("shape", [(1, 2, 6, 4), (1, 2, 8, 6), (1, 1, 4, 6), (2, 4, 6)])
def test_input_of_another_grid(shape):
    with pytest.raises(ValueError, match=r"made for inputs of \(B, 2, 4, 6\), got shape \(.*\)") as error:
        tiny()(torch.randn(shape, dtype=torch.float64))
    assert str(shape) in str(error.value)
