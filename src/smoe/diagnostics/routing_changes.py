"""How far the routing of a model has moved, epoch by epoch: whether the gate learns, and when it settles."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn

from smoe.diagnostics.choices import Choices, as_array
from smoe.diagnostics.gates import fixed_choices, fixed_gates
from smoe.diagnostics.regions import region_information


def new_choices(routing: Choices, before: Choices) -> np.ndarray:
    """Returns whether each chosen expert was not among the experts of its pixel before, bool, `(E, ...)`.

    Args:
        routing: Experts chosen at each pixel, `(E, ...)`.
        before: Experts chosen before, of the same shape.
    """
    now, then = as_array(routing), as_array(before)
    if now.shape != then.shape:
        raise ValueError(f"routings of different shapes cannot be compared: {now.shape} and {then.shape}")
    # One slot after the other: a comparison of all with all would take E times the memory.
    return np.stack([(then != slot).all(axis=0) for slot in now])


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
