"""Conversion of networks on lines, in volumes and on graphs."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import smoe

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("torch_geometric")
    from torch_geometric.nn import GATConv, GCNConv, GraphConv, SAGEConv, Sequential

N, C = 20, 4
EDGES = torch.randint(0, N, (2, 60), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
def test_a_net_on_a_line_computes_what_it_computed(padding_mode):
    net = nn.Sequential(
        nn.Conv1d(2, 4, 3, padding=1, padding_mode=padding_mode),
        nn.ReLU(),
        nn.Conv1d(4, 3, 3, stride=2, padding=1, bias=False),
    )
    x = torch.randn(5, 2, 17)
    new = smoe.convert(net, example_input=x, start="filters")
    assert [type(layer) for layer in new.children()] == [smoe.SpatialMoE1d, nn.ReLU, smoe.SpatialMoE1d]
    torch.testing.assert_close(new(x), net(x), rtol=1e-4, atol=1e-5)
    new(x).square().mean().backward()


def test_a_net_in_a_volume_computes_what_it_computed():
    net = nn.Sequential(
        nn.Conv3d(2, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Conv3d(4, 2, (1, 3, 3), padding=(0, 1, 1))
    )
    x = torch.randn(2, 2, 4, 5, 7)
    new = smoe.convert(net, example_input=x, start="filters", kernel_size=None)
    assert [type(layer) for layer in new.children()] == [smoe.SpatialMoE3d, nn.ReLU, smoe.SpatialMoE3d]
    torch.testing.assert_close(new(x), net(x), rtol=1e-4, atol=1e-5)
    plan = smoe.plan_conversion(net, example_input=x)
    assert plan.left == {"2": "its kernel is 1 x 3 x 3"}


def test_graph_convolutions_compute_what_they_computed():
    net = Sequential(
        "x, edge_index",
        [
            (GCNConv(C, 6), "x, edge_index -> x"),
            nn.ReLU(),
            (SAGEConv(6, 5), "x, edge_index -> x"),
            nn.ReLU(),
            (SAGEConv(5, 5, root_weight=False, bias=False), "x, edge_index -> x"),
            nn.ReLU(),
            (GraphConv(5, 3, aggr="mean"), "x, edge_index -> x"),
        ],
    )
    x = torch.randn(N, C)
    reports: list[str] = []
    new = smoe.convert(net, example_input=(x, EDGES), start="filters", notify=reports.append)
    layers = [module for module in new.modules() if isinstance(module, smoe.GraphMoE)]
    assert [layer.neighbourhood.aggregation for layer in layers] == ["gcn", "mean", "mean", "mean"]
    assert [layer.neighbourhood.root for layer in layers] == [False, True, False, True]
    torch.testing.assert_close(new(x, EDGES), net(x, EDGES), rtol=1e-4, atol=1e-5)
    new(x, EDGES).square().mean().backward()
    assert "6 of 12 experts on (20,)" in reports[0]


def test_what_is_left_and_why():
    cases = {
        "it aggregates by 'max'": SAGEConv(C, 5, aggr="max"),
        "its normalize is True": SAGEConv(C, 5, normalize=True),
        "its project is True": SAGEConv(C, 5, project=True),
        "its improved is True": GCNConv(C, 5, improved=True),
        "its flow is 'target_to_source'": GraphConv(C, 5, flow="target_to_source"),
        "GATConv has no SMoE counterpart": GATConv(C, 5),
    }
    for reason, module in cases.items():
        net = Sequential("x, edge_index", [(module, "x, edge_index -> x")])
        plan = smoe.plan_conversion(net, example_input=(torch.randn(N, C), EDGES))
        assert not plan.changes
        assert any(reason in text for text in plan.left.values()), (reason, plan.left)
    volume = nn.Sequential(nn.Conv3d(1, 1, 3, stride=(1, 2, 2), padding=1), nn.ConvTranspose3d(1, 1, 3))
    plan = smoe.plan_conversion(volume, example_input=torch.randn(1, 1, 4, 4, 4))
    assert [change.name for change in plan.changes] == ["0", "1"] and not plan.left
