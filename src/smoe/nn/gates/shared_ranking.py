"""Layers that share a gate rank its experts once in a forward pass, not once each.

Ranking 512 experts takes as long as the convolution that follows. The scores of a tensor gate are the same for all
layers that share it until its parameters change, so the ranking is kept for the next layer. It ends

- when a parameter is another, has other memory or another version, as after any ordinary write;
- when a layer comes again, as in the next forward pass: writes through `parameter.data` leave no trace;
- when a parameter receives a gradient: fused optimisers, which write without counting a version, act on gradients.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from smoe.ops.registration import has_transforms


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
