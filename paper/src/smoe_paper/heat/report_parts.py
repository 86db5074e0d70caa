"""What a report of a heat run shows beside its scores: the grid and the stencils that the experts should find."""

from __future__ import annotations

from smoe.reports.parts import Places
from smoe_paper.experiments.open_run import OpenRun
from smoe_paper.experiments.report_parts import ReportParts
from smoe_paper.heat.data import diffusion_stencil
from smoe_paper.heat.recipes import HeatRecipe


def report_parts(run: OpenRun) -> ReportParts:
    """Returns the grid, the stencil of each diffusivity, and the known regions of the task."""
    assert isinstance(run.recipe, HeatRecipe)
    data = run.recipe.data
    return ReportParts(
        places=Places("grid", tuple(data.spatial_shape)),
        targets=(("temperature", ""),),
        filters={f"diffusivity {value:g}": diffusion_stencil(value) for value in data.diffusivities},
    )
