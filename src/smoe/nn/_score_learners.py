"""The rules of the paper: routing classification, end to end, a gate that does not learn; and the scale of a loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from smoe.nn._routed_layer import Learner, RoutedLayer, Step, TrainGate
from smoe.ops._classification import end_to_end_gradient, have_one_threshold, train_routing
from smoe.ops._operators import has_transforms
from smoe.ops._routing import Routing
from smoe.rules import Damping, RoutingClassification


class EndToEndLearner(Learner):
    """Gives the scores of the selected experts the error signal, times their outputs if these are weighted."""

    def output(self, step: Step) -> torch.Tensor:
        """The selected experts' outputs; in backward, the selected scores receive the error."""
        layer, routing = step.layer, step.routing
        layer.gate._refuse_own_steps(self.rule)
        selected = step.select(routing.indices)
        outputs = selected.detach() if layer._weighted else None
        return _EndToEnd.apply(
            *(step.damped(step.weighed(selected)), routing.scores, routing.indices, outputs),
            *(layer._signal.num_nonfinite, layer._expert_channels),
        )  # type: ignore[return-value]


class _EndToEnd(torch.autograd.Function):
    @staticmethod
    def forward(ctx, output, scores, indices, outputs, num_nonfinite, expert_channels):
        ctx.save_for_backward(scores, indices, outputs)
        ctx.num_nonfinite, ctx.expert_channels = num_nonfinite, expert_channels
        return output.detach()

    @staticmethod
    def backward(ctx, *grad_outputs):
        (error,) = grad_outputs
        scores, indices, outputs = ctx.saved_tensors
        # Detached: the gradient of the gate cannot be differentiated again.
        signal = (error.detach() if outputs is None else error.detach() * outputs).flatten(2)
        gradient = end_to_end_gradient(scores, indices, signal, ctx.expert_channels)
        gradient = count_nonfinite(gradient, ctx.num_nonfinite)
        return error, gradient, None, None, None, None


def count_nonfinite(gradient: torch.Tensor, num_nonfinite: torch.Tensor) -> torch.Tensor:
    """The gradient, or zeros if it is not finite, which is counted. Nothing is read on the host."""
    if gradient.numel() == 0:
        return gradient
    is_finite = gradient.isfinite().all()
    num_nonfinite += is_finite.logical_not()
    return torch.where(is_finite, gradient, torch.zeros_like(gradient))


class FrozenLearner(Learner):
    """Leaves the gate as it is.

    The parameters of a gate do not require gradients while no layer trains it. Where another layer does, or where
    several processes train the model, the scores receive zeros from this layer.
    """

    trains_scores = False

    def route(self, layer: RoutedLayer, input: torch.Tensor) -> Routing:
        """What the gate decides, without scores if nobody needs them."""
        gate = layer.gate
        needs_scores = layer._needs_scores or any(parameter.requires_grad for parameter in gate.parameters())
        return gate.route(input) if needs_scores else gate._decide(input)

    def lesson(self, step: Step) -> _FrozenLesson:
        # Damping counts them by itself.
        counter = step.layer._signal.num_nonfinite if step.layer._active_damping is None else None
        return _FrozenLesson((step.routing.scores,) if step.routing.scores.requires_grad else (), counter)

    def output(self, step: Step) -> torch.Tensor:
        output, lesson = step.damped(step.weighed(step.select(step.routing.indices))), self.lesson(step)
        return TrainGate.apply(output, step.source, lesson, *lesson.numbers)  # type: ignore[return-value]


@dataclass
class _FrozenLesson:
    numbers: tuple[torch.Tensor, ...]
    num_nonfinite: torch.Tensor | None
    needs_source: bool = False

    def learn(
        self, error: torch.Tensor, source: torch.Tensor, compared: tuple[torch.Tensor, ...], is_finite: bool | None
    ) -> list[torch.Tensor]:
        del source, compared
        if self.num_nonfinite is not None and is_finite is None:
            # A sum is finite if all its terms are, and takes less time than a look at each.
            total = error.sum(dtype=torch.promote_types(error.dtype, torch.float32))
            self.num_nonfinite.add_(total.isfinite().logical_not())
        elif self.num_nonfinite is not None and not is_finite:
            self.num_nonfinite.add_(1)
        return [torch.zeros_like(scores) for scores in self.numbers]


class RoutingClassificationLearner(Learner):
    """Gives the scores the gradient of the routing classification loss."""

    rule: RoutingClassification

    def output(self, step: Step) -> torch.Tensor:
        """The selected experts' outputs; in backward, the gate learns and the experts receive the damped error."""
        layer = step.layer
        layer.gate._refuse_own_steps(self.rule)
        selected = step.select(step.routing.indices)
        output, damping = step.weighed(selected), layer._active_damping
        if layer._weighted:
            # As in the released code, the error of a weighted choice is the error signal times its expert's output,
            # which a term of value zero receives as its gradient.
            outputs = selected.detach()
            return step.damped(output) + outputs * (self._train(step, outputs, None) - outputs)
        if damping is not None and not have_one_threshold(self.rule, damping):
            # Two thresholds take two passes; the gate is to see the whole error, so the damping comes last in backward.
            output, damping = step.damped(output), None
        return self._train(step, output, damping)

    def _train(self, step: Step, output: torch.Tensor, damping: Damping | None) -> torch.Tensor:
        return train_routing(
            *(output, step.routing),
            expert_channels=step.layer._expert_channels,
            signal=step.layer._signal,
            rule=self.rule,
            damping=damping,
        )


def track_loss_scale(loss: torch.Tensor, model: nn.Module) -> torch.Tensor:
    """Returns `loss`, and lets the model's SMoE layers see what it is multiplied by before its backward.

    A loss scaler, or the division by the number of accumulated batches, multiplies the whole gradient. An SMoE layer
    must divide it out of the error signal and multiply its gate's gradient by it. Wrap the loss where it is made:

        loss = smoe.nn.track_loss_scale(criterion(model(x), y), model)
        scaler.scale(loss / num_accumulated).backward()

    Not needed for a loss whose backward is called as it is.

    Args:
        loss: A scalar.
        model: Module that holds the layers.
    """
    if loss.ndim != 0:
        raise ValueError(f"loss must be a scalar, got shape {tuple(loss.shape)}")
    if has_transforms():
        raise RuntimeError(
            "track_loss_scale works in backward passes, not under torch.func: differentiate the loss as it is, and "
            "scale the gradients"
        )
    layers = [module for module in model.modules() if isinstance(module, RoutedLayer)]
    for layer in layers:
        layer._notice_tracked_loss()
    return _TrackLossScale.apply(loss, [layer._signal for layer in layers]) if layers else loss  # type: ignore[return-value]


class _TrackLossScale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, loss, signals):
        ctx.signals = signals
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx, *grad_outputs):
        (scale,) = grad_outputs
        signals = ctx.signals
        for signal in signals:
            signal.set_loss_scale(scale)

        def forget_scale() -> None:
            for signal in signals:
                signal.set_loss_scale(1.0)

        # The scale is that of this backward pass: a later one may come from a loss that is not tracked.
        torch.autograd.Variable._execution_engine.queue_callback(forget_scale)
        return scale, None
