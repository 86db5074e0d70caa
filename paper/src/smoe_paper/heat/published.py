"""Results that the paper prints for heat diffusion, as data. Imports nothing heavy."""

from __future__ import annotations

from smoe_paper.experiments.published import PublishedResult


def heat_result(mean: float, spread: float = 0.0, epochs: int | None = None, source: str = "") -> PublishedResult:
    """Returns a published percentage of pixels within 1 %."""
    return PublishedResult("within_1_percent", mean, spread, epochs, source)


_MAIN = "Figure 3, left"

PUBLISHED = {
    "heat/smoe": heat_result(100.0, 0.0, 8, _MAIN),
    "heat/conv": heat_result(91.3, 0.2, 102, _MAIN),
    "heat/coordconv": heat_result(91.1, 0.2, 50, _MAIN),
    "heat/condconv": heat_result(91.2, 0.3, 120, _MAIN),
    "heat/lrlcn": heat_result(91.8, 0.5, 27, _MAIN),
    "heat/lrlcn-nd": heat_result(91.5, 0.3, 35, _MAIN),
    "heat/lcn": heat_result(100.0, 0.0, 110, _MAIN),
    "heat/fc": heat_result(14.2, 1.2, 250, _MAIN),
    "heat/vit": heat_result(93.5, 0.1, 67, _MAIN),
    "heat/vmoe": heat_result(93.8, 0.3, 74, _MAIN),
}
