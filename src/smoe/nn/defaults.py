"""What layers and `convert` do where nothing else is asked for.

The defaults are those that learned best with equal budgets on data whose structure is known:
paper/results/bench/learn.md has the table, docs/rules.md the reasons. They need no number of the data and no length of
the training:

- families of experts (`order="families"`), so that a channel keeps its meaning while the routing changes;
- a `FactorisedGate`, whose pixels learn from all pixels like them;
- the rule `StraightThrough`, which compares all candidates of a family, on a share of the samples;
- equal experts in each family at the start, so that a new layer is a convolution, and a bias for each expert;
- no damping.

A layer with a single output channel (E = F = 1) is nearly always the last or the only layer, and its experts compete
for whole pixels. There the rule `Probing` is exact where the straight-through gradient, which is of first order, is
not: it is the default, with a `TensorGate` and experts that start at random (paper/results/heat/rules.md,
paper/results/heat-mesh/main.md). Where probing is not possible (several outputs for each expert, weighted outputs), a
single family has experts that start at random and are selected without noise, its gate is three times as fast, and an
expert that serves no pixel becomes a copy of another: equal experts of a single family were exchanged before they
differed.

The paper's layer is one argument away: `rule="rc"` selects the experts with the highest scores of a `TensorGate`.
"""

from __future__ import annotations

import torch

from smoe.nn.gates.factorised import FactorisedGate
from smoe.nn.gates.gate import SpatialGate
from smoe.nn.gates.tensor import TensorGate
from smoe.options import BiasOwner, Order
from smoe.rules import Frozen, Probing, RoutingClassification, Rule, StraightThrough, resolve_rule

# Factor of the scores of a default gate, and that of a layer with one family.
_SCALE, _SCALE_OF_ONE_FAMILY = 10.0, 30.0


def resolve_default_rule(
    rule: Rule | str | None,
    gate: SpatialGate | None,
    order: Order | None,
    num_selected: int,
    *,
    can_probe: bool = False,
) -> Rule:
    """The rule given, or the default one for a gate.

    Args:
        rule: A rule, its short form, or None.
        gate: Gate of the layer; None if it is yet to be made.
        order: Order asked for; None for any.
        num_selected: E, the number of experts selected at each pixel.
        can_probe: Whether the layer has a single output channel, which is not weighted, and several experts for it.
    """
    if rule is not None:
        return resolve_rule(rule)
    if can_probe and gate is None and order is None:
        return Probing()
    order = gate.order if gate is not None else order or "families"
    is_comparable = order == "families" and not (gate is not None and gate.looks_at_input)
    if not is_comparable:
        return RoutingClassification()
    return StraightThrough() if num_selected > 1 else StraightThrough(noise=0.0, patience=250)


def default_order(rule: Rule) -> Order:
    """The order of the selected experts for a rule: families where the rule compares the experts of a family."""
    return "families" if isinstance(rule, (StraightThrough, Frozen)) else "score"


def make_default_gate(
    rule: Rule,
    num_experts: int,
    num_selected: int,
    spatial_shape: tuple[int, ...],
    expert_channels: int = 1,
    *,
    order: Order | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> SpatialGate:
    """The gate of a layer that was given none.

    Args:
        rule: Rule of the layer.
        num_experts: X, the number of experts in the bank.
        num_selected: E, the number of experts selected at each pixel.
        spatial_shape: Sizes of the output grid.
        expert_channels: F, the number of outputs per expert.
        order: Order of the selected experts; None for the default one.
        device: Device of the parameters.
        dtype: Dtype of the parameters.
    """
    order = order or default_order(rule)
    if order == "families" and isinstance(rule, (StraightThrough, Frozen)):
        scale = _SCALE if num_selected > 1 else _SCALE_OF_ONE_FAMILY
        return FactorisedGate(
            num_experts, num_selected, spatial_shape, scale=scale, order=order, device=device, dtype=dtype
        )
    return TensorGate(
        num_experts, num_selected, spatial_shape, expert_channels, order=order, device=device, dtype=dtype
    )


def resolve_gate(
    gate: SpatialGate | None,
    rule: Rule,
    num_experts: int,
    num_selected: int,
    spatial_shape: tuple[int, ...] | None,
    expert_channels: int,
    order: Order | None,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> SpatialGate:
    """The gate given to a layer, checked against its numbers, or the default one made for them."""
    if gate is None:
        if spatial_shape is None:
            raise ValueError("give spatial_shape=, the sizes of the output grid, or a gate")
        return make_default_gate(
            *(rule, num_experts, num_selected, spatial_shape, expert_channels), order=order, device=device, dtype=dtype
        )
    if (gate.num_experts, gate.num_selected) != (num_experts, num_selected):
        raise ValueError(
            f"the gate selects {gate.num_selected} of {gate.num_experts} experts, but the layer is to select "
            f"{num_selected} of {num_experts}"
        )
    made_for = gate.spatial_shape
    if spatial_shape is not None and made_for is not None and tuple(spatial_shape) != made_for:
        raise ValueError(f"the gate was made for a grid of {made_for}, but spatial_shape is {tuple(spatial_shape)}")
    if order is not None and order != gate.order:
        raise ValueError(f"the gate has order={gate.order!r}, but order is {order!r}; give it to the gate")
    return gate


def default_bias(gate: SpatialGate, *, is_default_rule: bool) -> BiasOwner | bool:
    """The owner of the bias: the expert in families and by default, so that the routing decides offsets too."""
    return "expert" if gate.order == "families" or is_default_rule else False
