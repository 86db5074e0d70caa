"""Pictures of heat diffusion: of one run, and of tables of stored runs; parts of its report."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, Normalize, to_rgb
from matplotlib.figure import Figure, SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from smoe.diagnostics import region_agreement, regions_of_experts
from smoe.nn import SpatialMoE2d
from smoe.reports.parts import Places
from smoe.views import save_picture
from smoe_paper.experiments.experiment import Notify, ReportParts, ShowOptions
from smoe_paper.experiments.runs import kept_run
from smoe_paper.experiments.stored_runs import RunStore
from smoe_paper.experiments.tables import Outcome, ResultTable, Row, TableSet, outcomes
from smoe_paper.experiments.task import OpenRun
from smoe_paper.heat.data import diffusion_stencil, make_region_map
from smoe_paper.heat.recipes import PUBLISHED, HeatDiffusion, SpatialMoEModel
from smoe_paper.heat.tables import DAMPINGS, QUANTILES, SMOE, grid_recipe
from smoe_paper.models import SpatialMoENet


def largest_deviation(stencils: np.ndarray, experts: np.ndarray, regions: np.ndarray) -> float:
    """The largest difference between a weight of an expert and of the stencil of its region.

    The smaller kernel of the two is surrounded by zeros. Experts without a region are left out.
    """
    size = max(stencils.shape[-1], experts.shape[-1])
    used = regions >= 0
    difference = _surround(experts, size)[used] - _surround(stencils, size)[regions[used]]
    return float(np.abs(difference).max())


def _surround(kernels: np.ndarray, size: int) -> np.ndarray:
    margin = (size - kernels.shape[-1]) // 2
    return np.pad(kernels.astype(np.float64), ((0, 0), (margin, margin), (margin, margin)))


RGB = tuple[float, float, float]

_REGION_COLOURS = ("#3B6FB6", "#F2B134", "#C8553D", "#4E9F6D", "#8E6BB0", "#6FB7C9", "#9C755F", "#E08FB3")
_UNUSED_COLOUR: RGB = (0.72, 0.72, 0.72)


def draw_routing(
    region_map: np.ndarray,
    stencils: np.ndarray,
    routing_map: np.ndarray,
    experts: np.ndarray,
    path: str | Path,
) -> None:
    """Draw the true regions and their stencils on the left, the learned routing and its experts on the right.

    An expert has the colour of the region in which most of its pixels lie; experts that share a region have shades
    of its colour, the most used one the darkest. Experts are listed by region; unused experts are last, in grey.
    """
    num_regions, num_experts = len(stencils), len(experts)
    regions = regions_of_experts(routing_map[None], region_map, num_experts)

    region_colours = _colours_of_regions(num_regions)
    expert_colours, order = _colours_of_experts(routing_map, regions, region_colours)
    largest = max(float(np.abs(stencils).max()), float(np.abs(experts).max()))
    rows = max(3, math.ceil(math.sqrt(max(num_regions, num_experts))))
    columns = (math.ceil(num_regions / rows), math.ceil(num_experts / rows))

    map_width, kernel_width, height = 4.8, 1.65, 5.7
    widths = [map_width + kernel_width * count for count in columns]
    figure = Figure(figsize=(sum(widths), height), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08))
    halves = figure.add_gridspec(1, 2, width_ratios=widths)
    truth, learned = figure.add_subfigure(halves[0]), figure.add_subfigure(halves[1])

    truth.suptitle("True regions and stencils", fontsize=14, fontweight="bold")
    _draw_side(
        truth,
        region_map,
        region_colours,
        caption=f"{num_regions} regions on {region_map.shape[0]} x {region_map.shape[1]} pixels\n"
        "each pixel steps with the stencil of its region",
        kernels=list(stencils),
        titles=[f"region {region}" for region in range(num_regions)],
        colours=region_colours,
        grid=(rows, columns[0]),
        map_width=map_width / kernel_width,
        largest=largest,
    )
    learned.suptitle("Learned routing and experts", fontsize=14, fontweight="bold")
    _draw_side(
        learned,
        routing_map,
        expert_colours,
        caption=_summary(region_map, stencils, routing_map, experts, regions),
        kernels=[experts[expert] for expert in order],
        titles=[
            f"expert {expert} → region {regions[expert]}" if regions[expert] >= 0 else f"expert {expert}, unused"
            for expert in order
        ],
        colours=[expert_colours[expert] for expert in order],
        grid=(rows, columns[1]),
        map_width=map_width / kernel_width,
        largest=largest,
    )
    save_picture(figure, path)


def _summary(
    region_map: np.ndarray, stencils: np.ndarray, routing_map: np.ndarray, experts: np.ndarray, regions: np.ndarray
) -> str:
    fraction = region_agreement(routing_map[None], region_map, len(experts))
    # Rounded down, so that 100 % means all pixels.
    percent = math.floor(fraction * 1e4 + 1e-6) / 100 if fraction < 1 else 100
    num_different = round((1 - fraction) * region_map.size)
    return (
        f"agreement {percent:g} % (wrong: {num_different} of {region_map.size} pixels)\n"
        f"largest deviation from a stencil {largest_deviation(stencils, experts, regions):.1e}"
    )


def _colours_of_regions(num_regions: int) -> list[RGB]:
    return [to_rgb(_REGION_COLOURS[region % len(_REGION_COLOURS)]) for region in range(num_regions)]


def _colours_of_experts(
    routing_map: np.ndarray, regions: np.ndarray, region_colours: Sequence[RGB]
) -> tuple[list[RGB], list[int]]:
    """The colour of each expert, and the experts in the order in which they are listed."""
    num_pixels = np.bincount(routing_map.ravel(), minlength=len(regions))
    colours = [_UNUSED_COLOUR] * len(regions)
    order: list[int] = []
    for region, colour in enumerate(region_colours):
        sharing = sorted(np.flatnonzero(regions == region).tolist(), key=lambda expert: (-num_pixels[expert], expert))
        for rank, expert in enumerate(sharing):
            whiteness = 0.65 * rank / max(len(sharing) - 1, 1)
            red, green, blue = (part + (1 - part) * whiteness for part in colour)
            colours[expert] = (red, green, blue)
        order += sharing
    return colours, order + np.flatnonzero(regions < 0).tolist()


def _draw_side(
    side: SubFigure,
    pixel_map: np.ndarray,
    map_colours: Sequence[RGB],
    *,
    caption: str,
    kernels: Sequence[np.ndarray],
    titles: Sequence[str],
    colours: Sequence[RGB],
    grid: tuple[int, int],
    map_width: float,
    largest: float,
) -> None:
    rows, columns = grid
    layout = side.add_gridspec(rows, 1 + columns, width_ratios=[map_width] + [1.0] * columns)
    axes = side.add_subplot(layout[:, 0])
    axes.imshow(
        pixel_map, cmap=ListedColormap(map_colours), vmin=-0.5, vmax=len(map_colours) - 0.5, interpolation="nearest"
    )
    axes.set_title(caption, fontsize=10.5, pad=6)
    axes.set_xticks([])
    axes.set_yticks([])
    for number, (kernel, title, colour) in enumerate(zip(kernels, titles, colours, strict=True)):
        # Down the columns, so that the first column of experts stands beside its regions.
        _draw_kernel(side.add_subplot(layout[number % rows, 1 + number // rows]), kernel, title, colour, largest, rows)


def _draw_kernel(axes: Axes, kernel: np.ndarray, title: str, colour: RGB, largest: float, rows: int) -> None:
    # Symmetric about zero: white is a weight of zero, whatever the signs in the bank.
    scale = Normalize(-largest, largest) if largest > 0 else Normalize(-1, 1)
    palette = matplotlib.colormaps["PuOr_r"]
    axes.imshow(kernel, cmap=palette, norm=scale, interpolation="nearest")
    size = kernel.shape[-1]
    decimals, font = (4, 7.0) if size <= 3 else (2, 22 / size)
    for (row, column), weight in np.ndenumerate(kernel):
        red, green, blue, _ = palette(scale(weight))
        is_dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
        axes.text(
            column,
            row,
            # Adding 0.0 turns -0.0 into 0.0.
            f"{round(float(weight), decimals) + 0.0:.{decimals}f}",
            ha="center",
            va="center",
            fontsize=font * 3 / rows,
            color="white" if is_dark else "black",
        )
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(title, fontsize=9 * 3 / rows, pad=5)
    for spine in axes.spines.values():
        spine.set_color(colour)
        spine.set_linewidth(4)


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
    region_map = make_region_map(run.recipe.data)
    stencils = np.stack([diffusion_stencil(diffusivity) for diffusivity in run.recipe.data.diffusivities])
    with torch.no_grad():
        routing_map = layer.routing().indices[0].cpu().numpy()
    return region_map, stencils, routing_map, layer.weight.detach()[:, 0].cpu().numpy()


def draw_run(run: OpenRun, options: ShowOptions) -> list[Path]:
    """The accuracy by epoch, and the routing map with the experts of an SMoE."""
    del options
    paper = PUBLISHED.get(run.name)
    reference = (f"paper, after {paper.epochs} epochs", paper.mean) if paper else None
    pictures = run.draw_curve(f"validation/{run.recipe.training.monitor}", reference=reference)
    if isinstance(run.recipe.model, SpatialMoEModel):
        pictures.append(run.directory.pictures / "routing.png")
        draw_routing(*learned(run), pictures[-1])
    return pictures


METRIC = "within_1_percent"


def draw_tables(
    table_set: TableSet, tables: Sequence[ResultTable], store: RunStore, runs_dir: Path, output_dir: Path, data: Path
) -> list[Path]:
    """The figures that stored runs allow; the routing only if the weights of the run are in `runs_dir`."""
    del data
    pictures: list[Path] = []
    names = {table.name: table for table in tables}
    if "heat/main" in names:
        run = kept_run(table_set, SMOE, store, runs_dir)
        if run is not None:
            pictures.append(output_dir / "routing.png")
            draw_routing(*learned(run), pictures[-1])
        pictures += _draw_models(table_set, names["heat/main"].rows, store, output_dir)
    if "heat/quantile-damping" in names:
        pictures += _draw_quantile_damping(table_set, store, output_dir / "quantile-damping.png")
    return pictures


def _draw_models(table_set: TableSet, rows: Sequence[Row], store: RunStore, folder: Path) -> Iterator[Path]:
    from smoe_paper.charts import draw_accuracies, draw_region_accuracies

    found = {row.label: outcomes(table_set, row, store) for row in rows}
    first_runs = {label: all_of_it[0].results[0] for label, all_of_it in found.items() if all_of_it}
    curves = {label: [value or 0.0 for value in run["validation"]] for label, run in first_runs.items()}
    if not curves:
        return
    # Not all models were trained at the same scale.
    lengths = {
        label: run["recipe"]["data"]["num_train_runs"] / HeatDiffusion().num_train_runs
        for label, run in first_runs.items()
    }
    label = "validation pixels within 1 %, in %"
    draw_accuracies(
        curves, folder / "accuracy.png", label=label, epoch_lengths=lengths, unit="epochs of the paper's data"
    )
    yield folder / "accuracy.png"
    diffusivities = HeatDiffusion().diffusivities
    accuracies = {label: _by_region(run, len(diffusivities)) for label, run in first_runs.items() if run["test"]}
    if accuracies:
        names = [f"diffusivity {diffusivity:g}" for diffusivity in diffusivities]
        draw_region_accuracies(accuracies, names, folder / "regions.png", label="test pixels within 1 %, in %")
        yield folder / "regions.png"


def _by_region(run: dict[str, Any], num_regions: int) -> list[float]:
    return [run["test"][f"within_1_percent/region_{region}"] for region in range(num_regions)]


def _draw_quantile_damping(table_set: TableSet, store: RunStore, path: Path) -> Iterator[Path]:
    from smoe_paper.charts import Panel, draw_grids

    cells = {
        (row, column): outcomes(table_set, Row(("",), grid_recipe(quantile, damping)), store)
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
        for outcome in found:
            if outcome.scale.name == scale:
                mean = outcome.mean(METRIC)
                accuracy[place] = np.nan if mean is None else mean
                epochs[place] = _epochs_to_all(outcome)
    draw_grids(
        [
            Panel("test pixels within 1 %, in %", accuracy),
            Panel(f"{scale} epochs to 100 % (blank: not all seeds)", epochs, decimals=0, palette="viridis_r"),
        ],
        [f"{quantile:g}" for quantile in QUANTILES],
        ["none" if damping is None else f"{damping:g}" for damping in DAMPINGS],
        path,
        row_title="error quantile",
        column_title="damping factor",
    )
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
