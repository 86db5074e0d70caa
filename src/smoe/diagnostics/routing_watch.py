"""Watches the routing of a model through a training: numbers for each epoch, and warnings when it does not learn."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from smoe.diagnostics import routing_messages
from smoe.diagnostics.certainty import layer_certainty
from smoe.diagnostics.damped_share import damped_shares
from smoe.diagnostics.evaluation_mode import evaluation_mode
from smoe.diagnostics.gates import layers_by_gate
from smoe.diagnostics.routing_changes import RoutingChanges
from smoe.diagnostics.routing_gain import Loss, routing_gain
from smoe.rules import Frozen

# Epochs of learning after which a gate that has changed nothing, or a damping that is still strong, is reported.
_PATIENCE = 3


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
                    self._warn(f"dead {name}", routing_messages.dead_gate(name, str(layer.rule)))
        return {**values, "routing/certainty": sum(certainties) / len(certainties)}

    def measure(self, model: nn.Module, loss_fn: Loss, input: Tensor, target: Tensor) -> dict[str, float]:
        """Returns what the routing does on a batch; empty where no gate has a choice. The model does not change.

        Returns:
            `routing/loss`: loss with the routing.
            `routing/loss_of_commonest`: loss with every pixel on the commonest expert of each slot.
            `routing/damped`: share of the errors that are damped, mean over the layers that damp; only if one does.
        """
        if all(gate.num_experts == 1 for gate in layers_by_gate(model)):
            return {}
        losses = routing_gain(model, loss_fn, input, target)
        values = {"routing/loss": losses.loss, "routing/loss_of_commonest": losses.loss_of_commonest}
        shares = damped_shares(model, loss_fn, input, target)
        for name, share in shares.items():
            if share > routing_messages.DAMPED_TOO_MUCH and self._num_observed >= _PATIENCE:
                self._warn(f"damped {name}", routing_messages.damped_too_much(name, share))
        if shares:
            values["routing/damped"] = sum(shares.values()) / len(shares)
        return values

    def finish(self, gain: float | None) -> None:
        """Warns if the routing is worth nothing after training.

        Args:
            gain: Share of the loss that the routing removes; None or NaN if it is not known.
        """
        if gain is not None and gain < routing_messages.WORTHLESS:
            # Not once in a training: a run that is extended ends again.
            self._new.append(routing_messages.worthless_routing(gain))

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
