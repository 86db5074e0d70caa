"""Pictures of a run that corrects ensembles, and parts of its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from smoe.reports.parts import ErrorMap, Places
from smoe.views import draw_globe, save_picture
from smoe_paper.charts import COLOURS
from smoe_paper.ens10.model import open_store
from smoe_paper.ens10.recipes import ENSEMBLE_RECIPES, MEMBERS, EnsembleRecipe, paper_results
from smoe_paper.ens10.scores import score_raw_ensemble, store_of, verify
from smoe_paper.ens10.variables import TASKS
from smoe_paper.experiments.experiment import Notify, ReportParts, ShowOptions
from smoe_paper.experiments.task import OpenRun


def draw_calibration(
    parts: Mapping[str, np.ndarray],
    spread_and_error: Mapping[str, tuple[np.ndarray, np.ndarray]],
    path: str | Path,
    *,
    title: str,
    units: str,
) -> None:
    """Draw three panels, with a colour for each forecast."""
    if not parts or set(parts) != set(spread_and_error):
        raise ValueError(f"the panels are of different forecasts: {sorted(parts)} and {sorted(spread_and_error)}")
    for name, shares in parts.items():
        if not np.isclose(shares.sum(), 1.0):
            raise ValueError(f"the shares of {name} add up to {shares.sum():g}, expected 1")
    figure = Figure(figsize=(13.5, 4.2), layout="constrained")
    figure.suptitle(title, fontsize=13, fontweight="bold")
    histogram, reliability, spread_skill = (figure.add_subplot(1, 3, number) for number in (1, 2, 3))
    largest = max(float(np.max(values)) for pair in spread_and_error.values() for values in pair)
    for number, (name, shares) in enumerate(parts.items()):
        colour, count = COLOURS[number % len(COLOURS)], len(shares)
        borders = np.linspace(0.0, 1.0, count + 1)
        histogram.stairs(shares * count, borders, color=colour, linewidth=2.0, label=name)
        reliability.plot(borders, np.concatenate([[0.0], np.cumsum(shares)]), color=colour, marker=".", label=name)
        spread, error = spread_and_error[name]
        spread_skill.plot(spread, error, color=colour, marker="o", markersize=4, label=name)
    histogram.axhline(1.0, color="0.5", linewidth=1.0, linestyle="--")
    histogram.set(xlabel="place of the truth in the distribution", ylabel="density", ylim=(0.0, None))
    histogram.set_title("rank of the truth", fontsize=11)
    reliability.plot([0.0, 1.0], [0.0, 1.0], color="0.5", linewidth=1.0, linestyle="--")
    reliability.set(xlabel="forecast probability", ylabel="observed frequency of truths below", aspect="equal")
    reliability.set_title("reliability", fontsize=11)
    spread_skill.plot([0.0, largest], [0.0, largest], color="0.5", linewidth=1.0, linestyle="--")
    spread_skill.set(
        xlabel=f"spread, in {units}", ylabel=f"error of the mean, in {units}", xlim=(0, None), ylim=(0, None)
    )
    spread_skill.set_title("spread and error, by classes of the raw spread", fontsize=11)
    for axes in (histogram, reliability, spread_skill):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="0.92")
        axes.set_axisbelow(True)
    histogram.legend(frameon=False)
    save_picture(figure, path)


def draw_score_maps(
    before: np.ndarray,
    after: np.ndarray,
    latitude: Sequence[float] | np.ndarray,
    longitude: Sequence[float] | np.ndarray,
    path: str | Path,
    *,
    names: tuple[str, str],
    score: str,
    title: str,
) -> None:
    """Draw both scores with the same colours, and the relative change in per cent; blue is better, red is worse."""
    if not (np.isfinite(before).all() and np.isfinite(after).all()):
        raise ValueError(f"the maps of {score} hold values that are not finite")
    change = 100.0 * (after - before) / np.where(before > 0, before, np.inf)
    largest = float(np.quantile(np.abs(change), 0.99)) or 1.0
    values = Normalize(0.0, float(np.quantile(np.stack([before, after]), 0.995)))
    figure = Figure(figsize=(14.5, 3.1), layout="constrained")
    figure.suptitle(title, fontsize=13, fontweight="bold")
    panels = (
        (f"{names[0]}: mean {before.mean():.4g}", before, "magma", values, score),
        (f"{names[1]}: mean {after.mean():.4g}", after, "magma", values, ""),
        ("change", change, "RdBu_r", Normalize(-largest, largest), "change, in %"),
    )
    for column, (caption, field, palette, norm, label) in enumerate(panels):
        axes = figure.add_subplot(1, 3, column + 1)
        mesh = draw_globe(axes, latitude, longitude, field, palette=palette, norm=norm)
        axes.set_title(caption, fontsize=11, pad=6)
        if label:
            bar = figure.colorbar(mesh, ax=axes, location="left" if column == 0 else "right", shrink=0.9, extend="both")
            bar.set_label(label)
            bar.outline.set_visible(False)
    save_picture(figure, path)


RAW = "raw ensemble"


def draw_run(run: OpenRun, options: ShowOptions) -> list[Path]:
    """Writes the pictures into the run's folder and returns their paths."""
    from smoe_paper.charts import draw_scores

    split, folder = options.split, run.directory.pictures
    store = store_of(run, split)
    units = TASKS[store.task].target_variable.physics.units
    raw, corrected = verify(run, split)
    history = [record for record in run.directory.read_history() if record.get("validation/crps") is not None]
    pictures: list[Path] = []
    if history:
        pictures.append(folder / "scores.png")
        draw_scores(history, {"validation/crps": f"CRPS on validation, in {units}"}, pictures[-1])
    title = f"{run.name}: {store.task} from {store.num_members} members, {split} split"
    pictures.append(folder / "calibration.png")
    draw_calibration(
        {RAW: raw.parts, run.name: corrected.parts},
        {RAW: (raw.spread, raw.error), run.name: (corrected.spread, corrected.error)},
        pictures[-1],
        title=title,
        units=units,
    )
    pictures.append(folder / "crps.png")
    draw_score_maps(
        raw.crps,
        corrected.crps,
        store.grid.latitude,
        store.grid.longitude,
        pictures[-1],
        names=(RAW, run.name),
        score=f"CRPS, in {units}",
        title=title,
    )
    return pictures


def report_parts(run: OpenRun, split: str | None, notify: Notify) -> ReportParts:
    """Returns the globe of the store, and the CRPS of the raw ensemble and of the run at each pixel."""
    assert isinstance(run.recipe, EnsembleRecipe)
    data = run.recipe.data
    store = open_store(data)
    units = TASKS[store.task].target_variable.physics.units
    parts = ReportParts(
        places=Places.globe(store.grid.latitude, store.grid.longitude),
        targets=((store.task, units),),
        data={"store": store.path.name, "checksum of the store": store.checksum},
    )
    if split is None:
        return parts
    notify(f"{run.name}: scoring the raw ensemble")
    years = {"validation": data.validation_years, "test": data.test_years}[split]
    raw, corrected = verify(run, split)
    names = ENSEMBLE_RECIPES if store.num_members in MEMBERS else ()
    return replace(
        parts,
        baselines={RAW: score_raw_ensemble(store, years)},
        published={name: paper_results(name, store.task, store.num_members) for name in names},
        error_maps=(ErrorMap(f"{store.task}, CRPS", units, corrected.crps, raw.crps, RAW),),
        remarks=(
            f"{store.task} from {store.num_members} members, {years[0]} to {years[1]}. The paper's rows are of ENS-10, "
            "2016-2017: they can be compared with a run on these data only.",
        ),
    )
