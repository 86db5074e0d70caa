"""Reports on the gates of a model: what they are, what they are worth, and what has changed."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from smoe._notebook import html_table, html_text
from smoe.diagnostics._choices import (
    dead_gate,
    fixed_choices,
    layer_certainty,
    layer_inputs,
    layers_by_gate,
    new_choices,
    useless_routing,
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
        if all(gate.changed is None for gate in self.gates):
            heads, rows = heads[:-1], [row[:-1] for row in rows]
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
