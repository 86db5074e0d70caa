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

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle


class SharedRanking:
    """Keeps the last ranking of one gate."""

    def __init__(self) -> None:
        self._parameters: tuple[weakref.ref[torch.Tensor], ...] = ()
        self._states: tuple[tuple[int, int], ...] = ()
        self._indices: torch.Tensor | None = None
        self._served: weakref.WeakSet[nn.Module] = weakref.WeakSet()
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
        if torch.compiler.is_compiling() or not all(map(_is_settled, parameters)):
            return rank()
        if self._indices is None or reader in self._served or not self._is_of(parameters):
            self._forget()
            self._indices = rank()
            self._parameters = tuple(map(weakref.ref, parameters))
            self._states = tuple(map(_state, parameters))
            for parameter in parameters:
                if parameter.requires_grad and parameter.is_leaf:
                    self._hooks.append(parameter.register_post_accumulate_grad_hook(_Forget(self)))
        self._served.add(reader)
        return self._indices

    def _is_of(self, parameters: tuple[torch.Tensor, ...]) -> bool:
        known = tuple(reference() for reference in self._parameters)
        is_same = len(known) == len(parameters) and all(map(operator.is_, known, parameters))
        return is_same and self._states == tuple(map(_state, parameters))

    def _forget(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._indices = None
        self._parameters = self._states = ()
        self._served = weakref.WeakSet()


class _Forget:
    """Ends a ranking when a parameter receives a gradient; refers to it weakly, because the parameter keeps hooks."""

    def __init__(self, ranking: SharedRanking) -> None:
        self._ranking = weakref.ref(ranking)

    def __call__(self, parameter: torch.Tensor) -> None:
        del parameter
        ranking = self._ranking()
        if ranking is not None:
            ranking._forget()


def _state(parameter: torch.Tensor) -> tuple[int, int]:
    return parameter._version, parameter.data_ptr()


def _is_settled(parameter: torch.Tensor) -> bool:
    """Whether a change would be noticed; with a gradient at hand, a fused optimiser can act at any time."""
    return isinstance(parameter, nn.Parameter) and not parameter.is_inference() and parameter.grad is None
