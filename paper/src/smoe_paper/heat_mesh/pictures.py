"""Pictures of a run on a mesh: accuracy by epoch, and the routing beside the regions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from smoe.diagnostics import regions_of_experts
from smoe_paper.experiments.open_run import OpenRun
from smoe_paper.heat_mesh.build import make_domain, make_regions
from smoe_paper.heat_mesh.build_model import MeshNet
from smoe_paper.heat_mesh.model_options import MeshMoEModel
from smoe_paper.heat_mesh.recipes import MeshRecipe


def learned_regions(run: OpenRun) -> tuple[np.ndarray, np.ndarray]:
    """True regions of the nodes `(N,)`, and the region of the expert that serves each of them `(N,)`."""
    assert isinstance(run.recipe, MeshRecipe)
    assert isinstance(run.task.model, MeshNet)
    regions = make_regions(run.recipe.data)
    layer = run.task.model.layer
    with torch.no_grad():
        # In the order of the gate, which is that of the domain.
        chosen = layer.gate(None).indices[0].long().cpu().numpy()
    return regions, regions_of_experts(chosen, regions, layer.num_experts)[chosen[0]]


def draw_run(run: OpenRun) -> list[Path]:
    """Writes the pictures into the run's folder and returns their paths; the routing only where there is an SMoE."""
    from smoe.views import draw_accuracy

    monitor = f"validation/{run.recipe.training.monitor}"
    history = [record for record in run.directory.read_history() if monitor in record]
    pictures: list[Path] = []
    if history:
        curve = run.directory.pictures / "accuracy.png"
        draw_accuracy(history, curve, keys=(monitor,))
        pictures.append(curve)
    if isinstance(run.recipe.model, MeshMoEModel):
        routing = run.directory.pictures / "routing.png"
        draw_learned(run, routing)
        pictures.append(routing)
    return pictures


def draw_learned(run: OpenRun, path: Path) -> None:
    """Draws the true regions beside those that were learned, as slices of a grid or on a surface."""
    from smoe_paper.heat_mesh.views import draw_grid_regions, draw_surface_regions

    assert isinstance(run.recipe, MeshRecipe)
    domain = make_domain(run.recipe.data.domain)
    regions, learned = learned_regions(run)
    if domain.full_degree is None:
        draw_surface_regions(regions, learned, domain, path)
    else:
        draw_grid_regions(regions.reshape(domain.spatial_shape), learned.reshape(domain.spatial_shape), path)
