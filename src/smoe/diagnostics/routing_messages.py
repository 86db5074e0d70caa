"""Warnings about a routing that does not learn, each with its remedy."""

from __future__ import annotations

DAMPED_TOO_MUCH = 0.5
"""Share of the choices above which damping keeps most errors from the experts."""

WORTHLESS = 0.001
"""Share of the loss below which a routing counts as worth nothing."""


def dead_gate(name: str, rule: str) -> str:
    """Returns the warning about a gate none of whose choices has changed."""
    return (
        f"the gate of {name or 'the layer'} has changed none of its choices since the start: it does not learn by the "
        f"rule {rule}; try rule='straight_through' or a larger learning rate of the gate, or give rule='frozen' if "
        "this is intended"
    )


def damped_too_much(name: str, share: float) -> str:
    """Returns the warning about a layer whose experts hardly learn."""
    return (
        f"damping silences {share:.0%} of the errors in {name or 'the layer'}: its experts hardly learn; raise "
        "error_quantile or factor of the damping, or train with damping=None"
    )


def worthless_routing(gain: float) -> str:
    """Returns the warning about a routing that could be left out."""
    worth = f"removes {gain:.1%}" if gain >= 0.0 else f"adds {-gain:.1%}"
    return (
        f"the routing {worth} of the loss: the model is as good with every pixel on its commonest expert; try "
        "rule='straight_through', more epochs or fewer experts, or use plain convolutions"
    )
