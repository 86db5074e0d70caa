from __future__ import annotations

import math
from dataclasses import replace

import pytest

from smoe.training.plan import Stopping, TrainingPlan

PLAN = TrainingPlan(early_stop_patience=3, max_epochs=10, monitor="within_1_percent", monitor_mode="max")


def test_the_best_value_is_strictly_better_and_finite() -> None:
    stopping = Stopping(PLAN)
    values = [math.nan, 50.0, 50.0, 51.0, 49.0, math.nan]
    found = [stopping.observe(epoch, value) for epoch, value in enumerate(values, 1)]
    assert found == [False, True, False, True, False, False]
    assert (stopping.best, stopping.best_epoch) == (51.0, 4)
    falling = Stopping(replace(PLAN, monitor_mode="min"))
    assert falling.observe(1, 2.0) and falling.observe(2, 1.0) and not falling.observe(3, 1.5)


def test_a_run_stops_after_the_patience_at_a_value_or_at_the_last_epoch() -> None:
    stopping = Stopping(PLAN)
    stopping.observe(2, 50.0)
    assert stopping.reason(4) is None and stopping.reason(5) == "no improvement for 3 epochs"
    stopping = Stopping(replace(PLAN, stop_at=100.0))
    stopping.observe(1, 99.9999)
    assert stopping.reason(1) is None
    stopping.observe(2, 100.0)
    assert stopping.reason(2) == "within_1_percent reached 100"
    stopping = Stopping(PLAN)
    stopping.observe(10, 1.0)
    assert stopping.reason(10) == "10 epochs done"
    assert Stopping(replace(PLAN, max_epochs=1)).reason(1) == "1 epoch done"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 0),
        ("max_epochs", 0),
        ("plateau_patience", -1),
        ("plateau_factor", 1.0),
        ("num_threads", 0),
        ("num_workers", -1),
        ("min_delta", math.nan),
    ],
)
def test_refuses_numbers_that_make_no_plan(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"{name} must .* got {value}"):
        TrainingPlan(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(("mode", "values"), [("max", [1.0, 1.05, 1.2]), ("min", [1.0, 0.95, 0.8])])
def test_a_change_within_the_margin_is_no_improvement(mode: str, values: list[float]) -> None:
    stopping = Stopping(replace(PLAN, monitor_mode=mode, min_delta=0.1))  # type: ignore[arg-type]
    assert [stopping.observe(epoch, value) for epoch, value in enumerate(values, 1)] == [True, False, True]
