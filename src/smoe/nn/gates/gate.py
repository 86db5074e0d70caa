"""What every gate is: a module that decides which experts serve which pixel (paper section 2.1)."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from torch import nn

from smoe.nn.gates.normalization import normalize_scores
from smoe.nn.gates.shared_ranking import SharedRanking
from smoe.nn.memory import Memory
from smoe.ops.routing import Routing
from smoe.ops.top_experts import top_experts
from smoe.options import NORMALIZATIONS, ORDERS, Normalization, Order
from smoe.rules import Rule


class SpatialGate(nn.Module, ABC):
    """Scores each expert at each pixel and selects the best ones.

    A gate of your own derives from this class and defines `raw_scores`. A gate given to several layers is shared by
    them: it ranks its experts once in a forward pass and receives the sum of their gradients.

    Args:
        num_experts: X, the number of experts in the bank.
        num_selected: E, the number of experts to select at each pixel.
        order: Order of the selected experts: `score`, each pixel's favourite first, or `index`, by expert number. It is
            saved with the gate, because the channels of a layer follow it.
        normalization: `none`, `softmax`, `abs` or `abs_softmax`, over the experts.
    """

    looks_at_input: bool = True
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
        self._readers: weakref.WeakSet[Memory] = weakref.WeakSet()
        self._held: list[str] = []
        self._ranking = SharedRanking()
        # In which state_dict the gate stands already, and in which call of load_state_dict it was loaded already.
        self._saved_in: weakref.ref[Any] | None = None
        self._loaded_with: list[str] | None = None

    @property
    def spatial_shape(self) -> tuple[int, ...] | None:
        """Grid that the gate was made for; None if it serves any."""
        return None

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
        """
        return self.route(input, None)

    def route(self, input: torch.Tensor | None, reader: nn.Module | None) -> Routing:
        """The same for one of the layers that share the gate, which rank its experts once together.

        Args:
            input: Input of the layer.
            reader: The layer; None always ranks.
        """
        if input is None and self.looks_at_input:
            raise ValueError(f"{type(self).__name__} looks at its input: give it one, (B, C, H, W)")
        clean, noisy, noise_std = self._scores(input)
        scores = normalize_scores(noisy, self.normalization)

        def rank() -> torch.Tensor:
            return top_experts(scores, self.num_selected, self.order)

        sources = None if reader is None or noise_std > 0.0 else self.score_sources()
        indices = rank() if sources is None else self._ranking.get(sources, reader, rank)
        return Routing(indices, scores, clean, noisy, noise_std)

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
        clean = raw.flatten(2) if self.looks_at_input else raw.flatten(1).unsqueeze(0)
        if clean.dtype in (torch.float16, torch.bfloat16):
            clean = clean.float()
        noisy, noise_std = self.add_noise(clean, input)
        return clean, noisy, noise_std

    # Memory of a rule.

    def join_memory(self, reader: Memory, make: Callable[[], Memory]) -> None:
        """Gives the gate a memory that a rule's learners share, and takes its parameters from the optimiser.

        Args:
            reader: Learner of a layer. A memory of another rule is replaced.
            make: Makes the memory.
        """
        if self.memory is None or self.memory.rule != reader.rule:
            self.memory = make()
            self._readers = weakref.WeakSet()
        self._held += self.hold()
        self._readers.add(reader)

    def leave_memory(self, reader: Memory) -> None:
        """Ends the memory when its last reader leaves; the parameters then require gradients again."""
        self._readers.discard(reader)
        if not self._readers:
            self.memory = None
            self.release(self._held)
            self._held = []

    def memory_of(self, reader: Memory) -> Memory:
        """The memory that a learner joined.

        Raises:
            ValueError: If another layer that shares the gate has another rule.
        """
        if self.memory is None or self.memory.rule != reader.rule:
            raise ValueError(
                f"layers that share a gate decide together: this one has the rule {reader.rule}, another "
                f"{None if self.memory is None else self.memory.rule}; give all of them the same"
            )
        # A copy of a gate does not know its readers until they come.
        self._readers.add(reader)
        return self.memory

    def restart_memory(self, num_pixels: int) -> None:
        """Gives the gate a new memory for another number of pixels, if it has one."""
        if self.memory is not None:
            self.memory = self.memory.on_grid_of(num_pixels)

    def refuse_memory(self, rule: Rule) -> None:
        """Raises a ValueError if another layer that shares the gate trains it by a rule with a memory of its own."""
        if self.memory is not None:
            raise ValueError(
                f"the gate learns by {self.memory.rule}, in another layer that shares it, but this layer has the rule "
                f"{rule}; give both the same"
            )

    def hold(self) -> list[str]:
        """Takes the parameters from the optimiser, which passes over what requires no gradient; returns their names."""
        held = [name for name, parameter in self.named_parameters() if parameter.requires_grad]
        for name in held:
            self.get_parameter(name).requires_grad_(False)
        return held

    def release(self, held: list[str]) -> None:
        """Lets parameters require gradients again."""
        for name in held:
            self.get_parameter(name).requires_grad_(True)

    # A shared gate stands once in a state_dict, under the first layer that holds it.

    def is_in(self, state_dict: MutableMapping[str, Any]) -> bool:
        """Whether another layer has written the gate into this state_dict; if not, it is taken as written now."""
        if self._saved_in is not None and self._saved_in() is state_dict:
            return True
        # A plain dict cannot be referred to weakly: it keeps the repetitions, which is harmless.
        if type(state_dict) is not dict:
            self._saved_in = weakref.ref(state_dict)
        return False

    def is_loaded_with(self, missing_keys: list[str], *, is_here: bool) -> bool:
        """Whether another layer has loaded the gate in this call of load_state_dict.

        Args:
            missing_keys: List of missing keys; each call has one.
            is_here: Whether the state_dict holds the gate under the layer that asks.
        """
        if is_here:
            self._loaded_with = missing_keys
        return self._loaded_with is missing_keys

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
        # References to layers, state_dicts and graphs of the past can be neither copied nor pickled.
        passing = {
            "_readers": weakref.WeakSet(),
            "_ranking": SharedRanking(),
            "_saved_in": None,
            "_loaded_with": None,
        }
        return {**self.__dict__, **passing}

    def extra_repr(self) -> str:
        """The numbers that `repr` shows."""
        text = f"num_experts={self.num_experts}, num_selected={self.num_selected}, order={self.order!r}"
        return text if self.normalization == "none" else f"{text}, normalization={self.normalization!r}"
