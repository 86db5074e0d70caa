"""What every gate is: a module that decides which experts serve which pixel (paper section 2.1); how gates start."""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from smoe.nn._own_steps import SelfOptimizing
from smoe.nn._shared_parameters import has_process_group, refuse_shards
from smoe.ops._families import experts_of, sample_families, shifted_seed
from smoe.ops._routing import Routing, nan_where_nonfinite, refuses_nonfinite, top_experts
from smoe.options import ORDERS, GateInit, Order
from smoe.rules import Frozen, Rule

if TYPE_CHECKING:
    from smoe.nn._routed_layer import Learner, RoutedLayer

# Scores that are held at a time, 128 MB of them; a gate with more is asked for those of some families after others.
_MAX_SCORES = 1 << 25


class SpatialGate(SelfOptimizing, ABC):
    """Scores each expert at each pixel and selects the best ones.

    A gate of your own derives from this class and defines `raw_scores`; one that computes scores from the layer's input
    also sets the class attribute `looks_at_input = True`. A gate given to several layers is shared by them and learns
    from all of them. Under the straight-through rule its parameters become buffers, which learn beside the optimiser.

    Args:
        num_experts: X, the number of experts in the bank.
        num_selected: E, the number of experts to select at each pixel.
        order: Order of the selected experts: `families`, the best of each family; `score`, the highest score first;
            or `index`, by expert number. It is saved with the gate, because the channels of a layer follow it.
    """

    looks_at_input: bool = False
    """Whether `raw_scores` returns scores of each sample, `(B, X, *grid)`, or shared ones, `(X, *grid)`."""

    order_code: torch.Tensor

    def __init__(self, num_experts: int, num_selected: int, *, order: Order = "score") -> None:
        super().__init__()
        if num_experts < 1:
            raise ValueError(f"num_experts must be at least 1, got {num_experts}")
        if not 1 <= num_selected <= num_experts:
            raise ValueError(f"num_selected must be in [1, {num_experts}], got {num_selected}")
        if order not in ORDERS:
            raise ValueError(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
        self.num_experts = num_experts
        self.num_selected = num_selected
        self.register_buffer("order_code", torch.tensor(ORDERS.index(order), dtype=torch.uint8))
        self.order: Order = order
        # The layers that share the gate, with their learners.
        self._learners: weakref.WeakKeyDictionary[RoutedLayer, Learner] = weakref.WeakKeyDictionary()
        # Parameters that do not require gradients because no learner trains them.
        self._held: list[str] = []

    @property
    def spatial_shape(self) -> tuple[int, ...] | None:
        """Grid that the gate was made for; None if it serves any."""
        if self.looks_at_input:
            return None
        with torch.no_grad():
            return tuple(self.raw_scores(None).shape[1:])

    @abstractmethod
    def raw_scores(self, input: torch.Tensor | None) -> torch.Tensor:
        """Scores `(X, *grid)`, or `(B, X, *grid)` if the gate looks at its input.

        Args:
            input: Input of the layer; None only if the gate does not look at it.
        """

    def _scores_of(self, experts: slice) -> torch.Tensor:
        """Scores `(X', P)` of consecutive experts, of a gate that does not look at its input."""
        return self.raw_scores(None).flatten(1)[experts]

    def forward(self, input: torch.Tensor | None = None) -> Routing:
        """Decides which experts serve which pixel.

        Args:
            input: Input of the layer; needed only by a gate that looks at it.

        Raises:
            RuntimeError: If the parameters of the gate are sharded, outside a pass of their network.
        """
        refuse_shards(self)
        return self.route(input)

    def route(self, input: torch.Tensor | None) -> Routing:
        """The same, within a pass of a layer."""
        if input is None and self.looks_at_input:
            raise ValueError(f"{type(self).__name__} looks at its input: give it one, (B, C, H, W)")
        scores = self._scores(input)
        indices = top_experts(scores, self.num_selected, self.order)
        unranked = None if refuses_nonfinite(scores.device) else nan_where_nonfinite(scores)
        return Routing(indices, scores, unranked)

    def _decide(self, input: torch.Tensor | None) -> Routing:
        """The same for a pass that needs no scores, which may be empty."""
        return self._draw_again(None, 0.0) if self._can_draw else self.route(input)

    @property
    def _can_draw(self) -> bool:
        """Whether the scores alone decide, family by family."""
        return self.order == "families" and not self.looks_at_input

    def _draw_again(self, seed: torch.Tensor | None, noise: float) -> Routing:
        """Selects as `_draw`; a gate may keep the selection and return it until something changes."""
        return self._draw(seed, noise)

    def _draw(self, seed: torch.Tensor | None, noise: float) -> Routing:
        """Selects an expert of each family by the scores with noise, without storing all scores.

        Args:
            seed: Seed of the noise, an int64 scalar; None without noise.
            noise: Standard deviation of the noise, in units of the scores.

        Returns:
            A routing with empty scores.
        """
        chosen: list[torch.Tensor] = []
        unranked: torch.Tensor | None = None
        scores = torch.empty(0)
        for families in self._bands(None if self.spatial_shape is None else torch.Size(self.spatial_shape).numel()):
            experts = experts_of(self.num_experts, self.num_selected, families)
            # Detached, and not under `no_grad`: after an error, an exported program would leave gradients switched off.
            scores = self._ranked_scores(experts).detach()[None]
            num_families = families.stop - families.start
            if seed is None:
                best = top_experts(scores, num_families, "families")
            else:
                best = sample_families(scores, num_families, shifted_seed(seed, experts.start * scores.shape[2]), noise)
            chosen.append(best + experts.start if experts.start else best)
            if not refuses_nonfinite(scores.device):
                mark = nan_where_nonfinite(scores)
                unranked = mark if unranked is None else unranked + mark
        indices = chosen[0] if len(chosen) == 1 else torch.cat(chosen, dim=1)
        return Routing(indices, scores[:, :0], unranked)

    def _bands(self, num_pixels: int | None) -> list[slice]:
        """The families in parts that have few enough scores; at least a family is in each."""
        E = self.num_selected
        # A compiled pass stores all scores: its compiler decides what is kept.
        if num_pixels is None or torch.compiler.is_compiling():
            return [slice(0, E)]
        per_band = max(1, _MAX_SCORES // max(1, -(-self.num_experts // E) * num_pixels))
        return [slice(first, min(E, first + per_band)) for first in range(0, E, per_band)]

    def _ranked_scores(self, experts: slice) -> torch.Tensor:
        """Scores `(X', P)` that are ranked, in at least float32."""
        scores = self._scores_of(experts)
        # Half precision would make ties of distinct scores.
        return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores

    def _scores(self, input: torch.Tensor | None) -> torch.Tensor:
        """Flat scores of all experts, `(1 or B, X, P)`, in at least float32."""
        if input is not None and not input.is_meta and torch.is_autocast_enabled(input.device.type):
            # Half precision would make ties of distinct scores: the routing is decided in the gate's own, float32.
            dtype = next((parameter.dtype for parameter in self.parameters()), torch.float32)
            with without_autocast(input.device):
                return self._scores(input.to(dtype))
        raw = self.raw_scores(input)
        if raw.ndim < 2 + self.looks_at_input or raw.shape[int(self.looks_at_input)] != self.num_experts:
            expected = f"{'(B, ' if self.looks_at_input else '('}{self.num_experts}, *grid)"
            raise ValueError(
                f"{type(self).__name__} has looks_at_input={self.looks_at_input}: raw_scores must return {expected}, "
                f"got {tuple(raw.shape)}"
            )
        scores = raw.flatten(2) if self.looks_at_input else raw.flatten(1).unsqueeze(0)
        return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores

    # What the layers that share the gate do with it.

    def _join(self, layer: RoutedLayer, learner: Learner) -> None:
        """Records that a learner of a layer works on the gate, in place of the layer's last one.

        While no learner trains the gate by gradients, its parameters do not require any, so that no optimiser changes
        them. Where several processes train a model, they keep requiring gradients: a wrapper such as
        DistributedDataParallel expects the same parameters to have gradients in every pass.

        Raises:
            ValueError: If the rule does not go together with what the gate has become, or with that of another layer.
        """
        is_alone = learner.trains_alone or self.steps is not None
        if is_alone and not learner.trains_alone and learner.trains_scores and not isinstance(learner.rule, Frozen):
            raise ValueError(
                f"the gate learns beside the optimiser, by straight_through, and the rule {learner.rule} needs scores "
                f"that the optimiser follows: make a new layer with rule={str(learner.rule)!r}"
            )
        if is_alone:  # frozen layers too, whose local affine maps the steps of optimisers look after
            self._learn_alone(layer)
        self._learners[layer] = learner
        self._settle()

    def _leave(self, layer: RoutedLayer) -> None:
        """Records that a layer uses the gate no more."""
        self._learners.pop(layer, None)
        self._layers.discard(layer)
        self._settle()

    def _settle(self) -> None:
        learners = list(self._learners.values())
        is_held = len(learners) > 0 and not any(learner.trains_scores for learner in learners)
        # Parameters that waited before go on waiting: the wrapper does not know them.
        is_held = is_held and (len(self._held) > 0 or not has_process_group())
        if is_held:
            names = [name for name, parameter in self.named_parameters() if parameter.requires_grad]
            self._held += names
            for name in names:
                self.get_parameter(name).requires_grad_(False)
        else:
            for name in self._held:
                self.get_parameter(name).requires_grad_(True)
            self._held = []

    def _after_step(self, *, is_taken: bool) -> None:
        for layer, learner in list(self._learners.items()):
            learner.after_step(layer, is_taken=is_taken)

    def _refuse_own_steps(self, rule: Rule) -> None:
        """Raises a ValueError if the gate learns beside the optimiser, by the rule of another layer."""
        if self.steps is not None:
            raise ValueError(
                f"the gate learns beside the optimiser, in another layer that shares it, but this layer has the rule "
                f"{rule}; give both the same"
            )

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ) -> None:
        code = state_dict.get(f"{prefix}order_code")
        if code is not None and not code.is_meta and int(code) != ORDERS.index(self.order):
            saved = ORDERS[int(code)] if int(code) < len(ORDERS) else int(code)
            error_msgs.append(
                f"{prefix}order is {self.order!r}, but the gate was saved with {saved!r}: the channels of the layer "
                "would mean something else"
            )
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def __getstate__(self) -> dict[str, object]:
        # The layers join the copy of the gate when they are copied themselves.
        return {**super().__getstate__(), "_learners": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_learners": weakref.WeakKeyDictionary()})

    def extra_repr(self) -> str:
        return f"num_experts={self.num_experts}, num_selected={self.num_selected}, order={self.order!r}"


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A context in which scores have the dtype of their parameters."""
    is_available = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if is_available else nullcontext()


def check_grid(spatial_shape: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes of a grid with any number of axes; nodes of a graph have one."""
    shape = tuple(int(size) for size in spatial_shape)
    if not shape or min(shape) < 1:
        raise ValueError(f"spatial_shape must be the sizes of the output grid, not {tuple(spatial_shape)}")
    return shape


def smooth_fields(shape: tuple[int, ...], correlation_length: float) -> torch.Tensor:
    """Gaussian random fields of mean near 0 and standard deviation 1 over the whole tensor.

    The width of a plane is periodic, so that a globe has no seam; its height is not, so that the poles stay apart. No
    axis of a line or a volume is periodic.

    Args:
        shape: `(X, *grid)`, X independent fields.
        correlation_length: Distance in pixels at which the correlation has fallen to exp(-1/2).

    Returns:
        `(X, *grid)`, float32.
    """
    if not correlation_length > 0.0:
        raise ValueError(f"correlation_length must be positive, got {correlation_length}")
    num_fields, *grid = shape
    # Noise blurred by a Gaussian of width s correlates like a Gaussian of width s * sqrt(2).
    blur = correlation_length / math.sqrt(2.0)
    margin = math.ceil(4 * blur)
    is_plane = len(grid) == 2
    margins = [0 if is_plane and axis == 1 else margin for axis in range(len(grid))]
    noise = torch.randn(num_fields, *(size + 2 * extra for size, extra in zip(grid, margins, strict=True)))
    axes = tuple(range(1, noise.ndim))
    squared = torch.zeros(())
    for axis in axes:
        frequency = (torch.fft.rfftfreq if axis == axes[-1] else torch.fft.fftfreq)(noise.shape[axis])
        squared = squared[..., None] + frequency**2
    transfer = torch.exp(-2.0 * (math.pi * blur) ** 2 * squared)
    field = torch.fft.irfftn(torch.fft.rfftn(noise, dim=axes) * transfer, s=noise.shape[1:], dim=axes)
    for axis, size, extra in zip(axes, grid, margins, strict=True):
        field = field.narrow(axis, extra, size)
    spread = field.std(correction=0)
    # One expert on one pixel has no spread.
    return torch.where(spread > 0.0, field / spread, field)


START_STD = 0.1
"""Standard deviation of the scores of a random start: small beside the temperature 1 of the straight-through rule, so
that all candidates of a family stay likely."""

_INITS = ("uniform", "kaiming", "smooth")


def check_start(init: GateInit, correlation_length: float | None, inits: tuple[str, ...] = _INITS) -> None:
    """Refuses a start that a gate does not have, and a correlation length without smooth fields."""
    if init not in inits:
        raise ValueError(f"init must be one of {', '.join(inits)}, got {init!r}")
    if correlation_length is not None and init != "smooth":
        raise ValueError(f"correlation_length belongs to init='smooth', but init is {init!r}")


@torch.no_grad()
def draw_start(values: torch.Tensor, init: GateInit, correlation_length: float | None) -> None:
    """Fills values `(N, *grid)` with zeros (`uniform`), or with random numbers of standard deviation 1.

    They are independent (`kaiming`) or `smooth` fields, whose correlation length is an eighth of the shorter side if
    None.
    """
    if init == "uniform":
        values.zero_()
    elif init == "smooth":
        values.copy_(smooth_fields(tuple(values.shape), correlation_length or min(values.shape[1:]) / 8))
    else:
        values.normal_()


def expert_membership(groups: torch.Tensor, num_experts: int, num_families: int = 1) -> torch.Tensor:
    """How much each pixel belongs to the group that each expert serves, `(X, *grid)` in [0, 1], float32.

    Each family is dealt to the groups of the map `(*grid)` apart.
    """
    membership = group_membership(groups)
    return membership[group_of_expert(num_experts, len(membership), num_families).to(membership.device)]


def group_membership(groups: torch.Tensor) -> torch.Tensor:
    """How much each pixel belongs to each group, `(G, *grid)` in [0, 1], float32.

    The groups `(*grid)` are numbers from 0 up, or a fraction in [0, 1], such as that of land, which makes two: group 0
    with membership 1 - fraction and group 1 with membership fraction.
    """
    check_grid(tuple(groups.shape))
    return _fraction_membership(groups) if groups.is_floating_point() else _number_membership(groups)


def group_of_expert(num_experts: int, num_groups: int, num_families: int = 1) -> torch.Tensor:
    """The group `(X,)` that each expert serves.

    The experts of a family are dealt to the groups in order and in near-equal shares: with 256 experts in one family
    and two groups, experts 0-127 serve group 0. With as many experts as groups, expert g serves group g.
    """
    families = torch.tensor_split(torch.arange(num_experts), num_families)
    smallest = min(len(family) for family in families)
    if smallest < num_groups:
        of_family = "" if num_families == 1 else " of each family"
        raise ValueError(f"{num_groups} groups need at least {num_groups} experts{of_family}, got {smallest}")
    return torch.cat(
        [
            torch.full_like(share, group)
            for family in families
            for group, share in enumerate(torch.tensor_split(family, num_groups))
        ]
    )


def _fraction_membership(fraction: torch.Tensor) -> torch.Tensor:
    if not fraction.is_meta and fraction.isnan().any():
        raise ValueError(f"the map of fractions has {int(fraction.isnan().sum())} NaN; fill them before making a gate")
    if not fraction.is_meta and not bool(((fraction >= 0.0) & (fraction <= 1.0)).all()):
        low, high = (float(bound) for bound in fraction.aminmax())
        raise ValueError(
            f"a map of fractions must lie in [0, 1], got [{low}, {high}]; for group numbers give an integer map"
        )
    return torch.stack([1.0 - fraction, fraction]).float()


def _number_membership(groups: torch.Tensor) -> torch.Tensor:
    groups = groups.long()
    if int(groups.min()) < 0:
        raise ValueError(f"group numbers start at 0, got {int(groups.min())}")
    num_groups = int(groups.max()) + 1
    return torch.stack([groups == group for group in range(num_groups)]).float()
