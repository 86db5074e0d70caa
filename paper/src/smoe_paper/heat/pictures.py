"""Pictures of heat diffusion: of one run, and of tables of stored runs; parts of its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from smoe.diagnostics import region_agreement, regions_of_experts
from smoe.nn import SpatialMoE2d
from smoe.reports.run_report import Places
from smoe.views import save_picture
from smoe_paper.experiments.experiment import Notify, ReportParts
from smoe_paper.experiments.runs import kept_run
from smoe_paper.experiments.stored_runs import RunStore
from smoe_paper.experiments.tables import Outcome, ResultTable, Row, outcomes
from smoe_paper.experiments.task import OpenRun
from smoe_paper.heat.data import diffusion_stencil, make_region_map
from smoe_paper.heat.recipes import HeatDiffusion
from smoe_paper.heat.tables import DAMPINGS, HEAT, QUANTILES, SMOE, grid_recipe
from smoe_paper.models import SpatialMoENet

METRIC = "within_1_percent"
_UNUSED = "#B8B8B8"


def draw_routing(
    region_map: np.ndarray, stencils: np.ndarray, routing_map: np.ndarray, experts: np.ndarray, path: str | Path
) -> None:
    """Draw the true regions and their stencils above, the learned routing and its experts below.

    An expert has the colour of the region in which most of its pixels lie; an unused expert is grey.
    """
    regions = regions_of_experts(routing_map[None], region_map, len(experts))
    wrong = round((1 - region_agreement(routing_map[None], region_map, len(experts))) * region_map.size)
    of_regions = [COLOURS[region % len(COLOURS)] for region in range(len(stencils))]
    of_experts = [of_regions[region] if region >= 0 else _UNUSED for region in regions]
    rows = (
        ("true regions", region_map, of_regions, [f"region {n}" for n in range(len(stencils))], stencils),
        (
            f"learned, wrong at {wrong} of {region_map.size} pixels",
            routing_map,
            of_experts,
            [f"expert {n}: " + (f"region {r}" if r >= 0 else "unused") for n, r in enumerate(regions)],
            experts,
        ),
    )
    columns = max(len(stencils), len(experts))
    figure = Figure(figsize=(4.0 + 1.9 * columns, 8.2), layout="constrained")
    layout = figure.add_gridspec(2, 1 + columns, width_ratios=[2.1] + [1.0] * columns)
    for number, (title, pixels, colours, names, kernels) in enumerate(rows):
        axes = figure.add_subplot(layout[number, 0])
        axes.imshow(pixels, cmap=ListedColormap(colours), vmin=-0.5, vmax=len(colours) - 0.5, interpolation="nearest")
        axes.set(title=title, xticks=[], yticks=[])
        for place, (name, kernel, colour) in enumerate(zip(names, kernels, colours, strict=True)):
            axes = figure.add_subplot(layout[number, 1 + place])
            largest = float(np.abs(stencils).max())
            show_numbers(axes, kernel, "PuOr_r", 3, limits=(-largest, largest), fontsize=7)
            axes.set_title(name, fontsize=9)
            axes.set(xticks=[], yticks=[], aspect="equal")
            for spine in axes.spines.values():
                spine.set(color=colour, linewidth=4)
    save_picture(figure, path)


def learned(run: OpenRun) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Region map `(H, W)`, stencils `(R, 3, 3)`, routing map `(H, W)` and experts `(X, k, k)` of a run."""
    model = run.task.model
    layer = model.layer if isinstance(model, SpatialMoENet) else None
    if not isinstance(layer, SpatialMoE2d) or layer.gate.looks_at_input:
        has = type(model).__name__ if layer is None else f"{type(layer).__name__} with {type(layer.gate).__name__}"
        raise ValueError(
            "a routing map can be drawn of convolution experts and a gate that does not look at its input; "
            f"this run has {has}"
        )
    stencils = np.stack([diffusion_stencil(diffusivity) for diffusivity in run.recipe.data.diffusivities])
    with torch.no_grad():
        routing_map = layer.routing().indices[0].cpu().numpy()
    return make_region_map(run.recipe.data), stencils, routing_map, layer.weight.detach()[:, 0].cpu().numpy()


def draw_tables(
    tables: Sequence[ResultTable], store: RunStore, runs_dir: Path, output_dir: Path, data: Path
) -> list[Path]:
    """The figures that stored runs allow; the routing only if the weights of the run are in `runs_dir`."""
    del data
    pictures: list[Path] = []
    names = {table.name: table for table in tables}
    if "heat/main" in names:
        run = kept_run(HEAT.tables, SMOE, store, runs_dir)
        if run is not None:
            pictures.append(output_dir / "routing.png")
            draw_routing(*learned(run), pictures[-1])
        pictures += _draw_accuracies(names["heat/main"].rows, store, output_dir / "accuracy.png")
    if "heat/starts" in names:
        pictures += _draw_accuracies(names["heat/starts"].rows, store, output_dir / "starts.png")
    if "heat/quantile-damping" in names:
        pictures += _draw_quantile_damping(store, output_dir / "quantile-damping.png")
    return pictures


def _draw_accuracies(rows: Sequence[Row], store: RunStore, path: Path) -> Iterator[Path]:
    """The accuracy of the first seed of each model by epoch."""
    found = {row.label: outcomes(HEAT.tables, row, store) for row in rows}
    runs = {label: all_of_it[0].results[0] for label, all_of_it in found.items() if all_of_it}
    if not runs:
        return
    figure = Figure(figsize=(8.0, 4.8), layout="constrained")
    axes = figure.add_subplot()
    for number, (label, run) in enumerate(runs.items()):
        values = [value or 0.0 for value in run["validation"]]
        # Not all models were trained at the same scale.
        length = run["recipe"]["data"]["num_train_runs"] / HeatDiffusion().num_train_runs
        style = ("-", (0, (5, 2)), (0, (1, 1.5)))[number // len(COLOURS) % 3]
        epochs = np.arange(1, len(values) + 1) * length
        axes.plot(epochs, values, label=label, color=COLOURS[number % len(COLOURS)], linestyle=style, linewidth=1.8)
    axes.set(xscale="log", ylim=(0, 101), xlabel="epochs of the paper's data")
    axes.set_ylabel("validation pixels within 1 %, in %")
    axes.grid(color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    save_picture(figure, path)
    yield path


def _draw_quantile_damping(store: RunStore, path: Path) -> Iterator[Path]:
    cells = {
        (row, column): outcomes(HEAT.tables, Row(("",), grid_recipe(quantile, damping)), store)
        for row, quantile in enumerate(QUANTILES)
        for column, damping in enumerate(DAMPINGS)
    }
    # Epochs of different scales cannot be compared: the scale of most cells is drawn.
    scales = Counter(outcome.scale.name for found in cells.values() for outcome in found)
    if not scales:
        return
    scale = scales.most_common(1)[0][0]
    accuracy = np.full((len(QUANTILES), len(DAMPINGS)), np.nan)
    epochs = accuracy.copy()
    for place, found in cells.items():
        for outcome in (outcome for outcome in found if outcome.scale.name == scale):
            mean = outcome.mean(METRIC)
            accuracy[place] = np.nan if mean is None else mean
            epochs[place] = _epochs_to_all(outcome)
    figure = Figure(figsize=(8.4, 1.4 + 0.4 * len(QUANTILES)), layout="constrained")
    all_axes = figure.subplots(1, 2)
    show_numbers(all_axes[0], accuracy, "viridis", 1)
    show_numbers(all_axes[1], epochs, "viridis_r", 0)
    titles = ("test pixels within 1 %, in %", f"{scale} epochs to 100 % (blank: not all seeds)")
    for axes, title in zip(all_axes, titles, strict=True):
        axes.set_xticks(range(len(DAMPINGS)), ["none" if damping is None else f"{damping:g}" for damping in DAMPINGS])
        axes.set_yticks(range(len(QUANTILES)), [f"{quantile:g}" for quantile in QUANTILES])
        axes.set(xlabel="damping factor", ylabel="error quantile")
        axes.set_title(title, fontsize=10.5)
    save_picture(figure, path)
    yield path


def _epochs_to_all(outcome: Outcome) -> float:
    """Mean number of epochs to 100 %; NaN if a seed did not reach it."""
    values = outcome.values(METRIC)
    is_everywhere = len(values) == len(outcome.results) and min(values, default=0.0) == 100.0
    return outcome.best_epoch or np.nan if is_everywhere else np.nan


def report_parts(run: OpenRun, split: str | None, notify: Notify) -> ReportParts:
    """The grid, and the stencil of each diffusivity."""
    del split, notify
    data = run.recipe.data
    return ReportParts(
        places=Places("grid", tuple(data.spatial_shape)),
        targets=(("temperature", ""),),
        filters={f"diffusivity {value:g}": diffusion_stencil(value) for value in data.diffusivities},
    )


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def show_numbers(
    axes: Axes,
    values: np.ndarray,
    palette: str,
    decimals: int,
    limits: tuple[float | None, float | None] = (None, None),
    fontsize: float = 10,
) -> None:
    """Show a matrix as colours with a number in each cell; NaN is left blank."""
    shown = np.ma.masked_invalid(values)
    image = axes.imshow(shown, cmap=palette, aspect="auto", vmin=limits[0], vmax=limits[1])
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            red, green, blue, _ = matplotlib.colormaps[palette](image.norm(value))
            colour = "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.5 else "black"
            # Adding 0.0 turns -0.0 into 0.0.
            text = f"{round(float(value), decimals) + 0.0:.{decimals}f}"
            axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=fontsize)
