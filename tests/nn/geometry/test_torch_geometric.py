"""The graph layer with torch_geometric: conversion, batches of a DataLoader and of a sampler."""

from __future__ import annotations

import warnings

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    geometric = pytest.importorskip("torch_geometric")
    from torch_geometric.nn import GCN, GATConv, GCNConv, GraphConv, GraphUNet, SAGEConv, Sequential

import smoe

N, C = 20, 4
EDGES = torch.randint(0, N, (2, 60), generator=torch.Generator().manual_seed(1))


def test_graph_convolutions_compute_what_they_computed():
    net = Sequential(
        "x, edge_index",
        [
            (GCNConv(C, 6), "x, edge_index -> x"),
            torch.nn.ReLU(),
            (SAGEConv(6, 5), "x, edge_index -> x"),
            torch.nn.ReLU(),
            (SAGEConv(5, 5, root_weight=False, bias=False), "x, edge_index -> x"),
            torch.nn.ReLU(),
            (GraphConv(5, 3, aggr="mean"), "x, edge_index -> x"),
        ],
    )
    x = torch.randn(N, C)
    reports: list[str] = []
    new = smoe.convert(net, example_input=(x, EDGES), start="filters", notify=reports.append)
    layers = [module for module in new.modules() if isinstance(module, smoe.GraphMoE)]
    assert [layer.aggregation for layer in layers] == ["gcn", "mean", "mean", "mean"]
    assert [layer.root for layer in layers] == [False, True, False, True]
    torch.testing.assert_close(new(x, EDGES), net(x, EDGES), rtol=1e-4, atol=1e-5)
    new(x, EDGES).square().mean().backward()
    assert "6 of 12 experts on (20,)" in reports[0]


@pytest.mark.parametrize("seed", range(2))
def test_a_converted_gcn_is_the_same_with_repeated_loops_and_edges(seed: int):
    torch.manual_seed(seed)
    # Few nodes, so that self loops and other edges come several times.
    x, edges = torch.randn(5, C), torch.randint(0, 5, (2, 40))
    assert len(edges.unique(dim=1).T) < 25
    assert int((edges[0] == edges[1]).sum()) > 5
    net = GCN(C, 8, 2, 3).eval()
    converted = smoe.convert(net, example_input=(x, edges)).eval()
    torch.testing.assert_close(converted(x, edges), net(x, edges))
    weight = torch.rand(40, requires_grad=True)
    conv = GCNConv(C, 3)
    converted = smoe.convert(conv, example_input=(x, edges, weight)).eval()
    output = converted(x, edges, weight)
    torch.testing.assert_close(output, conv(x, edges, weight))
    (gradient,) = torch.autograd.grad(output.square().sum(), weight)
    (expected,) = torch.autograd.grad(conv(x, edges, weight).square().sum(), weight)
    is_loop = edges[0] == edges[1]
    torch.testing.assert_close(gradient[~is_loop], expected[~is_loop])


def hooked_gcn() -> GCNConv:
    conv = GCNConv(C, 3)
    conv.register_message_forward_hook(lambda *parts: None)
    return conv


def normed_gcn() -> GCNConv:
    conv = GCNConv(C, 3)
    torch.nn.utils.parametrizations.weight_norm(conv.lin)
    return conv


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GCNConv(C, C), GCNConv(C, C)
        self.second.lin = self.first.lin

    def forward(self, x, edges):
        return self.second(self.first(x, edges), edges)


NODES, WEIGHT = torch.randn(N, C), torch.randn(EDGES.shape[1])
ADJACENCY = torch.sparse_coo_tensor(EDGES, torch.ones(EDGES.shape[1]), (N, N), check_invariants=True).coalesce()


@pytest.mark.parametrize(
    ("net", "example", "reason"),
    [
        (GCNConv(-1, 3), (NODES, EDGES), None),
        (GCNConv(C, 3, bias=False), {"edge_index": EDGES, "x": NODES}, None),
        (GCNConv(C, 3), (NODES, EDGES, WEIGHT), None),
        (GCNConv(C, 3).bfloat16(), (NODES.bfloat16(), EDGES), None),
        (SAGEConv(-1, 3), (NODES, EDGES), None),
        (SAGEConv(C, 3, root_weight=False).double(), (NODES.double(), EDGES), None),
        (GraphConv(C, 3, aggr="mean"), (NODES, EDGES, WEIGHT), None),
        (GraphConv(-1, 3), (torch.randn(2, N, C), EDGES), None),
        (GCNConv(C, 3, aggr="max"), (NODES, EDGES), "its aggr is max"),
        (GCNConv(C, 3), (NODES, ADJACENCY), "its arguments are not tensors"),
        (GCNConv(C, 3, improved=True), (NODES, EDGES), None),
        (GCNConv(C, 3, improved=True), (NODES, EDGES, WEIGHT.abs()), None),
        (GCNConv(C, 3, normalize=False), (NODES, EDGES), "its add_self_loops is False"),
        (GraphUNet(C, 8, 3, 2), (NODES, EDGES), "down_convs.1: left, its nodes are those that a pooling chose"),
        (SAGEConv(C, 3), ((NODES, NODES), EDGES), "its arguments are not tensors"),
        (SAGEConv(C, 3), (NODES, EDGES, (N, N)), "it is given a size"),
        (SAGEConv(C, 3, aggr=["mean", "max"]), (NODES, EDGES), "it aggregates by"),
        (SAGEConv(C, 3, normalize=True), (NODES, EDGES), "its normalize is True"),
        (SAGEConv(C, 3, project=True), (NODES, EDGES), "its project is True"),
        (GraphConv(C, 3, flow="target_to_source"), (NODES, EDGES), "its flow is 'target_to_source'"),
        (GATConv(C, 3), (NODES, EDGES), "GATConv has no SMoE counterpart"),
        (hooked_gcn(), (NODES, EDGES), "it has hooks"),
        (normed_gcn(), (NODES, EDGES), "its parameters are parametrised"),
        (Tied(), (NODES, EDGES), "first: left, it is tied to second.lin.weight"),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks", "ignore:Converting sparse tensor to CSR")
def test_what_a_plan_promises_is_done(net, example, reason):
    plan = smoe.plan_conversion(net, example_input=example)
    if isinstance(net, GraphUNet):
        assert [change.name for change in plan.changes] == ["down_convs.0", "up_convs.1"] and reason in plan.reasons
        smoe.convert(net, example_input=example)
    elif reason is None:
        assert len(plan.changes) == 1
        smoe.convert(net, example_input=example)  # compares what both compute
    else:
        assert not plan.changes
        with pytest.raises(ValueError, match=reason):
            smoe.convert(net, example_input=example)
