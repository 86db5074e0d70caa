"""What a report of a run on a mesh shows beside its scores: the domain and its regions."""

from __future__ import annotations

from smoe.reports.parts import Places
from smoe_paper.experiments.open_run import OpenRun
from smoe_paper.experiments.report_parts import ReportParts
from smoe_paper.heat_mesh.build import make_domain, make_regions
from smoe_paper.heat_mesh.recipes import MeshRecipe


def report_parts(run: OpenRun) -> ReportParts:
    """Returns the line, volume, sphere or surface of a run, and the true regions of its nodes."""
    assert isinstance(run.recipe, MeshRecipe)
    domain = make_domain(run.recipe.data.domain)
    is_grid = domain.full_degree is not None
    places = (
        Places("grid", domain.spatial_shape)
        if is_grid
        else Places("mesh", domain.spatial_shape, coordinates=domain.coordinates, triangles=domain.triangles)
    )
    return ReportParts(
        places=places,
        targets=(("temperature", ""),),
        regions=make_regions(run.recipe.data),
        data={"domain": f"{domain.name}, {domain.num_nodes:,} nodes"},
    )
