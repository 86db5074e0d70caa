"""Probing: a gate learns by trying, at every pixel, experts that are not selected.

The routing classification loss shows that a choice was wrong, but not which one would have been right. Probing
evaluates one more expert at every pixel, the challenger, and estimates from the error signal what it would have done to
the loss (`smoe.ops._probing`). After a window of backward passes, each pixel exchanges the selected expert for the
challenger if that lowers the loss, and meets the next challenger. No quantile, no tolerance, no damping: only signs and
ratios decide, so the unit of the data has no effect.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from smoe.nn._gate import SpatialGate
from smoe.nn._gates import TensorGate
from smoe.nn._learner import Learner, Step
from smoe.nn._shared_parameters import Memory, change_parameter, is_sharded
from smoe.ops._probing import (
    Challenge,
    Disturbance,
    Observation,
    at_slots,
    disturb,
    draw_challenge,
    draw_disturbance,
    exchange_scores,
    observe,
)
from smoe.ops._routing import Routing
from smoe.rules import Probing

if TYPE_CHECKING:
    from smoe.nn._routed_layer import RoutedLayer

# An expert that serves less than this share of what an equal division would give it starts anew.
_DEAD_SHARE = 0.03
# Windows between two restarts, at least: the last restarted expert needs the time to find its pixels.
_RESTART_WINDOWS = 16
# Share of the past that a window leaves in the experts' costs.
_COST_DECAY = 0.9
# Share of the past that a measurement leaves in the curvature: some fifty measurements count.
_CURVATURE_DECAY = 0.98


class ProbingLearner(Learner):
    """Lets the pixels of a layer try one more expert; what all layers of a gate see is added up in the gate's memory.

    In the one pass of each window that measures the curvature, the outputs of a few pixels are disturbed, and the
    experts do not learn from these pixels.
    """

    trains_scores = False

    rule: Probing
    curvature: torch.Tensor

    def __init__(self, rule: Probing, layer: RoutedLayer) -> None:
        super().__init__(rule, layer)
        gate = layer.gate
        if layer._weighted:
            raise ValueError(
                f"the rule {rule.name!r} compares experts, so it cannot learn weights: leave weighted=False"
            )
        if gate.order != "score":
            raise ValueError(
                f"the rule {rule.name!r} gives a new expert its predecessor's channel, which needs order='score', got "
                f"{gate.order!r}"
            )
        if not isinstance(gate, TensorGate):
            raise ValueError(
                f"the rule {rule.name!r} learns one choice for each pixel: it needs a TensorGate, got "
                f"{type(gate).__name__}"
            )
        # Numerator and denominator of the curvature of the loss.
        self.register_buffer("curvature", torch.zeros(2, device=layer._signal.num_nonfinite.device))

    def make_memory(self, gate: SpatialGate) -> ProbingMemory:
        """Makes the memory of the gate."""
        assert isinstance(gate, TensorGate)
        return ProbingMemory(self.rule, gate.num_experts, gate.scores[0].numel(), gate.scores.device)

    @torch.compiler.disable  # what it does depends on counters, and it changes the gate from within backward
    def output(self, step: Step) -> torch.Tensor:  # type: ignore[override]
        """The selected experts' outputs; in backward, the gate learns what the challengers would have done."""
        layer, routing = step.layer, step.routing
        gate = layer.gate
        if gate.num_selected == gate.num_experts:
            return step.select(routing.indices)
        assert isinstance(gate, TensorGate)
        memory = gate.memory_of(self)
        assert isinstance(memory, ProbingMemory)
        challenge = memory.challenge(gate, routing)
        if step.source.device.type == "cpu":
            selected = step.select(routing.indices)
            with torch.no_grad():
                others = step.select(challenge.experts)
        else:  # all experts may be computed to select some: once
            together = step.select(torch.cat((routing.indices, challenge.experts), dim=1))
            num_selected = gate.num_selected * layer._expert_channels
            selected, others = together[:, :num_selected], together[:, num_selected:].detach()
        return _ProbedOutput.apply(step.damped(selected), others, challenge.slots, self, memory, layer)  # type: ignore[return-value]

    def learn(
        self,
        memory: ProbingMemory,
        layer: RoutedLayer,
        error: torch.Tensor,
        difference: torch.Tensor,
        slots: torch.Tensor,
        disturbance: Disturbance | None,
    ) -> None:
        """Adds what follows from one backward pass for the challenge to the gate's memory.

        Args:
            memory: Memory of the gate.
            layer: The layer.
            error: Error signal `(B, E * F, P)`.
            difference: Challenger's minus incumbent's output, `(B, F, P)`.
            slots: Slots of the incumbents, `(P,)`.
            disturbance: Disturbance of the output, if any.
        """
        # An empty batch takes part too: the other processes wait for it.
        seen = observe(error, difference, slots, disturbance, layer._signal.loss_scale)
        # Once in a window is enough to find the experts that carry the most error.
        parts = [*seen]
        if memory.is_last_pass:
            parts.append(memory.costs_of(error, layer._expert_channels) / layer._signal.loss_scale**2)
        everything = torch.cat([part.flatten() for part in parts])
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            # As DistributedDataParallel does with gradients: every process decides by what all have seen.
            dist.all_reduce(everything)
        is_finite = everything.isfinite().all()
        layer._signal.num_nonfinite.add_(is_finite.logical_not())
        everything = torch.where(is_finite, everything, torch.zeros_like(everything))
        found = [
            part.view_as(like)
            for part, like in zip(everything.split([part.numel() for part in parts]), parts, strict=True)
        ]
        seen = Observation(*found[:4])
        if disturbance is not None:
            measured = self.curvature * _CURVATURE_DECAY + seen.curvature
            self.curvature.copy_(torch.where(is_finite, measured, self.curvature))
        rise, size = self.curvature
        # A negative one would favour whoever differs most: without a bottom to it, the loss is taken as straight.
        curvature = torch.where(size > 0.0, rise / size, 0.0).clamp(min=0.0)
        memory.add(layer._restart_experts, seen, found[4] if len(found) > 4 else None, curvature)


class _ProbedOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, selected, others, slots, learner, memory, layer):
        output = selected.detach()
        difference = others.flatten(2) - at_slots(output.flatten(2), slots, layer._expert_channels)
        disturbance = None
        if memory.counters["num_passes"] == 0:
            disturbance = draw_disturbance(len(selected), len(slots), memory.counters["num_windows"], selected.device)
            output = output.contiguous()
            disturb(output.flatten(2), difference, slots, disturbance)
        ctx.save_for_backward(difference, slots)
        ctx.learner, ctx.memory, ctx.layer, ctx.disturbance = learner, memory, layer, disturbance
        return output

    @staticmethod
    def backward(ctx, *grad_outputs):
        (error,) = grad_outputs
        difference, slots = ctx.saved_tensors
        memory, layer, disturbance = ctx.memory, ctx.layer, ctx.disturbance
        # Derivatives that a loss is made of (`create_graph`) are no errors of a prediction: nothing is learned of them.
        if not torch.is_grad_enabled():
            ctx.learner.learn(memory, layer, error.flatten(2), difference, slots, disturbance)
            # A window ends when all layers that share the gate have seen this pass.
            torch.autograd.Variable._execution_engine.queue_callback(lambda: memory.end_pass(layer.gate))
        if disturbance is not None:
            error = error.clone(memory_format=torch.contiguous_format)
            error.flatten(2)[:, :, disturbance.pixels] = 0.0
        return error, None, None, None, None, None


class ProbingMemory(Memory):
    """What probing remembers for a gate: layers that share the gate share the trial and add up what they see.

    A checkpoint taken at any step resumes exactly. Several processes add up what they see in each backward pass and so
    decide alike.

    Args:
        rule: Window and confidence.
        num_experts: X.
        num_pixels: P.
        device: Device of the buffers.
    """

    rule: Probing
    evidence: torch.Tensor
    squares: torch.Tensor
    costs: torch.Tensor
    until_restart: torch.Tensor
    num_restarts: torch.Tensor

    def __init__(
        self, rule: Probing, num_experts: int, num_pixels: int, device: torch.device | str | None = None
    ) -> None:
        # Decisions so far, and backward passes in this window.
        super().__init__("num_windows", "num_passes")
        self.rule = rule
        self.num_experts = num_experts
        # The estimated change of the loss by each pixel's exchange, and the squares that show how uncertain it is.
        self.register_buffer("evidence", torch.zeros(num_pixels, device=device))
        self.register_buffer("squares", torch.zeros(num_pixels, device=device))
        # How much error each expert's pixels carry.
        self.register_buffer("costs", torch.zeros(num_experts, device=device))
        # Windows until an expert may restart, and the number of restarts.
        self.register_buffer("until_restart", torch.zeros((), dtype=torch.int64, device=device))
        self.register_buffer("num_restarts", torch.zeros((), dtype=torch.int64, device=device))
        self._challenge: Challenge | None = None
        # The experts selected in this window.
        self._indices = torch.empty(0)
        self._decided_by: tuple[int, int] | None = None
        self._banks: list[weakref.WeakMethod[Any]] = []

    @property
    def is_last_pass(self) -> bool:
        """Whether the pixels decide after this backward pass."""
        return self.counters["num_passes"] >= self.rule.window - 1

    def on_grid_of(self, num_pixels: int) -> ProbingMemory:
        """A new memory for a gate of another size: what was seen is no field of the new grid."""
        return ProbingMemory(self.rule, self.num_experts, num_pixels, self.evidence.device)

    def start_from(self, counters: dict[str, int]) -> None:
        """Sets the counters; a challenge that was drawn before belongs to another state."""
        super().start_from(counters)
        self._challenge = None

    def challenge(self, gate: TensorGate, routing: Routing) -> Challenge:
        """Challengers and incumbents of this window.

        Args:
            gate: The gate.
            routing: Experts that it selects.
        """
        # The memory of a sharded parameter is another in each pass.
        decided_by = (0 if is_sharded(gate) else gate.scores.data_ptr(), gate.scores._version)
        if self._challenge is not None and decided_by != self._decided_by:
            # The scores were changed from outside: what was seen so far is about another choice.
            self.evidence.zero_()
            self.squares.zero_()
            self._challenge = None
        if self._challenge is None:
            self._challenge = draw_challenge(routing.indices, self.num_experts, self.counters["num_windows"])
            self._indices, self._decided_by = routing.indices, decided_by
        return self._challenge

    def costs_of(self, error: torch.Tensor, expert_channels: int) -> torch.Tensor:
        """The squared error of each expert's pixels, `(X,)`, from an error signal `(B, E * F, P)`."""
        by_slot = error.float().square().sum(dim=0).unflatten(0, (-1, expert_channels)).sum(dim=1)
        costs = by_slot.new_zeros(self.num_experts)
        return costs.scatter_add_(0, self._indices.long().flatten(), by_slot.flatten())

    def add(self, restart_experts: Any, seen: Observation, costs: torch.Tensor | None, curvature: torch.Tensor) -> None:
        """Adds what one layer saw in one backward pass.

        Args:
            restart_experts: Method of the layer that restarts experts of its bank.
            seen: What all processes saw.
            costs: Cost of each expert `(X,)`, in the last pass of a window.
            curvature: Curvature of the loss along the layer's differences.
        """
        self.evidence += seen.slopes + 0.5 * curvature * seen.sizes
        self.squares += seen.squares
        if costs is not None:
            self.costs += costs
        self._banks.append(weakref.WeakMethod(restart_experts))

    @torch.no_grad()
    def end_pass(self, gate: TensorGate) -> None:
        """Ends the window if it is time; called when a backward pass is complete, once for each layer.

        Args:
            gate: The gate; its scores are changed in place where pixels decide for another expert.
        """
        if not self._banks:
            return
        banks = {reference: reference() for reference in self._banks}
        self._banks = []
        self.counters["num_passes"] += 1
        if self.counters["num_passes"] < self.rule.window or self._challenge is None:
            return
        is_better = self.evidence < -self.rule.confidence * self.squares.sqrt()
        challenge = self._challenge
        change_parameter(
            gate,
            "scores",
            lambda scores: exchange_scores(scores.view(self.num_experts, -1), self._indices, challenge, is_better),
        )
        self._restart_dead_expert(challenge, is_better, [bank for bank in banks.values() if bank is not None])
        self.evidence.zero_()
        self.squares.zero_()
        self.costs *= _COST_DECAY
        self.counters["num_windows"] += 1
        self.counters["num_passes"] = 0
        self._challenge = None

    def _restart_dead_expert(self, challenge: Challenge, is_better: torch.Tensor, banks: list[Any]) -> None:
        """Without it, a bank can settle with some of its experts while the others never get a pixel to learn from."""
        self.until_restart -= 1
        indices, slots = self._indices[0].long(), challenge.slots[None]
        challengers = challenge.experts[0].long()
        settled = indices.scatter(0, slots, torch.where(is_better, challengers, indices.gather(0, slots)))
        num_pixels = torch.zeros_like(self.costs).scatter_add_(
            0, settled.flatten(), torch.ones_like(settled, dtype=self.costs.dtype).flatten()
        )
        expert, source = num_pixels.argmin(), self.costs.argmax()
        is_dead = num_pixels.amin() < _DEAD_SHARE * settled.numel() / self.num_experts
        is_due = is_dead & (self.until_restart <= 0) & (expert != source)
        # A generator of its own neither disturbs the user's random numbers nor differs between processes.
        generator = torch.Generator().manual_seed(self.counters["num_windows"])
        sources = torch.arange(self.num_experts, device=expert.device)
        sources.scatter_(0, expert.view(1), torch.where(is_due, source, expert).view(1))
        for restart_experts in banks:
            restart_experts(sources, generator)
        # Ever more rarely: a bank may have more experts than the data need.
        pause = max(_RESTART_WINDOWS, self.counters["num_windows"] // _RESTART_WINDOWS)
        self.until_restart.copy_(torch.where(is_due, pause, self.until_restart))
        self.num_restarts += is_due

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_banks": [], "_challenge": None}
