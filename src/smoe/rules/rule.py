"""The base class of training rules, and their text form."""

from __future__ import annotations

import ast
import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from smoe.suggestions import suggest


@dataclass(frozen=True)
class Rule:
    """Describes how the gate of an SMoE layer learns.

    A rule is a value: it holds numbers, imports no torch and can be compared, printed and stored. The layer makes a
    `smoe.nn.learning.Learner` of it, which does the work.

    A rule of your own derives from this class, is a frozen dataclass and names its learner.
    """

    name: ClassVar[str] = ""
    """The short form: `SpatialMoE2d(..., rule="rc")`."""

    learner: ClassVar[Any] = None
    """The class of the learner, or its address as `module:Class`, which is imported when a layer is made."""

    orders: ClassVar[tuple[str, ...]] = ("score", "index", "families")
    """The orders of selected experts that the rule works with."""

    @property
    def carried_damping(self) -> Damping | None:
        """The damping that comes with the rule; a layer uses it unless it is given its own."""
        return None

    def __str__(self) -> str:
        """The short form with the fields that differ from their defaults, such as `probe(window=4)`."""
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
    """The inverse of `to_text`.

    Args:
        text: A name, or a name with keyword arguments in parentheses, which are numbers, strings or None.
        kinds: The classes by name.
        what: What the classes are, for messages.

    Raises:
        ValueError: If the name or a field is unknown, or the text cannot be read.
    """
    name, parenthesis, arguments = text.strip().partition("(")
    name = name.strip().replace("-", "_")
    if name not in kinds:
        raise ValueError(f"there is no {what} named {name!r}; {suggest(name, kinds)}")
    kind = kinds[name]
    if not parenthesis:
        return kind()
    try:
        call = ast.parse(f"f({arguments}", mode="eval").body
        assert isinstance(call, ast.Call)
        assert not call.args
        values = {str(keyword.arg): _value(keyword.value, text) for keyword in call.keywords}
    except (SyntaxError, AssertionError) as error:
        raise ValueError(f"{what} {text!r} must be written as {name}(field=value, ...)") from error
    known = [field.name for field in dataclasses.fields(kind)]
    for field in values:
        if field not in known:
            raise ValueError(f"{what} {name!r} has no field {field!r}; {suggest(field, known)}")
    return kind(**values)


def _value(node: ast.expr, text: str) -> Any:
    if ast.unparse(node).partition("(")[0] == Damping.name:
        return from_text(ast.unparse(node), {Damping.name: Damping}, "damping")
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise ValueError(f"the values of {text!r} must be numbers, strings or None") from error
