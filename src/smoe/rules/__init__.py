"""Training rules: how the gate of an SMoE layer learns. Frozen dataclasses that import no torch.

Every layer takes a rule, or its short form: `SpatialMoE2d(..., rule=Probing(window=4))` and `rule="probe(window=4)"`
are the same.
"""

from __future__ import annotations

from smoe.rules.end_to_end import EndToEnd
from smoe.rules.frozen import Frozen
from smoe.rules.probing import Probing
from smoe.rules.routing_classification import RoutingClassification
from smoe.rules.rule import Damping, Rule, from_text
from smoe.rules.straight_through import StraightThrough

__all__ = [
    "RULES",
    "Damping",
    "EndToEnd",
    "Frozen",
    "Probing",
    "RoutingClassification",
    "Rule",
    "StraightThrough",
    "resolve_damping",
    "resolve_rule",
]

RULES: dict[str, type[Rule]] = {
    kind.name: kind for kind in (RoutingClassification, Probing, StraightThrough, EndToEnd, Frozen)
}


def resolve_rule(rule: Rule | str) -> Rule:
    """A rule from its short form; a rule is returned as it is.

    Args:
        rule: A rule, its name, or its name with fields, such as `probe(window=4)`.

    Raises:
        ValueError: If there is no such rule or field.
    """
    if isinstance(rule, Rule):
        return rule
    if not isinstance(rule, str):
        raise ValueError(f"rule must be one of smoe.rules or its name, got {rule!r}")
    return from_text(rule, RULES, "rule")


def resolve_damping(damping: Damping | str | float | None) -> Damping | None:
    """A damping from its short form: a factor, `damping(factor=0.1, ...)`, or `none`.

    Raises:
        ValueError: If the text cannot be read, or a number is out of range.
    """
    if damping is None or isinstance(damping, Damping):
        return damping
    if isinstance(damping, (int, float)):
        return Damping(factor=float(damping))
    if damping.strip().lower() == "none":
        return None
    try:
        factor = float(damping)
    except ValueError:
        return from_text(damping, {Damping.name: Damping}, "damping")
    return Damping(factor=factor)
