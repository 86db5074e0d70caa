"""How far the routing of a model has moved, epoch by epoch: does the gate learn, and when does it settle?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from smoe.nn.gates import SpatialGate
from smoe.nn.routed_layer import RoutedLayer


class RoutingChanges:
    """Compares the choices of all gates that do not look at their input with those of the last look and of the start.

    A gate that several layers share counts once. Chosen experts are compared as sets: a change of their order alone is
    no change of choice, and is reported apart.

    Args:
        model: as it starts.
        regions: number of the known region that each pixel lies in, such as land or sea, `(H, W)`; gates of this grid
            are asked what their choices say of it.
    """

    def __init__(self, model: nn.Module, regions: Tensor | None = None) -> None:
        self._regions = regions
        self._start = _choices(model)
        self._last = self._start

    def observe(self, model: nn.Module) -> dict[str, float]:
        """Shares of all choices since the last look, in [0, 1]; empty for a model without such a gate.

        Returns:
            `routing/changed`: chosen experts that were not chosen at their pixel before.
            `routing/changed_since_start`: the same against the start.
            `routing/reordered`: places of the order in which another expert stands than before.
            `routing/experts_in_use`: experts of the bank that some pixel has chosen.
            `routing/region_information`: what a chosen expert tells of the region, see `region_information`; with
                regions only.
        """
        if not self._start:
            return {}
        now = _choices(model)
        values = {
            "routing/changed": _mean(_num_new(now, self._last), now),
            "routing/changed_since_start": _mean(_num_new(now, self._start), now),
            "routing/reordered": _mean(_num_moved(now, self._last), now),
            "routing/experts_in_use": _experts_in_use(model, now),
        }
        told = self._tell_regions(model, now)
        if told:
            values["routing/region_information"] = sum(told) / len(told)
        self._last = now
        return values

    def _tell_regions(self, model: nn.Module, now: dict[str, Tensor]) -> list[float]:
        if self._regions is None:
            return []
        return [
            region_information(now[name], self._regions, gate.num_experts)
            for name, (gate, _) in _gates(model).items()
            if now[name].shape[1:] == self._regions.shape
        ]

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on comparing."""
        return {"start": self._start, "last": self._last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from `state_dict`."""
        self._start, self._last = state["start"], state["last"]


def region_information(choices: Tensor, regions: Tensor, num_experts: int) -> float:
    """How much of the question in which region a pixel lies is answered by one of its experts, drawn at random.

    Their mutual information over the entropy of the regions: 0 if all experts serve all regions alike, 1 if none serves
    two of them.

    Args:
        choices: experts of each pixel `(E, H, W)`.
        regions: number of each pixel's region `(H, W)`.
        num_experts: X.
    """
    num_regions = int(regions.max()) + 1
    pairs = choices.long() * num_regions + regions.long()
    joint = torch.bincount(pairs.flatten(), minlength=num_experts * num_regions).double()
    joint = (joint / joint.sum()).view(num_experts, num_regions)
    of_regions = _entropy(joint.sum(dim=0))
    if of_regions == 0.0:
        return 0.0
    return (of_regions + _entropy(joint.sum(dim=1)) - _entropy(joint)) / of_regions


def _entropy(shares: Tensor) -> float:
    return float(torch.special.entr(shares).sum())


def _gates(model: nn.Module) -> dict[str, tuple[SpatialGate, RoutedLayer]]:
    """Each gate that does not look at its input, with the first layer that uses it."""
    found: dict[int, tuple[str, SpatialGate, RoutedLayer]] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, RoutedLayer) and not layer.gate.looks_at_input:
            found.setdefault(id(layer.gate), (name, layer.gate, layer))
    return {name: (gate, layer) for name, gate, layer in found.values()}


def _choices(model: nn.Module) -> dict[str, Tensor]:
    """The choices `(E, H, W)` of each gate without noise, small integers on the CPU, in the order of the layer."""
    was_training = {gate: gate.training for gate, _ in _gates(model).values()}
    choices: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, (gate, layer) in _gates(model).items():
            # In evaluation mode a noisy gate is without noise.
            gate.eval()
            choices[name] = layer.routing().indices.to("cpu", torch.int32)
            gate.train(was_training[gate])
    return choices


def _num_new(now: dict[str, Tensor], before: dict[str, Tensor]) -> list[int]:
    counts: list[int] = []
    for name, choice in now.items():
        # One slot after the other: a comparison of all with all would take E times the memory.
        num_kept = sum(int((before[name] == slot).any(dim=0).sum()) for slot in choice)
        counts.append(choice.numel() - num_kept)
    return counts


def _num_moved(now: dict[str, Tensor], before: dict[str, Tensor]) -> list[int]:
    return [int((choice != before[name]).sum()) for name, choice in now.items()]


def _mean(counts: list[int], choices: dict[str, Tensor]) -> float:
    return sum(counts) / sum(choice.numel() for choice in choices.values())


def _experts_in_use(model: nn.Module, choices: dict[str, Tensor]) -> float:
    num_experts = [gate.num_experts for gate, _ in _gates(model).values()]
    return sum(choice.unique().numel() for choice in choices.values()) / sum(num_experts)
