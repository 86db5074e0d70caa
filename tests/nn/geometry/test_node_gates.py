"""Gates of nodes: priors, and the transfer of a gate to other nodes."""

from __future__ import annotations

import pytest
import torch

import smoe
from smoe.nn._gates import FactorisedGate
from smoe.nn._graph_layer import GraphMoE
from smoe.nn._grids import transfer_gate
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
@pytest.mark.parametrize("mode", ["nearest", "inverse_distance"])
def test_transfer_to_another_order_and_back(monkeypatch, mode, has_scipy):
    if not has_scipy:
        monkeypatch.setitem(__import__("sys").modules, "scipy.spatial", None)
    place = torch.randn(40, 3)
    order = torch.randperm(40)
    for gate in (smoe.TensorGate(5, 2, (40,)), FactorisedGate(5, 2, (40,)), smoe.FixedGate(torch.randn(5, 40), 2)):
        moved = transfer_gate(gate, place, place[order], mode=mode)
        torch.testing.assert_close(moved.forward().scores, gate.forward().scores[:, :, order])
        assert (moved.forward().indices == gate.forward().indices[:, :, order]).all()


def test_transfer_of_the_mean_by_hand():
    gate = smoe.FixedGate(torch.tensor([[0.0, 8.0, 100.0]]), 1)
    # At 1 of 0 to 4: weights 1 / 1 and 1 / 3, so the mean is 8 / 4.
    moved = transfer_gate(
        gate, torch.tensor([[0.0], [4.0], [50.0]]), torch.tensor([[1.0]]), mode="inverse_distance", num_neighbours=2
    )
    assert moved.forward().scores.item() == pytest.approx(2.0)


def test_transfer_between_grids():
    rows, columns = torch.meshgrid(torch.arange(4.0), torch.arange(6.0), indexing="ij")
    old = torch.stack([rows, columns], dim=-1)
    gate = smoe.TensorGate(3, 1, (4, 6))
    fine = (torch.stack(torch.meshgrid(torch.arange(8.0), torch.arange(12.0), indexing="ij"), dim=-1) - 0.5) / 2
    moved = transfer_gate(gate, old, fine)
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


def test_transfer_refuses():
    gate = smoe.TensorGate(3, 1, (4,))
    with pytest.raises(ValueError, match=r"made for \(4,\), but old_coordinates are of \(5, 2\)"):
        transfer_gate(gate, torch.zeros(5, 2), torch.zeros(3, 2))
    with pytest.raises(ValueError, match="as many components, got 2 and 3"):
        transfer_gate(gate, torch.zeros(4, 2), torch.zeros(3, 3))
    with pytest.raises(ValueError, match="new_coordinates must be finite, got 1 values"):
        transfer_gate(gate, torch.zeros(4, 1), torch.tensor([[torch.nan]]))
    with pytest.raises(ValueError, match="mode must be one of nearest, inverse_distance, got 'linear'"):
        transfer_gate(gate, torch.zeros(4, 1), torch.zeros(4, 1), mode="linear")  # type: ignore[arg-type]


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
