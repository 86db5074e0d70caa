"""What all SMoE layers share: a gate, the order and weight of the chosen experts, and their training."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self

import torch
from torch import nn

from smoe.nn.gates.gate import GateScores, SpatialGate
from smoe.nn.grid_checks import check_positive
from smoe.nn.probed_output import probed_output
from smoe.nn.shared_gates import drop_repeated_gate, find_repeated_gate
from smoe.nn.shared_ranking import rank_for
from smoe.nn.straight_through import straight_through_output
from smoe.ops.top_experts import Routing, top_experts
from smoe.ops.train_routing import train_routing, weigh
from smoe.options import ORDERS, Order, RoutingTraining


class RoutedLayer(nn.Module, ABC):
    """A layer whose gate chooses experts at each pixel and learns inside the layer's backward.

    In training mode the error signal that reaches the layer trains the gate and is damped on its way into wrongly
    chosen experts. In evaluation mode, gradients are those of the function computed: nothing is damped.

    Args:
        gate: decides who serves which pixel. A gate given to several layers is shared by them and receives the sum of
            their gradients.
        expert_channels: F, outputs per expert.
        weighted: multiply the experts' outputs by their scores.
        order: `score`, each pixel's favourite expert first; or `index`, by expert number.
        training: how the routing learns.
    """

    probe_curvature: torch.Tensor
    num_trials: torch.Tensor

    def __init__(
        self, gate: SpatialGate, expert_channels: int, weighted: bool, order: Order, training: RoutingTraining
    ) -> None:
        super().__init__()
        check_positive(expert_channels=expert_channels)
        if order not in ORDERS:
            raise ValueError(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
        self.gate = gate
        self.expert_channels = expert_channels
        self.weighted = weighted
        self.order: Order = order
        self.routing_training = training
        # Backward passes whose error signal was not finite; the gate's gradient was zero in these. Not a buffer: each
        # process counts its own, and DistributedDataParallel would overwrite a buffer by that of process 0.
        self.num_nonfinite_errors = torch.zeros((), dtype=torch.int64)
        # What the loss was multiplied by before its backward. A plain tensor: `.half()` must not round it.
        self._loss_scale = torch.ones((), dtype=torch.float64)
        self._is_loss_tracked = False
        self._last_scores: GateScores | None = None
        if training.training_rule in ("probe", "straight_through"):
            self._start_trials(training)
        self.register_state_dict_post_hook(drop_repeated_gate)
        self.register_load_state_dict_pre_hook(find_repeated_gate)

    @property
    def num_experts(self) -> int:
        """X, experts in the bank."""
        return self.gate.num_experts

    @property
    def num_selected(self) -> int:
        """E, experts chosen at each pixel."""
        return self.gate.num_selected

    @property
    def last_scores(self) -> GateScores | None:
        """What the gate said in the last forward pass in training mode; the auxiliary losses are made of it."""
        return self._last_scores

    def routing(self, input: torch.Tensor | None = None) -> Routing:
        """What the gate decides.

        Args:
            input: `(B, C, H, W)`; needed only by a gate that looks at its input.

        Returns:
            `indices` and `weights`, `(E, H, W)`, or `(B, E, H, W)` for a gate that looks at its input.
        """
        return top_experts(self._score(input).scores, self.num_selected, self.order)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`(B, C, H, W)` to `(B, E * F, H', W')`; channels `[s * F, (s + 1) * F)` are each pixel's s-th expert."""
        gate_scores = self._score(input)
        indices = rank_for(self, gate_scores.scores)
        if self.training and torch.is_grad_enabled() and self._tries_experts():
            if self.routing_training.training_rule == "probe":
                output = probed_output(self, input, indices)
            else:
                output = straight_through_output(self, input, gate_scores.scores, indices)
            self._last_scores = gate_scores
            return output
        selected = self.apply_experts(input, indices)
        weights = gate_scores.scores.gather(-3, indices.long()) if self.weighted else None
        if not self.training:
            return selected if weights is None else weigh(selected, weights, self.expert_channels)
        if selected.dtype == torch.float16:
            self.warn_of_untracked_loss()
        self._last_scores = gate_scores
        return train_routing(
            selected,
            gate_scores.scores,
            indices,
            None if weights is None else weights.detach(),
            expert_channels=self.expert_channels,
            training=self._training_of(selected),
            loss_scale=self._loss_scale,
            num_nonfinite=self.num_nonfinite_errors,
        )

    @abstractmethod
    def apply_experts(self, input: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Outputs of the chosen experts, `(B, E * F, H', W')`."""

    def apply_challengers(
        self, input: torch.Tensor, indices: torch.Tensor, challengers: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs of the chosen experts, and of one more at each pixel: `(B, E * F, H', W')` and `(B, F, H', W')`."""
        both = self.apply_experts(input, torch.cat([indices, challengers]))
        num_chosen = self.num_selected * self.expert_channels
        return both[:, :num_chosen].contiguous(), both[:, num_chosen:].detach()

    def restart_expert(self, expert: int, source: int, generator: torch.Generator) -> None:
        """Makes an expert a slightly changed copy of another, if the layer knows where its experts are.

        Args:
            expert: to start anew.
            source: to copy.
            generator: of the change.
        """

    def _tries_experts(self) -> bool:
        rule = self.routing_training.training_rule
        if rule not in ("probe", "none") and self.gate.probing is not None:
            raise ValueError(
                f"the gate learns by probing, in another layer that shares it, but this layer's training_rule is "
                f"{rule!r}; give both the same"
            )
        return rule in ("probe", "straight_through") and self.num_selected < self.num_experts

    def _start_trials(self, training: RoutingTraining) -> None:
        rule = training.training_rule
        if self.weighted:
            raise ValueError(
                f"training_rule={rule!r} compares experts, so it cannot learn weights: leave weighted=False"
            )
        if self.order != "score":
            raise ValueError(
                f"training_rule={rule!r} lets a new expert take its predecessor's channel, which needs order='score', "
                f"got {self.order!r}"
            )
        if rule == "straight_through":
            if self.gate.looks_at_input:
                raise ValueError(
                    "training_rule='straight_through' compares one choice for all samples: it needs a gate that does "
                    f"not look at its input, got {type(self.gate).__name__}"
                )
            # Backward passes so far: they decide who is tried.
            self.register_buffer("num_trials", torch.zeros((), dtype=torch.int64))
            return
        self.gate.start_probing(training.probe_window, training.probe_confidence)
        # Numerator and denominator of the curvature of the loss.
        self.register_buffer("probe_curvature", torch.zeros(2))

    def _score(self, input: torch.Tensor | None) -> GateScores:
        if input is None or input.is_meta or not torch.is_autocast_enabled(input.device.type):
            return self.gate(input)
        # Half precision would make ties of distinct scores: the routing is decided in the gate's own, float32.
        dtype = next((parameter.dtype for parameter in self.gate.parameters()), torch.float32)
        with torch.autocast(input.device.type, enabled=False):
            return self.gate(input.to(dtype))

    def _training_of(self, selected: torch.Tensor) -> RoutingTraining:
        if self.routing_training.tolerance_unit == "data":
            return self.routing_training
        return self.routing_training.with_unit(float(selected.detach().float().square().mean().sqrt()))

    def warn_of_untracked_loss(self) -> None:
        """Says once that a layer in float16 does not know what its loss is multiplied by."""
        # In the first pass the loss does not exist yet.
        if self._last_scores is not None and not self._is_loss_tracked and not torch.compiler.is_compiling():
            self._is_loss_tracked = True
            warnings.warn(
                "an SMoE layer trains in float16 without knowing the loss scale: its gate would learn from a scaled "
                "error; wrap the loss in smoe.track_loss_scale(loss, model)",
                stacklevel=3,
            )

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self.num_nonfinite_errors = fn(self.num_nonfinite_errors)
        return self

    def __getstate__(self) -> dict[str, object]:
        # The last scores belong to a graph of the past, which can be neither copied nor pickled.
        return {**self.__dict__, "_last_scores": None}

    def extra_repr(self) -> str:
        """The numbers that `repr` shows."""
        training = self.routing_training
        text = f"expert_channels={self.expert_channels}, weighted={self.weighted}, order={self.order!r}"
        text += f", training_rule={training.training_rule!r}"
        if training.training_rule == "probe":
            return f"{text}, probe_window={training.probe_window}, probe_confidence={training.probe_confidence:g}"
        if training.training_rule == "rc":
            text += f", rc_weight={training.rc_weight:g}, error_quantile={training.error_quantile:g}"
        return f"{text}, damping={training.damping}"


def track_loss_scale(loss: torch.Tensor, model: nn.Module) -> torch.Tensor:
    """Returns `loss`, and lets the model's SMoE layers see what it is multiplied by before its backward.

    A loss scaler, or the division by the number of accumulated batches, multiplies the whole gradient. An SMoE layer
    must divide it out of the error signal and multiply its gate's gradient by it. Wrap the loss where it is made:

        loss = smoe.track_loss_scale(criterion(model(x), y), model)
        scaler.scale(loss / num_accumulated).backward()

    Not needed for a loss whose backward is called as it is.

    Args:
        loss: a scalar.
        model: the module whose layers are told.
    """
    if loss.ndim != 0:
        raise ValueError(f"loss must be a scalar, got shape {tuple(loss.shape)}")
    layers = [module for module in model.modules() if isinstance(module, RoutedLayer)]
    for layer in layers:
        if not layer._is_loss_tracked:  # an assignment to a module is slow
            layer._is_loss_tracked = True
    return _TrackLossScale.apply(loss, layers) if layers else loss  # type: ignore[return-value]


class _TrackLossScale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, loss, layers):
        ctx.layers = layers
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx, *grad_outputs):
        (scale,) = grad_outputs
        layers = ctx.layers
        for layer in layers:
            # `.data`: a compiled layer has saved this tensor for its backward, and is meant to see the new value.
            layer._loss_scale.data.copy_(scale)

        def forget_scale() -> None:
            for layer in layers:
                layer._loss_scale.data.fill_(1.0)

        # The scale is that of this backward pass: a later one may come from a loss that nobody tracks.
        torch.autograd.Variable._execution_engine.queue_callback(forget_scale)
        return scale, None
