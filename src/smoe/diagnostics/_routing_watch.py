"""Watches the routing of a model through a training: numbers for each epoch, and warnings when it does not learn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from smoe.diagnostics._choices import new_choices, region_information
from smoe.diagnostics._describe import DAMPED_TOO_MUCH, damped_too_much, dead_gate, useless_routing
from smoe.diagnostics._gates import evaluation_mode, fixed_choices, fixed_gates, layer_certainty, layers_by_gate
from smoe.diagnostics._routing_gain import Loss, RoutingGain, damped_shares
from smoe.rules import Frozen

# Epochs of learning after which a gate that has changed nothing, or a damping that is still strong, is reported.
_PATIENCE = 3


class RoutingChanges:
    """Compares the choices of all gates that do not look at their input with the last ones and those of the start.

    A gate that several layers share counts once. Chosen experts are compared as sets: a change of their order alone is
    not a change of choice, and is reported separately.

    Args:
        model: Model at the start.
        regions: Number of the known region of each pixel, such as land or sea; compared with the gates of this grid.
    """

    def __init__(self, model: nn.Module, regions: Tensor | None = None) -> None:
        self._regions = regions
        self._start = fixed_choices(model)
        self._last = self._start

    @property
    def changed_since_start(self) -> dict[str, float]:
        """Share of the choices that each gate had not made at the start, at the last call, by its first layer."""
        return {name: float(new_choices(self._last[name], start).mean()) for name, start in self._start.items()}

    def observe(self, model: nn.Module) -> dict[str, float]:
        """Returns shares of all choices, in [0, 1]; empty for a model without such a gate.

        Returns:
            `routing/changed`: chosen experts that were not chosen at their pixel at the last call.
            `routing/changed_since_start`: chosen experts that were not chosen at their pixel at the start.
            `routing/reordered`: places of the order with another expert than at the last call.
            `routing/experts_in_use`: experts of the bank that at least one pixel has chosen.
            `routing/region_information`: see `region_information`; mean over the gates, with regions only.
        """
        if not self._start:
            return {}
        now, gates = fixed_choices(model), fixed_gates(model)
        num_choices = sum(choices.numel() for choices in now.values())
        values = {
            "routing/changed": self._num_new(now, self._last) / num_choices,
            "routing/changed_since_start": self._num_new(now, self._start) / num_choices,
            "routing/reordered": sum(int((now[name] != self._last[name]).sum()) for name in now) / num_choices,
            "routing/experts_in_use": sum(choices.unique().numel() for choices in now.values())
            / sum(gate.num_experts for gate in gates.values()),
        }
        if self._regions is not None:
            found = [
                region_information(now[name], self._regions, gate.num_experts)
                for name, gate in gates.items()
                if now[name].shape[1:] == self._regions.shape
            ]
            if found:
                values["routing/region_information"] = sum(found) / len(found)
        self._last = now
        return values

    @staticmethod
    def _num_new(now: dict[str, Tensor], before: dict[str, Tensor]) -> int:
        return sum(int(new_choices(now[name], before[name]).sum()) for name in now)

    def state_dict(self) -> dict[str, Any]:
        """Returns what a resumed run needs to continue the comparison."""
        return {"start": self._start, "last": self._last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a `state_dict`."""
        self._start, self._last = state["start"], state["last"]


class RoutingWatch:
    """Measures the routing of a model once in each epoch.

    Args:
        model: Model at the start.
        regions: Number of the known region of each pixel, such as land or sea; compared with the gates of this grid.
    """

    def __init__(self, model: nn.Module, regions: Tensor | None = None) -> None:
        self._changes = RoutingChanges(model, regions)
        self._num_learning: dict[str, int] = {}
        self._num_observed = 0
        self._warned: list[str] = []
        self._new: list[str] = []

    def observe(self, model: nn.Module) -> dict[str, float]:
        """Returns the values of `RoutingChanges`, and how certain the gates are.

        Returns:
            `routing/certainty`: mean over the gates that do not look at their input; see `routing_certainty`.
        """
        values = self._changes.observe(model)
        if not values:
            return {}
        self._num_observed += 1
        certainties: list[float] = []
        changed = self._changes.changed_since_start
        with evaluation_mode(model):
            for gate, layers in layers_by_gate(model).items():
                if gate.looks_at_input:
                    continue
                name, layer = next(iter(layers.items()))
                certainties.append(layer_certainty(layer))
                if all(isinstance(each.rule, Frozen) for each in layers.values()):
                    continue
                self._num_learning[name] = self._num_learning.get(name, 0) + 1
                if changed[name] == 0.0 and self._num_learning[name] >= _PATIENCE:
                    self._warn(f"dead {name}", dead_gate(name, str(layer.rule)))
        return {**values, "routing/certainty": sum(certainties) / len(certainties)}

    def measure(self, model: nn.Module, loss_fn: Loss, input: Tensor, target: Tensor) -> dict[str, float]:
        """Returns what the damping does on a batch; empty where no layer damps. The model does not change.

        Returns:
            `routing/damped`: share of the errors that are damped, mean over the layers that damp.
        """
        shares = damped_shares(model, loss_fn, input, target)
        for name, share in shares.items():
            if share > DAMPED_TOO_MUCH and self._num_observed >= _PATIENCE:
                self._warn(f"damped {name}", damped_too_much(name, share))
        return {"routing/damped": sum(shares.values()) / len(shares)} if shares else {}

    def finish(self, gains: Sequence[RoutingGain]) -> None:
        """Warns if the routing is worth nothing after training.

        Args:
            gains: What the routing of each layer is worth; empty if it is not known.
        """
        # Not once in a training: a run that is extended ends again.
        self._new += useless_routing(gains)

    def new_warnings(self) -> list[str]:
        """Returns the warnings since the last call. Each gate and layer is warned of once in a training."""
        new, self._new = self._new, []
        return new

    def _warn(self, key: str, text: str) -> None:
        if key not in self._warned:
            self._warned.append(key)
            self._new.append(text)

    def state_dict(self) -> dict[str, Any]:
        """Returns what a resumed run needs to continue."""
        return {
            "changes": self._changes.state_dict(),
            "num_learning": dict(self._num_learning),
            "num_observed": self._num_observed,
            "warned": list(self._warned),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a `state_dict`."""
        self._changes.load_state_dict(state["changes"])
        self._num_learning = dict(state["num_learning"])
        self._num_observed = state["num_observed"]
        self._warned = list(state["warned"])
