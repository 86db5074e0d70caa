"""Training rules: how the gate of an SMoE layer learns. Frozen dataclasses that import no torch.

Every layer takes a rule, or its short form: `SpatialMoE2d(..., rule=RoutingClassification(weight=0.1))` and
`rule="rc(weight=0.1)"` are the same.
"""

from __future__ import annotations

import ast
import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from smoe.errors import suggest

__all__ = [
    "RULES",
    "Damping",
    "EndToEnd",
    "Frozen",
    "RoutingClassification",
    "Rule",
    "StraightThrough",
    "resolve_damping",
    "resolve_rule",
]


@dataclass(frozen=True)
class Rule:
    """Describes how the gate of an SMoE layer learns.

    A rule is a value: it holds numbers, imports no torch and can be compared, printed and stored. The layer makes a
    `smoe.nn.Learner` of it, which does the work.

    A rule of your own derives from this class, is a frozen dataclass and names its learner.
    """

    name: ClassVar[str] = ""
    """The short form: `SpatialMoE2d(..., rule="rc")`."""

    learner: ClassVar[Any] = None
    """The class of the learner, or its address as `module:Class`, which is imported when a layer is made."""

    @property
    def carried_damping(self) -> Damping | None:
        """The damping that comes with the rule; a layer uses it unless it is given its own."""
        return None

    def __str__(self) -> str:
        """The short form with the fields that differ from their defaults, such as `rc(weight=0.1)`."""
        return to_text(self, self.name)


@dataclass(frozen=True)
class Damping:
    """Keeps wrongly chosen experts from learning: expert error damping (paper section 2.3).

    Attributes:
        factor: Factor of the error signal that wrongly chosen experts receive, in [0, 1].
        error_quantile: A choice is wrong if its error exceeds this quantile of its sample's errors, in [0, 1].
        tolerance: A choice is wrong only if its error exceeds the quantile by more than this.
        tolerance_unit: Unit of the tolerance: `data`, the units of the data, or `output`, the root mean square of the
            layer's output in the batch.
    """

    factor: float = 0.1
    error_quantile: float = 0.7
    tolerance: float = 1e-3
    tolerance_unit: str = "data"

    name: ClassVar[str] = "damping"

    def __post_init__(self) -> None:
        check_fraction("factor", self.factor)
        check_fraction("error_quantile", self.error_quantile)
        check_tolerance(self.tolerance, self.tolerance_unit)

    def __str__(self) -> str:
        """The text form, such as `damping(factor=0.0)`."""
        return to_text(self, self.name)


def check_fraction(name: str, value: float) -> None:
    """Raises a ValueError unless the value is in [0, 1]; NaN is not."""
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must be in [0, 1], got {value}")


def check_not_negative(name: str, value: float) -> None:
    """Raises a ValueError if the value is negative or NaN."""
    if not value >= 0.0:
        raise ValueError(f"{name} must not be negative, got {value}")


TOLERANCE_UNITS = ("data", "output")


def check_tolerance(tolerance: float, unit: str) -> None:
    """Raises a ValueError for a negative tolerance or an unknown unit."""
    check_not_negative("tolerance", tolerance)
    if unit not in TOLERANCE_UNITS:
        raise ValueError(f"tolerance_unit must be one of {', '.join(TOLERANCE_UNITS)}, got {unit!r}")


def to_text(value: Any, name: str) -> str:
    """A dataclass as `name(field=value, ...)`, with the fields that differ from their defaults."""
    shown: list[str] = []
    for field in dataclasses.fields(value):
        part = getattr(value, field.name)
        if part != field.default:
            shown.append(f"{field.name}={part if isinstance(part, Damping) else repr(part)}")
    return f"{name}({', '.join(shown)})" if shown else name


def from_text(text: str, kinds: dict[str, type[Any]], what: str) -> Any:
    """The inverse of `to_text`, for classes by their names; `what` they are is for the ValueErrors.

    The text is a name, or a name with keyword arguments in parentheses, which are numbers, strings or None.
    """
    name = text.strip().partition("(")[0].strip().replace("-", "_")
    if name not in kinds:
        raise ValueError(f"there is no {what} named {name!r}; {suggest(name, kinds)}")
    kind, (_, parenthesis, arguments) = kinds[name], text.partition("(")
    try:
        call = ast.parse(f"f({arguments if parenthesis else ')'}", mode="eval").body
        assert isinstance(call, ast.Call)
        assert not call.args
    except (SyntaxError, AssertionError) as error:
        raise ValueError(f"{what} {text!r} must be written as {name}(field=value, ...)") from error
    known, values = [field.name for field in dataclasses.fields(kind)], dict[str, Any]()
    for field, part in ((str(keyword.arg), ast.unparse(keyword.value)) for keyword in call.keywords):
        if field not in known:
            raise ValueError(f"{what} {name!r} has no field {field!r}; {suggest(field, known)}")
        try:
            is_damping = part.partition("(")[0] == Damping.name
            values[field] = resolve_damping(part) if is_damping else ast.literal_eval(part)
        except ValueError as error:
            raise ValueError(f"the values of {text!r} must be numbers, strings or None: {error}") from error
    return kind(**values)


@dataclass(frozen=True)
class RoutingClassification(Rule):
    """The paper's rule: the gate learns to classify its choices as right or wrong.

    A choice is wrong if its error exceeds a quantile of its sample's errors by more than a tolerance. The gate's scores
    receive the gradient of the cross-entropy against labels made from this.

    Attributes:
        error_quantile: Quantile of a sample's errors above which a choice is wrong, in [0, 1].
        tolerance: A choice is wrong only if its error exceeds the quantile by more than this.
        tolerance_unit: Unit of the tolerance: `data`, the units of the data, as in the released code; or `output`, the
            root mean square of the layer's output in the batch, so that the scale of the data has no effect.
        weight: Factor of the loss.
        damping: Damping that a layer with this rule uses unless it is given its own; None for none.
    """

    error_quantile: float = 0.7
    tolerance: float = 1e-5
    tolerance_unit: str = "data"
    weight: float = 1.0
    damping: Damping | None = None

    name: ClassVar[str] = "rc"
    learner: ClassVar[str] = "smoe.nn._score_learners:RoutingClassificationLearner"

    def __post_init__(self) -> None:
        check_fraction("error_quantile", self.error_quantile)
        check_tolerance(self.tolerance, self.tolerance_unit)
        check_not_negative("weight", self.weight)

    @property
    def carried_damping(self) -> Damping | None:
        """The damping of the preset."""
        return self.damping

    @classmethod
    def paper(cls) -> RoutingClassification:
        """The settings of the paper's text: error quantile 0.7 and damping 0.1."""
        return cls(error_quantile=0.7, damping=Damping(factor=0.1, error_quantile=0.7))

    @classmethod
    def released(cls) -> RoutingClassification:
        """The settings of the authors' released command line for heat diffusion: error quantile 0.3 and damping 0."""
        return cls(error_quantile=0.3, damping=Damping(factor=0.0, error_quantile=0.3))


@dataclass(frozen=True)
class StraightThrough(Rule):
    """The default: all candidates of a family are compared, and the gate takes steps of its own.

    A score receives the gradient of the loss by how much more of its candidate would be made, each with the probability
    that the softmax of the scores gives it. One expert of each family is computed in forward; in training it is drawn
    with noise, so that candidates that are nearly as good take part, and the noise has no effect where the gate is
    certain. The noise stays the same until the gate steps.

    The numbers of the gate are buffers. They step when an optimiser steps that holds a parameter of the layer: Adam, by
    0.1 in units of the scores, whatever the optimiser, its rate, the scale of the loss and of the data. Needs a gate
    with families that does not look at its input. See docs/rules.md.

    Attributes:
        temperature: Temperature of the softmax over a family, positive.
        share: Share of the samples of a batch, in (0, 1], from which the gate learns. The other candidates are computed
            for these samples only, which bounds the cost of a training step. Where it is less than one sample, the gate
            learns in some of the passes only. None for a quarter with up to three candidates in a family, and for
            0.5 / (K - 1) with K of them.
        noise: Standard deviation of the noise of the selection in training, in units of the scores; 0 for none. Falls
            as 1 / sqrt(1 + steps / 1000), so that choices come to rest.
        warm_up: Steps of the gate during which the noise grows from 0 to `noise`, so that a trained network that was
            converted is not disturbed while its experts begin to differ. A compiled layer has no warm-up.
    """

    temperature: float = 1.0
    share: float | None = None
    noise: float = 1.25
    warm_up: int = 20

    name: ClassVar[str] = "straight_through"
    learner: ClassVar[str] = "smoe.nn._straight_through:StraightThroughLearner"

    def __post_init__(self) -> None:
        if not self.temperature > 0.0:
            raise ValueError(f"temperature must be positive, got {self.temperature}")
        if self.share is not None and not 0.0 < self.share <= 1.0:
            raise ValueError(f"share must be in (0, 1], got {self.share}")
        check_not_negative("noise", self.noise)
        check_not_negative("warm_up", self.warm_up)


@dataclass(frozen=True)
class EndToEnd(Rule):
    """The scores of the selected experts receive the error signal, times their outputs if these are weighted."""

    name: ClassVar[str] = "end_to_end"
    learner: ClassVar[str] = "smoe.nn._score_learners:EndToEndLearner"


@dataclass(frozen=True)
class Frozen(Rule):
    """The gate stays as it is."""

    name: ClassVar[str] = "frozen"
    learner: ClassVar[str] = "smoe.nn._score_learners:FrozenLearner"


RULES: dict[str, type[Rule]] = {kind.name: kind for kind in (RoutingClassification, StraightThrough, EndToEnd, Frozen)}


def resolve_rule(rule: Rule | str) -> Rule:
    """A rule from its short form; a rule is returned as it is.

    Args:
        rule: A rule, its name, or its name with fields, such as `rc(weight=0.1)`.

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
