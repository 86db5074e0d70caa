"""What an experiment adds to the report of a run: where its pixels lie, baselines, classes. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from smoe.reports.parts import Classes, ErrorMap, Places
from smoe_paper.experiments.tables import PublishedResult


@dataclass(frozen=True)
class ReportParts:
    """What only the experiment knows about a run.

    Attributes:
        places: Where the pixels lie; None if they are only numbered.
        targets: Name and units of each channel that the network predicts.
        baselines: Scores of simple predictions on the split, by their names.
        published: Results that publications print, by the name of the model; None for those of the recipes.
        regions: Number of the known region of each pixel, `(P,)`; None for those of the task, if it has any.
        filters: Filters that the experts should find, by their names, `(k, k)` each.
        classes: Classes of images.
        error_maps: Errors that are not root mean squared errors of a prediction; these are measured for all.
        data: Facts that identify the data, such as a checksum, by their names.
        remarks: Sentences that a reader of the scores needs.
    """

    places: Places | None = None
    targets: tuple[tuple[str, str], ...] = ()
    baselines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    published: Mapping[str, tuple[PublishedResult, ...]] | None = None
    regions: np.ndarray | None = None
    filters: Mapping[str, np.ndarray] = field(default_factory=dict)
    classes: Classes | None = None
    error_maps: tuple[ErrorMap, ...] = ()
    data: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
