"""Pictures of heat diffusion: of one run, and of tables of stored runs; parts of its report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

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
from smoe_paper.experiments.tables import ResultTable, Row, outcomes
from smoe_paper.experiments.task import OpenRun
from smoe_paper.heat.data import diffusion_stencil, make_region_map
from smoe_paper.heat.recipes import HeatDiffusion
from smoe_paper.heat.tables import HEAT, SMOE
from smoe_paper.models import SpatialMoENet

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
            show_kernel(axes, kernel, float(np.abs(stencils).max()))
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
    return pictures


def _draw_accuracies(rows: Sequence[Row], store: RunStore, path: Path) -> Iterator[Path]:
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
        style: dict[str, Any] = {"color": COLOURS[number % len(COLOURS)], "linewidth": 1.2, "alpha": 0.8}
        style["linestyle"] = ("-", (0, (5, 2)), (0, (1, 1.5)))[number // len(COLOURS) % 3]
        if label == "SMoE":
            style = {"color": "black", "linewidth": 3.0, "zorder": 3}
        shape = run["recipe"]["data"]["spatial_shape"]
        where = "" if tuple(shape) == HeatDiffusion().spatial_shape else f" ({shape[0]} x {shape[1]} pixels)"
        axes.plot(np.arange(1, len(values) + 1) * length, values, label=label + where, **style)
    axes.set(xscale="log", ylim=(0, 101), xlabel="epochs of the paper's data")
    axes.set_ylabel("validation pixels within 1 %, in %")
    axes.grid(color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    save_picture(figure, path)
    yield path


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


def show_kernel(axes: Axes, kernel: np.ndarray, largest: float) -> None:
    axes.imshow(kernel, cmap="PuOr_r", vmin=-largest, vmax=largest)
    for (row, column), value in np.ndenumerate(kernel):
        colour = "white" if abs(value) > 0.6 * largest else "black"
        # Adding 0.0 turns -0.0 into 0.0.
        text = f"{round(float(value), 3) + 0.0:.3f}"
        axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=7)
