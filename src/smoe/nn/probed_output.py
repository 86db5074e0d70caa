"""A layer's output in training, when its gate learns by probing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist

from smoe.nn.gates.tensor import TensorGate
from smoe.nn.probing import Probing
from smoe.ops.probe_routing import Disturbance, Observation, at_slots, disturb, draw_disturbance, observe

if TYPE_CHECKING:
    from smoe.nn.routed_layer import RoutedLayer

# Share of the past that a measurement leaves in the curvature: some fifty measurements count.
_CURVATURE_DECAY = 0.98


def _probed_output(layer: RoutedLayer, input: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """The selected experts' outputs; in backward, the layer's gate learns what the challengers would have done.

    In the one pass of each window that measures the curvature, the outputs of a few pixels are disturbed, and the
    experts do not learn from these pixels.

    Args:
        layer: whose gate probes.
        input: `(B, C, H, W)`.
        indices: selected experts `(E, H', W')`.

    Returns:
        `(B, E * F, H', W')`.
    """
    gate, probing = _probing_gate(layer)
    challenge = probing.challenge(gate.scores, indices)
    selected, others = layer.apply_challengers(input, indices, challenge.experts)
    if selected.dtype == torch.float16:
        layer.warn_of_untracked_loss()
    return _ProbedOutput.apply(selected, others, challenge.slots, layer)  # type: ignore[return-value]


# What it does depends on counters and reaches the gate from within backward: compilers leave it as it is.
probed_output = cast(
    "Callable[[RoutedLayer, torch.Tensor, torch.Tensor], torch.Tensor]", torch.compiler.disable(_probed_output)
)


def _probing_gate(layer: RoutedLayer) -> tuple[TensorGate, Probing]:
    gate = layer.gate
    assert isinstance(gate, TensorGate)
    assert gate.probing is not None
    return gate, gate.probing


class _ProbedOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, selected, others, slots, layer):
        _, probing = _probing_gate(layer)
        output = selected.detach()
        difference = others - at_slots(output, slots, layer.expert_channels)
        disturbance = None
        if probing.num_passes == 0:
            disturbance = draw_disturbance(len(selected), slots.numel(), probing.num_windows, selected.device)
            disturb(output, difference, slots, disturbance)
        ctx.save_for_backward(difference, slots)
        ctx.layer, ctx.disturbance = layer, disturbance
        return output

    @staticmethod
    def backward(ctx, *grad_outputs):
        (error,) = grad_outputs
        if torch.is_grad_enabled():
            raise RuntimeError("probing has no derivative: it is a training rule, not a gradient")
        difference, slots = ctx.saved_tensors
        layer, disturbance = ctx.layer, ctx.disturbance
        gate, probing = _probing_gate(layer)
        _learn(layer, error, difference, slots, disturbance)
        # A window ends when all layers that share the gate have seen this pass.
        torch.autograd.Variable._execution_engine.queue_callback(lambda: probing.end_pass(gate.scores))
        if disturbance is not None:
            error = error.clone(memory_format=torch.contiguous_format)
            error.flatten(2)[:, :, disturbance.pixels] = 0.0
        return error, None, None, None


def _learn(
    layer: RoutedLayer,
    error: torch.Tensor,
    difference: torch.Tensor,
    slots: torch.Tensor,
    disturbance: Disturbance | None,
) -> None:
    # An empty batch takes part too: the other processes wait for it.
    _, probing = _probing_gate(layer)
    scale = float(layer._loss_scale)
    seen = observe(error, difference, slots, disturbance, scale)
    # Once in a window is enough to know who carries the most error.
    is_last = probing.num_passes == probing.window - 1
    costs = _costs(error, probing, layer.expert_channels) / scale**2 if is_last else None
    everything = torch.cat([part.flatten() for part in (*seen, *(() if costs is None else (costs,)))])
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        # As DistributedDataParallel does with gradients: every process decides by what all have seen.
        dist.all_reduce(everything)
    if not everything.isfinite().all():
        layer.num_nonfinite_errors += 1
        return
    sizes = [part.numel() for part in seen]
    parts = everything.split([*sizes, everything.numel() - sum(sizes)])
    seen = Observation(*(part.view_as(like) for part, like in zip(parts, seen, strict=False)))
    if disturbance is not None:
        layer.probe_curvature.mul_(_CURVATURE_DECAY).add_(seen.curvature)
    rise, size = layer.probe_curvature.tolist()
    # A negative one would favour whoever differs most: without a bottom to it, the loss is taken as straight.
    curvature = max(rise / size, 0.0) if size > 0.0 else 0.0
    probing.add(layer, seen, None if costs is None else parts[-1], curvature)


def _costs(error: torch.Tensor, probing: Probing, expert_channels: int) -> torch.Tensor:
    """The squared error of each expert's pixels, `(X,)`."""
    by_slot = error.float().square().sum(dim=0).unflatten(0, (-1, expert_channels)).sum(dim=1)
    costs = by_slot.new_zeros(probing.num_experts)
    return costs.scatter_add_(0, probing.indices.long().flatten(), by_slot.flatten())
