"""Gates of nodes: priors, and the transfer of a gate to other nodes."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch

import smoe
from definitions import compare_gradients, gate_gradient
from smoe.nn._gates import FactorisedGate
from smoe.nn._graph_layer import GraphMoE
from smoe.nn._interpolate import transfer_gate
from smoe.ops._graph import edge_directions


def ring(num_nodes: int) -> torch.Tensor:
    here = torch.arange(num_nodes)
    return torch.stack([here, (here + 1) % num_nodes])


def test_a_prior_of_each_node():
    groups = torch.arange(12) % 3
    gate = smoe.TensorGate.from_prior(groups, 6, 1, order="families")
    assert (gate.forward().indices[0, 0] // 2 == groups).all()
    assert GraphMoE.from_experts(2, 6, 1, gate=gate).num_nodes == 12


@pytest.mark.parametrize("has_scipy", [True, False])
@pytest.mark.parametrize("num_neighbours", [1, 4])
def test_transfer_to_another_order_and_back(monkeypatch, num_neighbours, has_scipy):
    if not has_scipy:
        monkeypatch.setitem(__import__("sys").modules, "scipy.spatial", None)
    place = torch.randn(40, 3)
    order = torch.randperm(40)
    for gate in (smoe.TensorGate(5, 2, (40,)), FactorisedGate(5, 2, (40,)), smoe.FixedGate(torch.randn(5, 40), 2)):
        moved = transfer_gate(gate, place, place[order], num_neighbours=num_neighbours)
        torch.testing.assert_close(moved.forward().scores, gate.forward().scores[:, :, order])
        assert (moved.forward().indices == gate.forward().indices[:, :, order]).all()


def test_the_choice_of_neighbours_by_hand():
    # Of four places at 0, 4, 5 and 5.5, the last three have one direction. At 1.5, the nearest has the weight
    # 1 / 2.25 = .44 and they 1 / 6.25 + 1 / 12.25 + 1 / 16 = .30; at 1.8 .31 and .21 + .10 + .07 = .38.
    gate = smoe.FixedGate(torch.tensor([[9.0, 1.0, 1.0, 2.0], [0.0, 3.0, 2.0, 4.0]]), 1)
    old = torch.tensor([[0.0], [4.0], [5.0], [5.5]])
    moved = transfer_gate(gate, old, torch.tensor([[1.5], [1.8], [5.0]]))
    assert moved.forward().scores[0].T.tolist() == [[9.0, 0.0], [1.0, 3.0], [1.0, 2.0]]


def test_transfer_between_grids():
    rows, columns = torch.meshgrid(torch.arange(4.0), torch.arange(6.0), indexing="ij")
    old = torch.stack([rows, columns], dim=-1)
    gate = smoe.TensorGate(3, 1, (4, 6))
    fine = (torch.stack(torch.meshgrid(torch.arange(8.0), torch.arange(12.0), indexing="ij"), dim=-1) - 0.5) / 2
    moved = transfer_gate(gate, old, fine, num_neighbours=1)
    assert moved.spatial_shape == (8, 12)
    expected = gate.scores.repeat_interleave(2, dim=1).repeat_interleave(2, dim=2)
    assert isinstance(moved, smoe.TensorGate)
    torch.testing.assert_close(moved.scores, expected)


def test_a_transferred_gate_is_accepted_where_the_old_one_is_refused():
    place = torch.randn(9, 2)
    edges = ring(9)
    layer = GraphMoE.from_experts(2, 4, 1, num_nodes=9, coordinates=place, rule="rc")
    x = torch.randn(9, 2)
    expected = layer.eval()(x, edges)
    order = torch.randperm(9)
    where = order.argsort()
    with pytest.raises(ValueError, match="edges differ"):
        layer(x[order], where[edges])
    new = GraphMoE.from_experts(
        2, 4, 1, gate=transfer_gate(layer.gate, place, place[order]), coordinates=place[order], rule="rc"
    )
    with torch.no_grad():
        new.weight.copy_(layer.weight)
    torch.testing.assert_close(new.eval()(x[order], where[edges]), expected[order])


@pytest.mark.parametrize(
    ("old", "new", "options", "message"),
    [
        ((5, 2), (3, 2), {}, r"made for \(4,\), but old_coordinates are of \(5, 2\)"),
        ((4, 2), (3, 3), {}, "as many components, got 2 and 3"),
        ((4, 1), (3, math.nan), {}, "new coordinates must be finite, got 3 values"),
        ((4, 1), (4, 1), {"num_neighbours": 0}, "num_neighbours must be at least 1, got 0"),
    ],
)
def test_transfer_refuses(old, new, options, message):
    places = torch.full((3, 1), math.nan) if math.nan in new else torch.zeros(new)
    with pytest.raises(ValueError, match=message):
        transfer_gate(smoe.TensorGate(3, 1, (4,)), torch.zeros(old), places, **options)


def test_directions():
    place = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 1.0]])
    edges = torch.tensor([[1, 2], [0, 0]])  # steps (3, 0) and (0, 1), of mean length 2
    torch.testing.assert_close(edge_directions(place, edges), torch.tensor([[1.5, 0.0], [0.0, 0.5]]))
    # From a point on the equator at longitude 0: east is the second axis, north the third.
    sphere = torch.tensor([[1.0, 0.0, 0.0], [0.995, 0.0998, 0.0], [0.995, 0.0, 0.0998], [0.0, 0.0, 1.0]])
    found = edge_directions(sphere, torch.tensor([[1, 2, 0], [0, 0, 3]]), on_sphere=True)
    assert found[0, 0] > 0 and abs(found[0, 1]) < 1e-6
    assert found[1, 1] > 0 and abs(found[1, 0]) < 1e-6
    assert found.isfinite().all()
    with pytest.raises(ValueError, match=r"on a sphere need coordinates \(N, 3\)"):
        edge_directions(place, edges, on_sphere=True)


NUM_NODES, C, X, E = 13, 3, 7, 2
# Directed and repeated edges, a self loop at node 4, and node 12 without any edge.
EDGES = torch.cat(
    [torch.randint(0, 12, (2, 29), generator=torch.Generator().manual_seed(0)), torch.tensor([[4, 5, 5], [4, 6, 6]])], 1
)


def loop_neighbourhood(
    x: torch.Tensor,
    edge_index: torch.Tensor,
    *,
    aggregation: str = "mean",
    edge_weight: torch.Tensor | None = None,
    edge_attr: torch.Tensor | None = None,
    root: bool = True,
) -> torch.Tensor:
    """Features `(N, blocks * C)` of the neighbourhoods of `(N, C)`."""
    num_nodes = len(x)
    edges = [
        (int(s), int(t), x.new_ones(()) if edge_weight is None else edge_weight[e], e)
        for e, (s, t) in enumerate(edge_index.T.tolist())
    ]
    if aggregation == "gcn":
        # Of several self loops of a node the last one counts, as in torch_geometric.
        looped = {s: e for s, t, _, e in edges if s == t}
        edges = [edge for edge in edges if edge[0] != edge[1] or edge[3] == looped[edge[0]]]
        edges += [(p, p, x.new_ones(()), None) for p in range(num_nodes) if p not in looped]
    rows = []
    degree = [sum((w for _, t, w, _ in edges if t == p), x.new_zeros(())) for p in range(num_nodes)]
    for p in range(num_nodes):
        arriving = [edge for edge in edges if edge[1] == p]
        sums = [torch.zeros_like(x[0]) for _ in range(1 + (0 if edge_attr is None else edge_attr.shape[1]))]
        for s, t, weight, e in arriving:
            factor = weight
            if aggregation == "mean":
                factor = weight / len(arriving)
            elif aggregation == "gcn":
                factor = weight / ((degree[s] * degree[t]).sqrt() if degree[s].detach().item() > 0 else math.inf)
            sums[0] = sums[0] + factor * x[s]
            for column in range(len(sums) - 1):
                value = x.new_zeros(()) if e is None else edge_attr[e, column]  # type: ignore[index]
                sums[1 + column] = sums[1 + column] + factor * value * x[s]
        rows.append(torch.cat([x[p], *sums] if root else sums))
    return torch.stack(rows)


def loop_graph_moe(
    features: torch.Tensor, weight: torch.Tensor, indices: torch.Tensor, expert_channels: int = 1
) -> torch.Tensor:
    """Outputs `(N, E * F)` of the experts `(E, N)` of each node, from its features `(N, C')`."""
    experts = weight.unflatten(0, (-1, expert_channels))
    return torch.stack(
        [
            torch.cat([experts[int(expert)] @ features[node] for expert in indices[:, node]])
            for node in range(len(features))
        ]
    )


def make_layer(**options) -> GraphMoE:
    # By their scores: experts of a family would start equal.
    options.setdefault("order", "score")
    layer = GraphMoE.from_experts(C, X, E, num_nodes=NUM_NODES, dtype=torch.float64, **options)
    if layer.bias is not None:
        torch.nn.init.normal_(layer.bias)
    return layer


@pytest.mark.parametrize(
    ("aggregation", "has_weights", "edge_dim", "root"),
    [
        ("mean", False, 0, True),
        ("mean", True, 2, False),
        ("sum", True, 0, False),
        ("gcn", False, 2, True),
        ("gcn", True, 0, True),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_gradient_is_that_of_the_loops(aggregation, has_weights, edge_dim, root, dtype):
    options = {"aggregation": aggregation, "edge_dim": edge_dim, "root": root}
    layer = make_layer(**options, expert_channels=2, rule="frozen", bias=False).to(dtype)
    x = torch.randn(2, NUM_NODES, C, dtype=dtype, requires_grad=True)
    weight = torch.rand(EDGES.shape[1], dtype=dtype, requires_grad=True) if has_weights else None
    attr = torch.randn(EDGES.shape[1], edge_dim, dtype=dtype, requires_grad=True) if edge_dim else None
    samples = []
    for sample in x:
        features = loop_neighbourhood(
            sample, EDGES, aggregation=aggregation, edge_weight=weight, edge_attr=attr, root=root
        )
        samples.append(loop_graph_moe(features, layer.weight, layer.routing().indices, 2))
    tensors = [tensor for tensor in (x, layer.weight, weight, attr) if tensor is not None]
    tolerance = 1e-10 if dtype == torch.float64 else 1e-4
    compare_gradients(layer(x, EDGES, weight, attr), torch.stack(samples), tensors, tolerance)


def test_a_batch_in_a_row_is_a_batch():
    layer = make_layer(rule="frozen")
    x = torch.randn(3, NUM_NODES, C, dtype=torch.float64)
    edges = torch.cat([EDGES + graph * NUM_NODES for graph in range(3)], dim=1)
    torch.testing.assert_close(layer(x.flatten(0, 1), edges), layer(x, EDGES).flatten(0, 1))


def test_some_nodes_are_served_by_their_own_experts():
    layer = make_layer(rule="frozen", local_affine=True, bias="slot")
    assert layer._affine is not None
    torch.nn.init.normal_(layer._affine.scale)
    x = torch.randn(NUM_NODES, C, dtype=torch.float64)
    # As a loader of neighbourhoods does: three nodes first, in any order, then the other sources of their edges.
    seeds = torch.tensor([9, 12, 4])
    edges = EDGES[:, torch.isin(EDGES[1], seeds)]
    node_id = torch.cat([seeds, *(node[None] for node in edges[0].unique() if node not in seeds)])
    assert len(node_id) < NUM_NODES
    place = torch.empty(NUM_NODES, dtype=torch.int64)
    place[node_id] = torch.arange(len(node_id))
    part = layer(x[node_id], place[edges], node_id=node_id)
    torch.testing.assert_close(part[:3], layer(x, EDGES)[seeds])


def test_the_gate_learns_from_some_nodes():
    layer = make_layer(rule="rc")
    node_id = torch.tensor([3, 9, 1])
    layer(torch.randn(3, C, dtype=torch.float64), torch.tensor([[0, 1], [1, 2]]), node_id=node_id).sum().backward()
    touched = gate_gradient(layer).abs().sum(dim=0).nonzero().flatten().tolist()
    assert touched and set(touched) <= {1, 3, 9}


def test_edges_changed_in_place_are_noticed():
    layer = make_layer(rule="frozen", fixed_graph=False)
    x = torch.randn(NUM_NODES, C, dtype=torch.float64)
    edges = EDGES.clone()
    layer(x, edges)
    edges[0, :5] = 2
    expected = loop_graph_moe(loop_neighbourhood(x, edges), layer.weight, layer.routing().indices)
    torch.testing.assert_close(layer(x, edges), expected)


def test_copies_and_files():
    layer = make_layer(rule="rc")
    x = torch.randn(NUM_NODES, C, dtype=torch.float64)
    output = layer(x, EDGES)
    other = make_layer()
    other.load_state_dict(layer.state_dict())
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), other):
        torch.testing.assert_close(twin(x, EDGES), output)


def test_another_order_of_nodes_is_refused():
    layer = make_layer(rule="frozen")
    x = torch.randn(NUM_NODES, C, dtype=torch.float64)
    layer(x, EDGES)
    layer(x, EDGES[:, torch.randperm(EDGES.shape[1])])  # the order of edges is free
    swapped = EDGES.clone()
    swapped[EDGES == 2], swapped[EDGES == 3] = 3, 2
    with pytest.raises(ValueError, match=r"the edges differ .* smoe\.transfer_gate"):
        layer(x, swapped)
    other = make_layer(rule="frozen")
    other(x, swapped)
    with pytest.raises(RuntimeError, match="edges of the saved gate have the hash"):
        other.load_state_dict(layer.state_dict())
    fresh = make_layer(rule="frozen")
    fresh.load_state_dict(layer.state_dict())
    with pytest.raises(ValueError, match="the edges differ"):
        fresh(x, swapped)
    make_layer(rule="frozen", fixed_graph=False)(x, swapped)


def test_other_coordinates_are_refused():
    place = torch.randn(NUM_NODES, 3)
    saved = make_layer(coordinates=place).state_dict()
    make_layer(coordinates=place.double()).load_state_dict(saved)
    with pytest.raises(RuntimeError, match="coordinates of the saved gate"):
        make_layer(coordinates=place.flip(0)).load_state_dict(saved)
    with pytest.raises(ValueError, match="13 nodes, but there are 12 coordinates"):
        make_layer(coordinates=place[1:])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"edge_index": EDGES.float()}, r"int64, got torch\.float32; convert it by \.long"),
        ({"edge_index": EDGES.T}, r"must be \(2, M\), sources above targets, got shape \(32, 2\)"),
        ({"edge_index": EDGES + 1 + (EDGES == 11)}, r"in \[0, 12\] for 13 nodes, got 1 to 13; do they start at 1\?"),
        ({"edge_index": EDGES.tolist()}, r"edge_index must be a tensor \(2, M\), int64, got list"),
        ({"edge_index": torch.eye(13).to_sparse()}, r"sources above targets, got a sparse matrix: give its edges"),
        ({"edge_index": EDGES - 1}, r"in \[0, 12\] for 13 nodes, got -1 to"),
        ({"x": torch.randn(14, C)}, "14 nodes, no multiple of the 13"),
        ({"x": torch.randn(2, 14, C)}, "made for 13 nodes, got 14"),
        ({"x": torch.randn(13, C + 1)}, r"x must be \(N, 3\), \(B, N, 3\) or \(B \* N, 3\), got shape \(13, 4\)"),
        ({"x": torch.ones(13, C, dtype=torch.int64)}, r"must be floating, got torch\.int64"),
        ({"edge_weight": torch.ones(3)}, r"edge_weight must be \(32,\), got shape \(3,\)"),
        ({"edge_attr": torch.ones(32, 1)}, r"edge_attr must be None for edge_dim=0, got \(32, 1\)"),
        ({"x": torch.randn(2, C), "node_id": torch.tensor([1, 13])}, r"node_id must be in \[0, 12\], got 1 to 13"),
        ({"x": torch.randn(2, C), "node_id": torch.tensor([1])}, r"node_id must be \(2,\), int64"),
    ],
)
def test_bad_input(change, message):
    layer = GraphMoE.from_experts(C, X, E, num_nodes=NUM_NODES)
    with pytest.raises(ValueError, match=message):
        layer(**{"x": torch.randn(NUM_NODES, C), "edge_index": EDGES} | change)


def test_autocast_and_batches_without_samples():
    layer = GraphMoE.from_experts(C, X, E, num_nodes=NUM_NODES)
    x = torch.randn(2, NUM_NODES, C, requires_grad=True)
    expected = layer(x, EDGES)
    with torch.autocast("cpu", torch.bfloat16):
        output = layer(x, EDGES)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), expected, atol=0.02, rtol=0.02)
    output.float().sum().backward()
    assert x.grad is not None and bool(x.grad.isfinite().all())
    assert layer(x[:0], EDGES).shape == (0, NUM_NODES, E)
    assert layer(x[0, :0], EDGES[:, :0]).shape == (0, E)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_nodes": None}, "give num_nodes"),
        ({"aggregation": "max"}, "aggregation must be one of mean, sum, gcn, gcn_improved, got 'max'"),
        ({"edge_dim": -1}, "edge_dim must not be negative, got -1"),
        (
            {"num_nodes": None, "gate": smoe.TensorGate(X, E, (2, 3))},
            r"needs a gate for \(nodes,\), got one for \(2, 3\)",
        ),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"num_nodes": 3, **options}
    with pytest.raises(ValueError, match=message):
        GraphMoE.from_experts(C, X, E, **arguments)


def test_called_like_a_graph_convolution():
    edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    layer = GraphMoE(5, 6, num_nodes=4, num_candidates=3)
    assert layer(torch.randn(4, 5), edges).shape == (4, 6)
    assert (layer.gate.num_experts, layer.out_channels, layer.gate.order) == (18, 6, "families")
    assert layer.bias is not None and len(layer.bias) == 18
