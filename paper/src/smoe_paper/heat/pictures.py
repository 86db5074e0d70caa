"""Pictures of one heat run: the learned routing beside the truth, and the accuracy by epoch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from smoe.nn import SpatialMoE2d
from smoe_paper.experiments.open_run import OpenRun
from smoe_paper.heat.build import make_region_map
from smoe_paper.heat.data import diffusion_stencil
from smoe_paper.heat.model_options import SpatialMoEModel
from smoe_paper.heat.published import PUBLISHED
from smoe_paper.heat.recipes import HeatRecipe
from smoe_paper.models import SpatialMoENet


def learned(run: OpenRun) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns region map `(H, W)`, stencils `(R, 3, 3)`, routing map `(H, W)` and experts `(X, k, k)` of a run.

    Raises:
        ValueError: If the run has no single routing map: its model is not an SMoE, its experts are not plain
            convolutions, or its gate depends on the input.
    """
    model = run.task.model
    layer = model.layer if isinstance(model, SpatialMoENet) else None
    if not isinstance(layer, SpatialMoE2d) or layer.gate.looks_at_input:
        has = type(model).__name__ if layer is None else f"{type(layer).__name__} with {type(layer.gate).__name__}"
        raise ValueError(
            "a routing map can be drawn of convolution experts and a gate that does not look at its input; "
            f"this run has {has}"
        )
    assert isinstance(run.recipe, HeatRecipe)
    region_map = make_region_map(run.recipe.data)
    stencils = np.stack([diffusion_stencil(diffusivity) for diffusivity in run.recipe.data.diffusivities])
    with torch.no_grad():
        routing_map = layer.routing().indices[0].cpu().numpy()
    return region_map, stencils, routing_map, layer.weight.detach()[:, 0].cpu().numpy()


def draw_run(run: OpenRun) -> list[Path]:
    """Writes the pictures into the run's folder and returns their paths; the routing is drawn for an SMoE only."""
    from smoe.views import draw_accuracy
    from smoe_paper.heat.views import draw_routing

    monitor = f"validation/{run.recipe.training.monitor}"
    curve = run.directory.pictures / "accuracy.png"
    history = [record for record in run.directory.read_history() if monitor in record]
    pictures: list[Path] = []
    if history:
        paper = PUBLISHED.get(run.name)
        reference = (f"paper, after {paper.epochs} epochs", paper.mean) if paper else None
        draw_accuracy(history, curve, keys=(monitor,), reference=reference)
        pictures.append(curve)
    if not isinstance(run.recipe.model, SpatialMoEModel):
        return pictures
    routing = run.directory.pictures / "routing.png"
    draw_routing(*learned(run), routing)
    return [*pictures, routing]
