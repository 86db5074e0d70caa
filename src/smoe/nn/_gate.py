"""What every gate is: a module that decides which experts serve which pixel (paper section 2.1)."""

from __future__ import annotations

import operator
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Self

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from smoe.nn._shared_parameters import SharedModule, has_process_group, refuse_shards
from smoe.ops._families import experts_of, sample_families, shifted_seed
from smoe.ops._operators import has_transforms
from smoe.ops._routing import Routing, nan_where_nonfinite, refuses_nonfinite, top_experts
from smoe.options import NORMALIZATIONS, ORDERS, Normalization, Order
from smoe.rules import Rule


class Memory(nn.Module):
    """Buffers on the device of the layer and counters on the host.

    Counters decide what is computed, so they are Python integers: reading them never waits for a device. They are saved
    with the buffers. Loading takes the state as a whole, or starts anew if it has other names or shapes, as the state
    of another rule does; neither is an error.

    Args:
        rule: Rule whose state it is.
        *counters: Names of the counters, which start at 0.
    """

    def __init__(self, rule: Rule, *counters: str) -> None:
        super().__init__()
        self.rule = rule
        self.counters = dict.fromkeys(counters, 0)

    def restart(self) -> None:
        """Forgets everything."""
        for buffer in self.buffers(recurse=False):
            buffer.zero_()
        self.start_from(dict.fromkeys(self.counters, 0))

    def start_from(self, counters: dict[str, int]) -> None:
        """Sets the counters; state that is not saved ends."""
        self.counters = counters

    def on_grid_of(self, num_pixels: int) -> Self:
        """A new memory for another number of pixels; this one, if its buffers do not depend on it."""
        del num_pixels
        return self

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.counters:
            destination[f"{prefix}counters"] = torch.tensor(list(self.counters.values()))

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        del strict, missing_keys, unexpected_keys, error_msgs
        given = {key.removeprefix(prefix): value for key, value in state_dict.items() if key.startswith(prefix)}
        own = dict(self.named_buffers(recurse=False))
        expected = {name: buffer.shape for name, buffer in own.items()}
        if self.counters:
            expected["counters"] = torch.Size([len(self.counters)])
        if {name: value.shape for name, value in given.items()} != expected:
            self.restart()
            return
        counters = given.pop("counters").tolist() if self.counters else []
        self.start_from(dict(zip(self.counters, counters, strict=True)))
        is_assigned = local_metadata.get("assign_to_params_buffers", False)
        with torch.no_grad():
            for name, buffer in own.items():
                if is_assigned:
                    setattr(self, name, given[name])
                else:
                    buffer.copy_(given[name])


class _Kept(NamedTuple):
    """A ranking, the parameters and their states that decided it, and the layers that have read it."""

    parameters: tuple[weakref.ref[torch.Tensor], ...]
    states: tuple[tuple[int, int], ...]
    indices: torch.Tensor
    served: weakref.WeakSet[nn.Module]


class SharedRanking:
    """Keeps the last ranking of one gate.

    Threads may share it: a ranking is replaced as a whole, and a thread returns the one that it found or made. There is
    no lock, which a forked process could find closed for ever.
    """

    def __init__(self) -> None:
        self._kept: _Kept | None = None
        self._hooks: list[RemovableHandle] = []

    def get(
        self, parameters: tuple[torch.Tensor, ...], reader: nn.Module, rank: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        """The ranking of the present parameters.

        Args:
            parameters: Parameters that alone decide the ranking.
            reader: Layer that asks.
            rank: Makes the ranking.
        """
        if torch.compiler.is_compiling() or has_transforms() or not all(map(_is_settled, parameters)):
            return rank()
        kept = self._kept
        if kept is None or reader in kept.served or not _is_of(kept, parameters):
            self._forget()
            references = tuple(weakref.ref(parameter) for parameter in parameters)
            states = tuple(map(_state, parameters))
            kept = self._kept = _Kept(references, states, rank(), weakref.WeakSet())
            for parameter in parameters:
                if parameter.requires_grad and parameter.is_leaf:
                    self._hooks.append(parameter.register_post_accumulate_grad_hook(_Forget(self)))
        kept.served.add(reader)
        return kept.indices

    def _forget(self) -> None:
        self._kept = None
        # `pop` gives each hook to one thread only.
        while self._hooks:
            try:
                self._hooks.pop().remove()
            except IndexError:
                return


class _Forget:
    """Ends a ranking when a parameter receives a gradient; refers to it weakly, because the parameter keeps hooks."""

    def __init__(self, ranking: SharedRanking) -> None:
        self._ranking = weakref.ref(ranking)

    def __call__(self, parameter: torch.Tensor) -> None:
        del parameter
        ranking = self._ranking()
        if ranking is not None:
            ranking._forget()


def _is_of(kept: _Kept, parameters: tuple[torch.Tensor, ...]) -> bool:
    known = tuple(reference() for reference in kept.parameters)
    is_same = len(known) == len(parameters) and all(map(operator.is_, known, parameters))
    return is_same and kept.states == tuple(map(_state, parameters))


def _state(parameter: torch.Tensor) -> tuple[int, int]:
    return parameter._version, parameter.data_ptr()


def _is_settled(parameter: torch.Tensor) -> bool:
    """Whether a change would be noticed; with a gradient at hand, a fused optimiser can act at any time."""
    return isinstance(parameter, nn.Parameter) and not parameter.is_inference() and parameter.grad is None


class SpatialGate(SharedModule, ABC):
    """Scores each expert at each pixel and selects the best ones.

    A gate of your own derives from this class and defines `raw_scores`; one that computes scores from the layer's input
    also sets the class attribute `looks_at_input = True`. A gate given to several layers is shared by them and receives
    the sum of their gradients.

    Args:
        num_experts: X, the number of experts in the bank.
        num_selected: E, the number of experts to select at each pixel.
        order: Order of the selected experts: `families`, the best of each family; `score`, the highest score first;
            or `index`, by expert number. It is saved with the gate, because the channels of a layer follow it.
        normalization: `none`, `softmax`, `abs` or `abs_softmax`, over the experts.
    """

    looks_at_input: bool = False
    """Whether `raw_scores` returns scores of each sample, `(B, X, *grid)`, or shared ones, `(X, *grid)`."""

    order_code: torch.Tensor

    def __init__(
        self,
        num_experts: int,
        num_selected: int,
        *,
        order: Order = "score",
        normalization: Normalization = "none",
    ) -> None:
        super().__init__()
        if num_experts < 1:
            raise ValueError(f"num_experts must be at least 1, got {num_experts}")
        if not 1 <= num_selected <= num_experts:
            raise ValueError(f"num_selected must be in [1, {num_experts}], got {num_selected}")
        if order not in ORDERS:
            raise ValueError(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
        if normalization not in NORMALIZATIONS:
            raise ValueError(f"normalization must be one of {', '.join(NORMALIZATIONS)}, got {normalization!r}")
        self.num_experts = num_experts
        self.num_selected = num_selected
        self.normalization: Normalization = normalization
        self.register_buffer("order_code", torch.tensor(ORDERS.index(order), dtype=torch.uint8))
        self.order: Order = order
        # What a rule remembers for all layers that share the gate.
        self.memory: Memory | None
        self.register_module("memory", None)
        # The learners of the layers that share the gate, and whether each trains it by gradients.
        self._learners: weakref.WeakKeyDictionary[Memory, bool] = weakref.WeakKeyDictionary()
        # Parameters that do not require gradients because no learner trains them.
        self._held: list[str] = []
        self._ranking = SharedRanking()

    @property
    def spatial_shape(self) -> tuple[int, ...] | None:
        """Grid that the gate was made for; None if it serves any."""
        if self.looks_at_input:
            return None
        with torch.no_grad():
            return tuple(self.raw_scores(None).shape[1:])

    @property
    def gradient_gain(self) -> float:
        """Norm of the gradient at the parameters for one at the scores that is independent from pixel to pixel."""
        return 1.0

    @abstractmethod
    def raw_scores(self, input: torch.Tensor | None) -> torch.Tensor:
        """Scores before noise and normalisation, `(X, *grid)`, or `(B, X, *grid)` if the gate looks at its input.

        Args:
            input: Input of the layer; None only if the gate does not look at it.
        """

    def forward(self, input: torch.Tensor | None = None) -> Routing:
        """Decides which experts serve which pixel.

        Args:
            input: Input of the layer; needed only by a gate that looks at it.

        Raises:
            RuntimeError: If the parameters of the gate are sharded, outside a pass of their network.
        """
        refuse_shards(self)
        return self.route(input, None)

    def route(
        self,
        input: torch.Tensor | None,
        reader: nn.Module | None,
        select: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> Routing:
        """The same for one of the layers that share the gate, which rank its experts once together.

        Args:
            input: Input of the layer.
            reader: The layer; None always ranks.
            select: Selects experts `(1 or B, E, P)` by the scores `(1 or B, X, P)`; None takes the best.
        """
        if input is None and self.looks_at_input:
            raise ValueError(f"{type(self).__name__} looks at its input: give it one, (B, C, H, W)")
        clean, noisy, noise_std = self._scores(input)
        scores = normalize_scores(noisy, self.normalization)

        def rank() -> torch.Tensor:
            return top_experts(scores, self.num_selected, self.order) if select is None else select(scores)

        sources = self.score_sources() if noise_std == 0.0 and select is None else None
        indices = rank() if sources is None or reader is None else self._ranking.get(sources, reader, rank)
        return Routing(indices, scores, clean, noisy, noise_std)

    def decide(self, input: torch.Tensor | None, reader: nn.Module | None) -> Routing:
        """The same for a pass that needs no scores, which may be empty.

        Args:
            input: Input of the layer.
            reader: The layer.
        """
        return self.route(input, reader)

    def score_sources(self) -> tuple[torch.Tensor, ...] | None:
        """Parameters that alone decide the ranking, so that layers may share it; None if the input decides too."""
        return None

    def add_noise(self, clean: torch.Tensor, input: torch.Tensor | None) -> tuple[torch.Tensor, float]:
        """The flat scores with training noise, and its standard deviation: no noise here."""
        del input
        return clean, 0.0

    def _scores(self, input: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor, float]:
        if input is not None and not input.is_meta and torch.is_autocast_enabled(input.device.type):
            # Half precision would make ties of distinct scores: the routing is decided in the gate's own, float32.
            dtype = next((parameter.dtype for parameter in self.parameters()), torch.float32)
            with torch.autocast(input.device.type, enabled=False):
                return self._scores(input.to(dtype))
        raw = self.raw_scores(input)
        if raw.ndim < 2 + self.looks_at_input or raw.shape[int(self.looks_at_input)] != self.num_experts:
            expected = f"{'(B, ' if self.looks_at_input else '('}{self.num_experts}, *grid)"
            raise ValueError(
                f"{type(self).__name__} has looks_at_input={self.looks_at_input}: raw_scores must return {expected}, "
                f"got {tuple(raw.shape)}"
            )
        clean = raw.flatten(2) if self.looks_at_input else raw.flatten(1).unsqueeze(0)
        if clean.dtype in (torch.float16, torch.bfloat16):
            clean = clean.float()
        noisy, noise_std = self.add_noise(clean, input)
        return clean, noisy, noise_std

    # What the layers that share the gate do with it.

    def join(self, learner: Memory, *, trains_scores: bool, make_memory: Callable[[], Memory | None]) -> None:
        """Records that the learner of a layer works on the gate.

        While no learner trains the gate by gradients, its parameters do not require any, so that no optimiser changes
        them. Where several processes train a model, they keep requiring gradients unless a memory decides: a wrapper
        such as DistributedDataParallel expects the same parameters to have gradients in every pass.

        Args:
            learner: Learner of a layer.
            trains_scores: Whether it trains the gate by gradients.
            make_memory: Makes the memory that all learners of its rule share; it returns None if the rule has none. A
                memory of another rule is replaced.
        """
        self._learners[learner] = trains_scores
        if self.memory is None or self.memory.rule != learner.rule:
            memory = make_memory()
            self.memory = self.memory if memory is None else memory
        self._settle()

    def leave(self, learner: Memory) -> None:
        """Records that a learner works on the gate no more; a memory ends with the last learner that shares it."""
        self._learners.pop(learner, None)
        self._settle()

    def _settle(self) -> None:
        if self.memory is not None and all(learner.rule != self.memory.rule for learner in self._learners):
            self.memory = None
        is_held = len(self._learners) > 0 and not any(self._learners.values())
        # Parameters that waited before go on waiting: the wrapper does not know them.
        is_held = is_held and (self.memory is not None or len(self._held) > 0 or not has_process_group())
        if is_held:
            names = [name for name, parameter in self.named_parameters() if parameter.requires_grad]
            self._held += names
            for name in names:
                self.get_parameter(name).requires_grad_(False)
        else:
            for name in self._held:
                self.get_parameter(name).requires_grad_(True)
            self._held = []

    def memory_of(self, learner: Memory) -> Memory:
        """The memory that a learner shares.

        Raises:
            ValueError: If another layer that shares the gate has another rule.
        """
        if self.memory is None or self.memory.rule != learner.rule:
            raise ValueError(
                f"layers that share a gate decide together: this one has the rule {learner.rule}, another "
                f"{None if self.memory is None else self.memory.rule}; give all of them the same"
            )
        return self.memory

    def refuse_memory(self, rule: Rule) -> None:
        """Raises a ValueError if another layer that shares the gate trains it by a rule with a memory of its own."""
        if self.memory is not None:
            raise ValueError(
                f"the gate learns by {self.memory.rule}, in another layer that shares it, but this layer has the rule "
                f"{rule}; give both the same"
            )

    def restart_memory(self, num_pixels: int) -> None:
        """Gives the gate a new memory for another number of pixels, if it has one."""
        if self.memory is not None:
            self.memory = self.memory.on_grid_of(num_pixels)

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
        # A ranking belongs to graphs of the past. The learners are copied with their layers; the gate refers to them
        # weakly again in `__setstate__`.
        state = {**super().__getstate__(), "_learners": list(self._learners.items())}
        del state["_ranking"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        learners = weakref.WeakKeyDictionary(dict(state["_learners"]))
        super().__setstate__({**state, "_learners": learners, "_ranking": SharedRanking()})

    def extra_repr(self) -> str:
        """The numbers that `repr` shows."""
        text = f"num_experts={self.num_experts}, num_selected={self.num_selected}, order={self.order!r}"
        return text if self.normalization == "none" else f"{text}, normalization={self.normalization!r}"


def normalize_scores(scores: torch.Tensor, normalization: Normalization) -> torch.Tensor:
    """Normalises `(1 or B, X, P)` over the experts; `abs_softmax` takes the absolute value first."""
    if normalization in ("abs", "abs_softmax"):
        scores = scores.abs()
    if normalization in ("softmax", "abs_softmax"):
        scores = scores.softmax(dim=1)
    return scores


# Scores that are held at a time, 128 MB of them; a gate with more works in bands.
_MAX_SCORES = 1 << 25


class Band(NamedTuple):
    """Some families.

    Attributes:
        families: Numbers of the families.
        experts: Numbers of their experts.
    """

    families: slice
    experts: slice

    @property
    def num_families(self) -> int:
        """Number of families."""
        return self.families.stop - self.families.start


class BandedGate(SpatialGate):
    """A gate that does not look at its input, and computes the scores of single experts.

    Its parameters are either rows, one for each expert, or belong to all experts. A gate defines `row_parameters`,
    `common_parameters` and `scores_of`, from which `raw_scores` follows.
    """

    @property
    @abstractmethod
    def spatial_shape(self) -> tuple[int, ...]:
        """Sizes of the grid the gate was made for."""

    @abstractmethod
    def row_parameters(self) -> tuple[nn.Parameter, ...]:
        """Parameters with a row for each expert, `(X, ...)`."""

    def common_parameters(self) -> tuple[torch.Tensor, ...]:
        """Parameters that belong to all experts: none by default."""
        return ()

    @abstractmethod
    def scores_of(self, rows: tuple[torch.Tensor, ...], common: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Scores `(X', P)` of some experts, which can be differentiated.

        Args:
            rows: Rows of these experts, of each of `row_parameters`.
            common: All of `common_parameters`.
        """

    def raw_scores(self, input: torch.Tensor | None = None) -> torch.Tensor:
        """The scores of all experts."""
        del input
        return self.scores_of(self.row_parameters(), self.common_parameters()).unflatten(1, self.spatial_shape)

    def score_sources(self) -> tuple[torch.Tensor, ...]:
        """All parameters of the scores."""
        return (*self.row_parameters(), *self.common_parameters())

    @property
    def num_pixels(self) -> int:
        """P, the number of pixels."""
        return torch.Size(self.spatial_shape).numel()

    def bands(self) -> list[Band]:
        """The families in bands, each of which has few enough scores; at least a family is in each."""
        X, E = self.num_experts, self.num_selected
        per_band = max(1, _MAX_SCORES // (-(-X // E) * self.num_pixels))
        bands = (slice(first, min(E, first + per_band)) for first in range(0, E, per_band))
        return [Band(families, experts_of(X, E, families)) for families in bands]

    @property
    def works_in_bands(self) -> bool:
        """Whether experts are selected, and the straight-through gradient is computed, without storing all scores.

        A compiled pass stores them: its compiler decides what is kept. So does one under a transform of torch.func.
        """
        is_large = self.num_experts * self.num_pixels > _MAX_SCORES
        return is_large and self.selects_families and not (torch.compiler.is_compiling() or has_transforms())

    @property
    def selects_families(self) -> bool:
        """Whether the scores alone decide, family by family."""
        return self.order == "families" and self.normalization == "none"

    @property
    def can_draw(self) -> bool:
        """Whether `draw` is better than ranking the scores."""
        return self.works_in_bands

    @torch.no_grad()
    def draw(self, seed: torch.Tensor, noise: float) -> Routing:
        """Selects an expert of each family by the scores with noise, without storing the scores.

        Args:
            seed: Seed of the noise, an int64 scalar.
            noise: Standard deviation of the noise, in units of the scores.

        Returns:
            A routing with empty scores.
        """
        device = seed.device
        indices = torch.empty(1, self.num_selected, self.num_pixels, dtype=torch.int32, device=device)
        unranked = None if refuses_nonfinite(device) else torch.zeros(1, 1, self.num_pixels, device=device)
        common = self.common_parameters()
        # Half precision would make ties of distinct scores.
        with without_autocast(device):
            for band in self.bands():
                rows = tuple(parameter[band.experts] for parameter in self.row_parameters())
                scores = full_precision(self.scores_of(rows, common))[None]
                place = band.experts.start * self.num_pixels
                chosen = sample_families(scores, band.num_families, shifted_seed(seed, place), noise)
                indices[:, band.families] = chosen + band.experts.start
                if unranked is not None:
                    unranked += nan_where_nonfinite(scores)
        nothing = torch.empty(1, 0, self.num_pixels, device=device)
        return Routing(indices, nothing, nothing, nothing, unranked=unranked)

    def decide(self, input: torch.Tensor | None, reader: nn.Module | None) -> Routing:
        """The best expert of each family, where that is better without storing the scores."""
        if not self.can_draw:
            return self.route(input, reader)
        device = self.score_sources()[0].device
        return self.draw(torch.zeros((), dtype=torch.int64, device=device), 0.0)


def full_precision(scores: torch.Tensor) -> torch.Tensor:
    """Scores in at least float32, in which they are compared."""
    return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A context in which scores have the dtype of their parameters."""
    is_available = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if is_available else nullcontext()
