"""SMoE layers in the networks of recipes: their gates, and convolutions that become SMoE layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from smoe import nn
from smoe.ops._routing import family_members
from smoe.rules import Damping, Rule
from smoe_paper.experiments.recipe import GateOptions, Recipe

Start = Callable[[nn.SpatialMoE2d], None]


class Learning(NamedTuple):
    """How the routing learns.

    Attributes:
        rule: Rule of the gates.
        damping: Damping of the experts' error; None for that of the rule.
    """

    rule: Rule
    damping: Damping | None

    @classmethod
    def of(cls, recipe: Recipe) -> Learning:
        """Rule and damping of a recipe."""
        return cls(recipe.rule, recipe.damping)


def make_gate(
    options: GateOptions,
    num_experts: int,
    num_selected: int,
    grid: tuple[int, int],
    prior: torch.Tensor | None = None,
    prior_strength: float = 2.0,
    embedding: nn.PixelEmbedding | None = None,
) -> nn.TensorGate | nn.FactorisedGate | nn.CoarseGate:
    """The gate that the options describe.

    Args:
        options: Options of a recipe.
        num_experts: X, the number of experts in the bank.
        num_selected: E, the number of experts selected at each pixel.
        grid: Rows and columns.
        prior: Map of a fraction in [0, 1] that the gate starts with; None for a random start.
        prior_strength: Strength of the prior.
        embedding: Embedding of the pixels that a factorised gate shares with others; None for one of its own.
    """
    kinds = {"factorised": nn.FactorisedGate, "coarse": nn.CoarseGate}
    kind = kinds.get(options.gate, nn.TensorGate)
    start: dict[str, Any] = {
        "init": options.gate_init,
        "correlation_length": options.correlation_length,
        "order": options.order,
    }
    if options.gate == "factorised":
        start |= {"rank": options.rank, "embedding": embedding}
    if prior is None:
        return kind(num_experts, num_selected, grid, **start)
    return kind.from_prior(prior, num_experts, num_selected, prior_strength, **start)


def convert_net(
    net: torch.nn.Module,
    gates: GateOptions,
    learning: Learning,
    start: Start,
    *,
    example_input: torch.Tensor,
    share_gates: bool,
    prior: torch.Tensor | None = None,
    prior_strength: float = 2.0,
    **options: Any,
) -> torch.nn.Module:
    """The network with its 3x3 convolutions replaced by SMoE layers.

    Args:
        net: Network of convolutions.
        gates: Options of the layers.
        learning: How the routing learns.
        start: Draws the weights of a layer.
        example_input: Input from which the grids follow.
        share_gates: Whether layers of the same grid and numbers of experts share a gate, or, if the gates are
            factorised, layers of the same grid the embedding of its pixels.
        prior: Map of a fraction in [0, 1] that the gates start with.
        prior_strength: Strength of the prior.
        **options: Further options of `smoe.convert`.
    """
    is_factorised = gates.gate == "factorised"
    embeddings: dict[tuple[int, ...], nn.PixelEmbedding] = {}

    def gate_of(num_experts: int, num_selected: int, grid: tuple[int, ...]) -> nn.SpatialGate:
        rows, columns = grid
        averaged = None if prior is None else torch.nn.functional.adaptive_avg_pool2d(prior[None], (rows, columns))[0]
        shared = embeddings.get(grid) if share_gates else None
        gate = make_gate(gates, num_experts, num_selected, (rows, columns), averaged, prior_strength, shared)
        if isinstance(gate, nn.FactorisedGate):
            embeddings[grid] = gate.embedding
        return gate

    converted = nn.convert(
        net,
        example_input=example_input,
        num_experts=gates.expert_ratio,
        share_gates=share_gates and not is_factorised,
        start="random",
        make_gate=gate_of,
        bias=gates.bias,
        local_affine=gates.local_affine,
        rule=learning.rule,
        damping=learning.damping,
        **options,
    )
    for layer in converted.modules():
        if isinstance(layer, nn.SpatialMoE2d):
            start_layer(layer, gates, start)
    return converted


def start_layer(layer: nn.SpatialMoE2d, gates: GateOptions, start: Start) -> None:
    """Draws the weights of a layer, equal within a family of experts; a random gate stays as it starts."""
    start(layer)
    if layer.gate.order == "families":
        members = family_members(layer.num_experts, layer.num_selected)
        with torch.no_grad():
            for place in range(1, members.shape[1]):
                layer.weight.index_copy_(0, members[:, place], layer.weight[members[:, 0]])
    if gates.gate == "random":
        layer.gate.requires_grad_(False)
