"""The monitored metric: known by name before data are made."""

from __future__ import annotations

from collections.abc import Iterable

from smoe.suggestions import suggest
from smoe.training.plan import TrainingPlan

LOSS = "loss"
"""The training loss on the validation split, which every task can report."""


class MonitorError(ValueError):
    """A plan monitors a metric that does not exist."""


def check_monitor(plan: TrainingPlan, names: Iterable[str]) -> None:
    """Checks that the metric of a plan exists.

    Args:
        plan: Plan whose `monitor` is checked.
        names: Names of the metrics; see `smoe.metrics.metric_names`.

    Raises:
        MonitorError: If no metric has the name; with the nearest one.
    """
    known = sorted({*names, LOSS})
    if plan.monitor not in known:
        raise MonitorError(f"monitor is {plan.monitor!r}, but no metric has this name; {suggest(plan.monitor, known)}")
