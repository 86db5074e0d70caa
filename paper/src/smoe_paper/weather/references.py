"""Scores of persistence and of the climatologies for the weather tables, from the same data as the trained rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from smoe_paper.experiments.result_tables.stored_runs import RunStore
from smoe_paper.experiments.result_tables.tables import ResultTable, Scale
from smoe_paper.weather.build import make_split
from smoe_paper.weather.data.baselines import BASELINES, Baselines
from smoe_paper.weather.data.samples import WeatherSamples
from smoe_paper.weather.data.truth import Truth
from smoe_paper.weather.recipes import WeatherRecipe
from smoe_paper.weather.scores import score_baselines
from smoe_paper.weather.setting import open_store


def store_references(
    tables: Iterable[ResultTable], scale: Scale, data: Path, store: RunStore, notify: Callable[[str], None]
) -> None:
    """Scores the references of the tables on the test forecasts of their rows, unless the scores are stored.

    Args:
        tables: Tables, in each of which all rows have the same lead and years.
        scale: Scale of the data.
        data: Folder of the weather store.
        store: Store of the scores.
        notify: Receives progress messages.
    """
    for table in tables:
        recipe = scale.recipe(table.rows[0], seed=0)
        assert isinstance(recipe, WeatherRecipe)
        lead_hours = recipe.data.lead_hours
        names = {f"{name.replace(' ', '-')}-{lead_hours}h": name for name in BASELINES}
        if not set(table.references) <= set(names):
            raise ValueError(f"{table.name} refers to {', '.join(table.references)}, which are not {', '.join(names)}")
        if all(store.read_reference(reference) for reference in table.references):
            continue
        notify(f"scoring {', '.join(BASELINES)} at {lead_hours} hours")
        weather = open_store(replace(recipe.data, store=data))
        samples = make_split(recipe, weather, "test", notify)
        for reference, scores in _score(recipe, samples, names).items():
            store.write_reference(reference, {"label": names[reference].capitalize(), "test": scores})


def _score(recipe: WeatherRecipe, samples: WeatherSamples, names: dict[str, str]) -> dict[str, dict[str, float]]:
    init_times = np.array([samples.init_time(index) for index in range(len(samples))])
    climatology = Truth(samples.store, samples.targets).mean(samples.years)
    baselines = Baselines(samples.store, samples.targets, recipe.data.train_years)
    scores = score_baselines(baselines, init_times, recipe.data.lead_hours, climatology)
    return {reference: scores[name] for reference, name in names.items()}
