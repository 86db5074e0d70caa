"""Reports on the gates of a model: on what they are and are worth, and on how they change from epoch to epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from smoe._notebook import html_table, html_text
from smoe.diagnostics._choices import (
    fixed_choices,
    fixed_gates,
    layer_certainty,
    layer_inputs,
    layers_by_gate,
    new_choices,
    region_information,
)
from smoe.diagnostics._routing_gain import Loss, RoutingGain, routing_gains
from smoe.nn._conversion_plan import evaluation_mode
from smoe.rules import Frozen

_WITHOUT_DATA = (
    "without data nothing can be said about whether the routing learned anything: ask "
    "smoe.describe(model, loss_fn, input, target)"
)


@dataclass(frozen=True)
class GateReport:
    """What is known of one gate. Numbers that were not measured are None.

    Attributes:
        layers: Names of the layers that share the gate.
        kind: Class of the gate.
        rule: Rule of the first layer.
        grid: Grid of the gate; None if it serves any.
        num_experts: X, the number of experts in the bank.
        num_selected: E, the number of experts selected at each pixel.
        num_used: Number of experts that at least one pixel selects.
        certainty: How far the selected experts are ahead of the next ones, in [0, 1]; see `routing_certainty`.
        changed: Share of the choices that were not made in the earlier report.
    """

    layers: tuple[str, ...]
    kind: str
    rule: str
    grid: tuple[int, ...] | None
    num_experts: int
    num_selected: int
    num_used: int | None
    certainty: float | None
    changed: float | None

    def __str__(self) -> str:
        names = ", ".join(name or "the model itself" for name in self.layers)
        grid = "any grid" if self.grid is None else " x ".join(map(str, self.grid))
        selected = f"{self.num_selected} of {self.num_experts} experts"
        parts = [f"{self.kind} of {names}: {grid}, {selected}, rule {self.rule}"]
        if self.num_used is not None:
            parts.append(f"{self.num_used} in use")
        if self.certainty is not None:
            parts.append(f"certainty {self.certainty:.2f}")
        if self.changed is not None:
            parts.append(f"{self.changed:.1%} changed")
        return ", ".join(parts)


@dataclass(frozen=True)
class RoutingReport:
    """What `describe` found; `str` gives a readable text.

    Attributes:
        gates: A report for each gate, in the order of the model.
        gains: Losses with each layer and with the best single convolution in its place; None if no batch was given.
        warnings: What does not work, and its remedy.
        choices: Experts that each gate selects if it does not look at its input, by the name of its first layer.
    """

    gates: tuple[GateReport, ...]
    gains: tuple[RoutingGain, ...] | None
    warnings: tuple[str, ...]
    choices: dict[str, Tensor] = field(repr=False, compare=False)

    def __str__(self) -> str:
        """A line for each gate, what each layer's routing is worth, and the warnings."""
        lines = [str(gate) for gate in self.gates] or ["the model has no SMoE layers"]
        if self.gates:
            lines += [_WITHOUT_DATA] if self.gains is None else map(str, self.gains)
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings)])

    def _repr_html_(self) -> str:
        heads = ("gate of", "kind", "grid", "experts", "rule", "in use", "certainty", "changed")
        rows = [
            (
                ", ".join(name or "the model itself" for name in gate.layers),
                gate.kind,
                "any" if gate.grid is None else " x ".join(map(str, gate.grid)),
                f"{gate.num_selected} of {gate.num_experts}",
                gate.rule,
                "" if gate.num_used is None else gate.num_used,
                "" if gate.certainty is None else f"{gate.certainty:.2f}",
                "" if gate.changed is None else f"{gate.changed:.1%}",
            )
            for gate in self.gates
        ]
        text = str(self).split("\n", len(self.gates))[len(self.gates) :] if self.gates else [str(self)]
        return (html_table(heads, rows) if rows else "") + html_text("".join(text))


def describe(
    model: nn.Module,
    loss_fn: Loss | None = None,
    input: Tensor | None = None,
    target: Tensor | None = None,
    *,
    since: RoutingReport | None = None,
) -> RoutingReport:
    """Describes the gates of a model, each shared one once.

    With a batch, each layer is compared with the best single convolution in its place (see
    `smoe.diagnostics.routing_gains`), and gates that look at their input are described too. Samples that the model was
    not trained on tell the most. The state and the mode of the model, and the gradients of its parameters, do not
    change.

    Args:
        model: Model with SMoE layers.
        loss_fn: Function of prediction and target that returns a scalar.
        input: Input of the model.
        target: Target of the loss.
        since: Earlier report on the same model, whose choices are compared with those of now.

    Example:
        >>> start = smoe.describe(model)
        >>> ...  # train
        >>> print(smoe.describe(model, loss_fn, input, target, since=start))
    """
    given = [part is not None for part in (loss_fn, input, target)]
    if any(given) != all(given):
        raise ValueError("loss_fn, input and target must be given together")
    gains, inputs = None, {}
    if loss_fn is not None and input is not None and target is not None:
        gains = tuple(routing_gains(model, loss_fn, input, target))
        inputs = layer_inputs(model, input)
    choices = fixed_choices(model)
    gates: list[GateReport] = []
    warnings: list[str] = []
    with evaluation_mode(model), torch.no_grad():
        for gate, layers in layers_by_gate(model).items():
            name, layer = next(iter(layers.items()))
            is_known = not gate.looks_at_input or name in inputs
            selected = choices[name] if name in choices else gate(inputs[name]).indices if is_known else None
            before = None if since is None else since.choices.get(name)
            changed = None
            if before is not None and name in choices:
                changed = float(new_choices(choices[name], before).mean())
                if changed == 0.0 and not isinstance(layer.rule, Frozen):
                    warnings.append(dead_gate(name, str(layer.rule)))
            gates.append(
                GateReport(
                    layers=tuple(layers),
                    kind=type(gate).__name__,
                    rule=str(layer.rule),
                    grid=gate.spatial_shape,
                    num_experts=gate.num_experts,
                    num_selected=gate.num_selected,
                    num_used=None if selected is None else selected.unique().numel(),
                    certainty=layer_certainty(layer, inputs.get(name)) if is_known else None,
                    changed=changed,
                )
            )
    warnings += useless_routing(gains or ())
    return RoutingReport(tuple(gates), gains, tuple(warnings), choices)


def dead_gate(name: str, rule: str) -> str:
    """Returns the warning about a gate none of whose choices has changed."""
    return (
        f"the gate of {name or 'the layer'} has changed none of its choices since the start: it does not learn by the "
        f"rule {rule}; train for longer or with a larger learning rate, unless this is intended"
    )


def useless_routing(gains: Sequence[RoutingGain]) -> list[str]:
    """Returns the warning about a model that is no better than with convolutions, if it is so."""
    # A large difference that samples of very different losses leave unclear is no sign of a useless routing.
    if not gains or gains[-1].is_better or not gains[-1].is_known or gains[-1].gain > 0.1:
        return []
    return [
        "the network is as good or better with single convolutions in place of its SMoE layers: train for longer, or "
        "use fewer experts or plain convolutions"
    ]


# Epochs of learning after which a gate that has changed nothing is reported.
_PATIENCE = 3


class RoutingWatch:
    """Measures the routing of a model once in each epoch.

    The choices of all gates that do not look at their input are compared with the last ones and those of the start. A
    gate that several layers share counts once. Chosen experts are compared as sets: a change of their order alone is
    not a change of choice, and is reported separately.

    Args:
        model: Model at the start.
        regions: Number of the known region of each pixel, such as land or sea; compared with the gates of this grid.
    """

    def __init__(self, model: nn.Module, regions: Tensor | None = None) -> None:
        self._regions = regions
        self._start = fixed_choices(model)
        self._last = self._start
        self._num_learning: dict[str, int] = {}
        self._new: list[str] = []

    def observe(self, model: nn.Module) -> dict[str, float]:
        """Returns shares in [0, 1]; empty for a model without such a gate.

        Returns:
            `routing/changed`: chosen experts that were not chosen at their pixel at the last call.
            `routing/changed_since_start`: chosen experts that were not chosen at their pixel at the start.
            `routing/reordered`: places of the order with another expert than at the last call.
            `routing/experts_in_use`: experts of the bank that at least one pixel has chosen.
            `routing/region_information`: see `region_information`; mean over the gates, with regions only.
            `routing/certainty`: see `routing_certainty`; mean over the gates.
        """
        if not self._start:
            return {}
        now, gates = fixed_choices(model), fixed_gates(model)
        num_choices = sum(choices.numel() for choices in now.values())
        since_start = {name: new_choices(now[name], start) for name, start in self._start.items()}
        values = {
            "routing/changed": sum(int(new_choices(now[name], self._last[name]).sum()) for name in now) / num_choices,
            "routing/changed_since_start": sum(int(changed.sum()) for changed in since_start.values()) / num_choices,
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
        certainties: list[float] = []
        with evaluation_mode(model):
            for gate, layers in layers_by_gate(model).items():
                if gate.looks_at_input:
                    continue
                name, layer = next(iter(layers.items()))
                certainties.append(layer_certainty(layer))
                if all(isinstance(each.rule, Frozen) for each in layers.values()):
                    continue
                self._num_learning[name] = self._num_learning.get(name, 0) + 1
                if not since_start[name].any() and self._num_learning[name] == _PATIENCE:
                    self._new.append(dead_gate(name, str(layer.rule)))
        return {**values, "routing/certainty": sum(certainties) / len(certainties)}

    def finish(self, gains: Sequence[RoutingGain]) -> None:
        """Warns if the routing is worth nothing after training, by the gains of the layers; empty if not known."""
        self._new += useless_routing(gains)

    def new_warnings(self) -> list[str]:
        """Returns the warnings since the last call. Each gate is warned of once in a training."""
        new, self._new = self._new, []
        return new

    def state_dict(self) -> dict[str, Any]:
        """Returns what a resumed run needs to continue."""
        return {"start": self._start, "last": self._last, "num_learning": dict(self._num_learning)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._start, self._last = state["start"], state["last"]
        self._num_learning = dict(state["num_learning"])
