"""What a report of a weather run shows beside its scores: the globe, baselines from the same store, published rows."""

from __future__ import annotations

import numpy as np

from smoe.reports.parts import Places
from smoe_paper.atmosphere.variables import VARIABLES, parse_channel
from smoe_paper.experiments.experiment import Notify
from smoe_paper.experiments.open_run import OpenRun
from smoe_paper.experiments.published import PublishedResult
from smoe_paper.experiments.report_parts import ReportParts
from smoe_paper.weather.data.baselines import Baselines
from smoe_paper.weather.data.store import WeatherStore
from smoe_paper.weather.data.truth import Truth
from smoe_paper.weather.evaluate import samples_of
from smoe_paper.weather.published import PAPER, PUBLISHED, PUBLISHED_DATA
from smoe_paper.weather.recipes import WeatherRecipe
from smoe_paper.weather.scores import score_baselines


def report_parts(run: OpenRun, split: str | None, notify: Notify) -> ReportParts:
    """Returns the globe of the store, persistence and climatologies on the split, and the published rows of its lead.

    Args:
        run: Run, opened with the split.
        split: Split that is scored; None for a report without forecasts.
        notify: Receives messages about what is being measured.
    """
    assert isinstance(run.recipe, WeatherRecipe)
    data = run.recipe.data
    assert data.store is not None
    store = WeatherStore.open(data.store)
    parts = ReportParts(
        places=Places.globe(store.grid.latitude, store.grid.longitude),
        targets=tuple((_label(name), VARIABLES[parse_channel(name).variable].units) for name in data.targets),
        data={"store": store.path.name, "checksum of the store": store.metadata.checksum},
    )
    if split is None:
        return parts
    samples, lead_hours = samples_of(run, split)
    notify(f"{run.name}: scoring persistence and climatologies")
    init_times = np.array([samples.init_time(index) for index in range(len(samples))])
    climatology = Truth(store, samples.targets).mean(samples.years, None)
    baselines = Baselines(store, samples.targets, data.train_years, None)
    first, last = samples.years
    return ReportParts(
        places=parts.places,
        targets=parts.targets,
        data=parts.data,
        baselines=score_baselines(baselines, init_times, lead_hours, climatology),
        published=_published(lead_hours, run.name),
        remarks=(
            f"{len(samples):,} forecasts of {lead_hours} h in {first} to {last}. Published rows are of "
            f"{PUBLISHED_DATA}: they can be compared with this run only if the store holds the same years of ERA5. A "
            "simulated atmosphere is another task, to be judged by its own persistence and climatology.",
        ),
    )


def _published(lead_hours: int, own: str) -> dict[str, tuple[PublishedResult, ...]]:
    """Published rows by recipe or model; that of the run's recipe by the run's own name."""
    return {
        own if row.recipe == own.removesuffix("-rasp") else row.recipe or row.model: tuple(
            PublishedResult(f"rmse_{channel}", value, row.spread.get((channel, lead), 0.0), None, source)
            for (channel, lead), value in row.rmse.items()
            if lead == lead_hours
        )
        for row in PUBLISHED
        for source in (f"Table 3, {lead_hours} h" if row.source == PAPER else row.source,)
    }


def _label(channel: str) -> str:
    return channel.replace("_", "").upper()
