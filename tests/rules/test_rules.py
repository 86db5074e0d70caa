"""Rules are values: made, compared, printed and read without torch, and refused at construction."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import pytest

import smoe
from smoe import rules
from smoe.rules import (
    RULES,
    Damping,
    EndToEnd,
    Frozen,
    RoutingClassification,
    Rule,
    StraightThrough,
    resolve_damping,
    resolve_rule,
)

KINDS = (RoutingClassification, StraightThrough, EndToEnd, Frozen)


def test_the_names_are_the_short_forms() -> None:
    assert {name: resolve_rule(name) for name in RULES} == {
        "rc": RoutingClassification(),
        "straight_through": StraightThrough(),
        "end_to_end": EndToEnd(),
        "frozen": Frozen(),
    }
    assert resolve_rule("end-to-end") == EndToEnd()
    assert smoe.rules is rules


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("straight_through(warm_up=4)", StraightThrough(warm_up=4)),
        ("rc(error_quantile=0.3, tolerance_unit='output')", RoutingClassification(0.3, tolerance_unit="output")),
        ("rc(damping=damping(factor=0.0))", RoutingClassification(damping=Damping(0.0))),
        ("rc(damping=None)", RoutingClassification()),
        (" frozen() ", Frozen()),
    ],
)
def test_a_short_form_may_have_fields(text: str, rule: Rule) -> None:
    assert resolve_rule(text) == rule


@pytest.mark.parametrize(
    "rule",
    [
        *(kind() for kind in KINDS),
        StraightThrough(warm_up=4, noise=0.25),
        RoutingClassification.paper(),
        RoutingClassification.released(),
        RoutingClassification(0.5, 1e-3, "output", 0.25, Damping(0.2, 0.4, 0.1, "output")),
    ],
    ids=str,
)
def test_the_text_of_a_rule_is_its_short_form(rule: Rule) -> None:
    assert resolve_rule(str(rule)) == rule
    assert resolve_rule(rule) is rule
    assert pickle.loads(pickle.dumps(rule)) == copy.deepcopy(rule) == rule
    assert hash(copy.deepcopy(rule)) == hash(rule)


def test_presets_carry_the_damping_of_their_source() -> None:
    assert RoutingClassification.paper() == RoutingClassification(0.7, damping=Damping(0.1, 0.7))
    assert RoutingClassification.released() == RoutingClassification(0.3, damping=Damping(0.0, 0.3))
    for preset in (RoutingClassification.paper(), RoutingClassification.released()):
        assert preset.carried_damping == preset.damping is not None
        assert (preset.tolerance, preset.damping.tolerance) == (1e-5, 1e-3)  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", KINDS)
def test_no_rule_damps_by_default(kind: type[Rule]) -> None:
    assert kind().carried_damping is None


@pytest.mark.parametrize(
    ("given", "damping"),
    [
        (None, None),
        ("none", None),
        (0.2, Damping(0.2)),
        (0, Damping(0.0)),
        ("0.2", Damping(0.2)),
        ("damping(factor=0.2, error_quantile=0.5)", Damping(0.2, 0.5)),
        (Damping(0.3), Damping(0.3)),
    ],
)
def test_short_forms_of_damping(given: Damping | str | float | None, damping: Damping | None) -> None:
    assert resolve_damping(given) == damping


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RoutingClassification(error_quantile=2.0), r"error_quantile must be in \[0, 1\], got 2.0"),
        (lambda: RoutingClassification(error_quantile=float("nan")), r"error_quantile must be in \[0, 1\], got nan"),
        (lambda: RoutingClassification(tolerance=-1.0), "tolerance must not be negative, got -1.0"),
        (lambda: RoutingClassification(weight=-1.0), "weight must not be negative, got -1.0"),
        (lambda: RoutingClassification(tolerance_unit="m"), "tolerance_unit must be one of data, output, got 'm'"),
        (lambda: Damping(factor=1.5), r"factor must be in \[0, 1\], got 1.5"),
        (lambda: Damping(error_quantile=-0.1), r"error_quantile must be in \[0, 1\], got -0.1"),
        (lambda: Damping(tolerance=-1.0), "tolerance must not be negative, got -1.0"),
        (lambda: StraightThrough(noise=float("nan")), "noise must not be negative, got nan"),
        (lambda: StraightThrough(temperature=0.0), "temperature must be positive, got 0.0"),
        (lambda: resolve_rule("freeze"), "there is no rule named 'freeze'; did you mean 'frozen'"),
        (lambda: resolve_rule("rc(weights=4)"), "rule 'rc' has no field 'weights'; did you mean 'weight'"),
        (lambda: resolve_rule("rc(4)"), r"must be written as rc\(field=value, ...\)"),
        (lambda: resolve_rule("rc(weight=4"), r"must be written as rc\(field=value, ...\)"),
        (lambda: resolve_rule("rc(weight=weight)"), "must be numbers, strings or None"),
        (lambda: resolve_rule(None), "rule must be one of smoe.rules or its name, got None"),  # type: ignore[arg-type]
        (lambda: resolve_damping("strong"), "there is no damping named 'strong'"),
        (lambda: resolve_damping(3), r"factor must be in \[0, 1\], got 3"),
    ],
)
def test_what_is_wrong_is_refused_with_the_value(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_rules_import_no_torch() -> None:
    code = "import sys, smoe.rules as r; r.resolve_rule('rc(weight=0.1)'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
