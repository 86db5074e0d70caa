"""Heat on meshes: domains, regions, the simulation in loops, and one short training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from smoe_paper.heat_mesh import data as domains
from smoe_paper.heat_mesh.data import draw_states, grow_regions, simulate
from smoe_paper.heat_mesh.model import SageNet, build_task, make_domain
from smoe_paper.heat_mesh.recipes import (
    MeshMoEModel,
    PlainModel,
    SageModel,
    mesh_recipe,
)

SMALL = [domains.line(40), domains.volume(4), domains.healpix(4), domains.icosphere(2)]


@pytest.mark.parametrize("domain", SMALL, ids=lambda domain: domain.name)
def test_edges_go_both_ways_between_neighbours(domain):
    pairs = set(map(tuple, domain.edges.T.tolist()))
    assert len(pairs) == domain.edges.shape[1]
    assert pairs == {(target, source) for source, target in pairs}
    counts = np.bincount(domain.edges[1], minlength=domain.num_nodes)
    expected = {"line": {1, 2}, "volume": {3, 4, 5, 6}, "healpix": {4}, "icosphere": {5, 6}}[domain.name]
    assert set(counts.tolist()) == expected


@pytest.mark.filterwarnings("ignore")
def test_the_cortical_surface():
    pytest.importorskip("nilearn")
    surface = domains.fsaverage5()
    assert surface.num_nodes == 10242 and surface.edges.shape == (2, 61440)


@pytest.mark.parametrize("domain", SMALL, ids=lambda domain: domain.name)
def test_a_step_is_that_of_the_loops(domain):
    regions = grow_regions(domain, 3, seed=1)
    states = draw_states(regions, 2, seed=0)
    rates = (0.01, 0.1, 1.0)
    frames = simulate(domain, regions, rates, states, 2)
    assert frames.shape == (2, 3, domain.num_nodes)
    degree = domain.degrees()
    for before, after in ((frames[:, 0], frames[:, 1]), (frames[:, 1], frames[:, 2])):
        for run in range(2):
            inflow = np.zeros(domain.num_nodes)
            for source, target in domain.edges.T:
                inflow[target] += float(before[run, source])
            for node in range(domain.num_nodes):
                rate = rates[regions[node]]
                expected = (1 - rate) * float(before[run, node]) + rate * inflow[node] / degree[node]
                assert float(after[run, node]) == pytest.approx(expected, rel=1e-5, abs=1e-7)


def test_regions_attach_to_their_neighbours():
    domain = domains.icosphere(3)
    regions = grow_regions(domain, 3)
    assert np.bincount(regions).min() > 50
    source, target = domain.edges
    assert np.mean(regions[source] == regions[target]) > 0.45  # 1 / 3 by chance
    assert (grow_regions(domain, 3) == regions).all()


def test_unstable_rates_are_refused():
    domain = domains.line(8)
    with pytest.raises(ValueError, match=r"in \[0, 1\] for a stable step, got \(0.5, 1.5\)"):
        simulate(domain, np.arange(8) % 2, (0.5, 1.5), np.zeros((1, 8)), 1)


def tiny(recipe):
    data = replace(recipe.data, num_train_runs=2, num_validation_runs=1, num_test_runs=1, num_steps=3)
    return replace(recipe, data=data)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "model"),
    [("line", MeshMoEModel()), ("healpix", MeshMoEModel()), ("icosphere", MeshMoEModel()), ("icosphere", PlainModel())],
)
def test_models_step(name, model):
    task = build_task(tiny(mesh_recipe(name, model)), notify=lambda _: None)
    input, target = task.splits["train"].__getitems__([0, 5])  # type: ignore[attr-defined]
    output = task.model(input)
    assert output.shape == target.shape == (2, 1, *make_domain(name).spatial_shape)
    task.loss(output, target).backward()
    task.optimizer.step()


@pytest.mark.filterwarnings("ignore")
def test_sage_stacks_work_on_meshes_only():
    pytest.importorskip("torch_geometric")
    net = build_task(tiny(mesh_recipe("icosphere", SageModel(node_features=8))), ()).model
    assert isinstance(net, SageNet)
    input = torch.rand(2, 1, 2562)
    edges = torch.from_numpy(make_domain("icosphere").edges)
    for sample, output in zip(input, net(input), strict=True):
        hidden = net.layers[0](torch.cat([sample.T, net.features], dim=1), edges).relu()
        torch.testing.assert_close(output, net.layers[1](hidden, edges).T)
    with pytest.raises(ValueError, match="SAGEConv works on meshes, not on the grid of line"):
        build_task(tiny(mesh_recipe("line", SageModel())), ())
