"""A report on the gates of a model: how certain they are, what changed, and what the routing is worth."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from smoe.diagnostics import routing_messages
from smoe.diagnostics.certainty import layer_certainty
from smoe.diagnostics.damped_share import damped_shares
from smoe.diagnostics.evaluation_mode import evaluation_mode
from smoe.diagnostics.gates import fixed_choices, layers_by_gate
from smoe.diagnostics.layer_inputs import layer_inputs
from smoe.diagnostics.routing_changes import new_choices
from smoe.diagnostics.routing_gain import Loss, RoutingGain, routing_gain
from smoe.rules import Frozen


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
        damped: Share of the errors that are damped; the largest of the layers.
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
    damped: float | None

    def __str__(self) -> str:
        """One line."""
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
        if self.damped is not None:
            parts.append(f"{self.damped:.0%} of the errors damped")
        return ", ".join(parts)


@dataclass(frozen=True)
class RoutingReport:
    """What `describe` found; `str` gives a readable text.

    Attributes:
        gates: A report for each gate, in the order of the model.
        gain: Losses with the routing and without it; None if no batch was given.
        warnings: What does not work, and its remedy.
        choices: Experts that each gate selects if it does not look at its input, by the name of its first layer.
    """

    gates: tuple[GateReport, ...]
    gain: RoutingGain | None
    warnings: tuple[str, ...]
    choices: dict[str, Tensor] = field(repr=False, compare=False)

    def __str__(self) -> str:
        """A line for each gate, the gain of the routing, and the warnings."""
        lines = [str(gate) for gate in self.gates] or ["the model has no SMoE layers"]
        if self.gain is not None and self.gates:
            lines.append(
                f"the routing removes {self.gain.gain:.1%} of the loss: {self.gain.loss:.4g} with it, "
                f"{self.gain.loss_of_commonest:.4g} with every pixel on its commonest expert"
            )
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings)])


def describe(
    model: nn.Module,
    loss_fn: Loss | None = None,
    input: Tensor | None = None,
    target: Tensor | None = None,
    *,
    since: RoutingReport | None = None,
) -> RoutingReport:
    """Describes the gates of a model, each shared one once.

    With a batch, the gain of the routing and the share of damped errors are measured, and gates that look at their
    input are described too. The state and the mode of the model, and the gradients of its parameters, do not change.

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
    gain, damped, inputs = None, {}, {}
    if loss_fn is not None and input is not None and target is not None:
        gain = routing_gain(model, loss_fn, input, target)
        damped = damped_shares(model, loss_fn, input, target)
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
                    warnings.append(routing_messages.dead_gate(name, str(layer.rule)))
            shares = {layer_name: damped[layer_name] for layer_name in layers if layer_name in damped}
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
                    damped=max(shares.values(), default=None),
                )
            )
            for layer_name, share in shares.items():
                if share > routing_messages.DAMPED_TOO_MUCH:
                    warnings.append(routing_messages.damped_too_much(layer_name, share))
    if gain is not None and gates and gain.gain < routing_messages.WORTHLESS:
        warnings.append(routing_messages.worthless_routing(gain.gain))
    return RoutingReport(tuple(gates), gain, tuple(warnings), choices)
