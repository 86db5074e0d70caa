"""Times several ways of doing the same, interleaved, so that what disturbs the machine disturbs all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def interleaved_medians(
    ways: Mapping[str, Callable[[], object]],
    *,
    seconds: float = 2.0,
    min_rounds: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median seconds of each way.

    Args:
        ways: Functions to call, by name.
        seconds: Approximate total duration.
        min_rounds: Minimal number of measured rounds, after one round of warm-up.
        clock: Clock of the measurement; `time.process_time` counts processor time, whatever else the machine does.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    for call in ways.values():
        call()
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends or min(len(values) for values in times.values()) < min_rounds:
        for name, call in ways.items():
            started = clock()
            call()
            times[name].append(clock() - started)
    return {name: statistics.median(values) for name, values in times.items()}
