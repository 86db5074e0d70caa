"""Pictures of a run on another geometry, and parts of its report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.figure import Figure

from smoe.diagnostics import regions_of_experts
from smoe.reports.parts import Places
from smoe.views import draw_nodes, save_picture
from smoe_paper.experiments.experiment import Notify, ReportParts, ShowOptions
from smoe_paper.experiments.task import OpenRun
from smoe_paper.heat_mesh.data import Domain, make_domain, make_regions
from smoe_paper.heat_mesh.model import MeshNet
from smoe_paper.heat_mesh.recipes import MeshMoEModel

_COLOURS = ("#3B6FB6", "#F2B134", "#C8553D", "#4E9F6D", "#8E6BB0", "#6FB7C9")
_UNSERVED = "#000000"


def _palette(number: int) -> list[tuple[float, float, float]]:
    colours = [_COLOURS[kind % len(_COLOURS)] for kind in range(number)]
    return [to_rgb(colour) for colour in (*colours, _UNSERVED)]


def _headings(regions: np.ndarray, learned: np.ndarray) -> tuple[str, str]:
    return "true regions", f"learned, {100.0 * np.mean(regions == learned):.2f} % alike"


def draw_surface_regions(regions: np.ndarray, learned: np.ndarray, domain: Domain, path: Path) -> None:
    """Draws the regions of the nodes of a surface, from two sides."""
    palette = np.array(_palette(int(regions.max()) + 1))
    truth, found = _headings(regions, learned)
    columns = {truth: palette[regions], found: palette[learned]}
    draw_nodes(columns, domain.coordinates, path, triangles=domain.triangles, title=f"Heat on {domain.name}")


def draw_grid_regions(regions: np.ndarray, learned: np.ndarray, path: Path) -> None:
    """Draws the regions of a line in rows, or the middle slices of a volume."""
    number = int(regions.max()) + 1
    maps = [np.where(part < 0, number, part) for part in (regions, learned)]
    panels = [_as_images(part) for part in maps]
    figure = Figure(figsize=(3.2 * len(panels[0]), 6.4), layout="constrained")
    rows = figure.subplots(2, len(panels[0]), squeeze=False)
    for axes_row, images, heading in zip(rows, panels, _headings(regions, learned), strict=True):
        for axes, (label, image) in zip(axes_row, images.items(), strict=True):
            axes.imshow(image, cmap=ListedColormap(_palette(number)), vmin=0, vmax=number, interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_title(f"{heading}{label}", fontsize=10)
    save_picture(figure, path)


def _as_images(values: np.ndarray) -> dict[str, np.ndarray]:
    if values.ndim == 1:
        columns = 2 ** ((len(values).bit_length()) // 2)
        if len(values) % columns:
            return {"": values[None]}
        return {f", rows of {columns}": values.reshape(-1, columns)}
    return {f", middle of axis {axis}": values.take(size // 2, axis=axis) for axis, size in enumerate(values.shape)}


def learned_regions(run: OpenRun) -> tuple[np.ndarray, np.ndarray]:
    """True regions of the nodes `(N,)`, and the region of the expert that serves each of them `(N,)`."""
    assert isinstance(run.task.model, MeshNet)
    regions = make_regions(run.recipe.data)
    layer = run.task.model.layer
    with torch.no_grad():
        # In the order of the gate, which is that of the domain.
        chosen = layer.gate(None).indices[0].long().cpu().numpy()
    return regions, regions_of_experts(chosen, regions, layer.gate.num_experts)[chosen[0]]


def draw_run(run: OpenRun, options: ShowOptions) -> list[Path]:
    """The accuracy by epoch, and the routing beside the regions where there is an SMoE."""
    del options
    pictures = run.draw_curve(f"validation/{run.recipe.training.monitor}")
    if isinstance(run.recipe.model, MeshMoEModel):
        pictures.append(run.directory.pictures / "routing.png")
        draw_learned(run, pictures[-1])
    return pictures


def draw_learned(run: OpenRun, path: Path) -> None:
    """Draws the true regions beside those that were learned, as slices of a grid or on a surface."""
    domain = make_domain(run.recipe.data.domain)
    regions, learned = learned_regions(run)
    if domain.full_degree is None:
        draw_surface_regions(regions, learned, domain, path)
    else:
        draw_grid_regions(regions.reshape(domain.spatial_shape), learned.reshape(domain.spatial_shape), path)


def report_parts(run: OpenRun, split: str | None, notify: Notify) -> ReportParts:
    """The line, volume, sphere or surface of a run, and the true regions of its nodes."""
    del split, notify
    domain = make_domain(run.recipe.data.domain)
    surface = {"coordinates": domain.coordinates, "triangles": domain.triangles}
    is_grid = domain.full_degree is not None
    return ReportParts(
        places=Places("grid" if is_grid else "mesh", domain.spatial_shape, **({} if is_grid else surface)),
        targets=(("temperature", ""),),
        regions=make_regions(run.recipe.data),
        data={"domain": f"{domain.name}, {domain.num_nodes:,} nodes"},
    )
