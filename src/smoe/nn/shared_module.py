"""Modules that several others hold, such as a gate of several layers: each stands once in a state_dict."""

from __future__ import annotations

import weakref
from collections.abc import MutableMapping
from functools import partial
from typing import Any

from torch import nn


class SharedModule(nn.Module):
    """A module that stands in a state_dict under the first module that holds it; see `save_once`."""

    def __init__(self) -> None:
        super().__init__()
        # In which state_dict the module stands already, and in which call of load_state_dict it was loaded already.
        self._saved_in: weakref.ref[Any] | None = None
        self._loaded_with: list[str] | None = None

    def is_in(self, state_dict: MutableMapping[str, Any]) -> bool:
        """Whether another holder has written the module into this state_dict; if not, it is taken as written now."""
        if self._saved_in is not None and self._saved_in() is state_dict:
            return True
        # A plain dict cannot be referred to weakly: it keeps the repetitions, which is harmless.
        if type(state_dict) is not dict:
            self._saved_in = weakref.ref(state_dict)
        return False

    def is_loaded_with(self, missing_keys: list[str], *, is_here: bool) -> bool:
        """Whether another holder has loaded the module in this call of load_state_dict.

        Args:
            missing_keys: List of missing keys; each call has one.
            is_here: Whether the state_dict holds the module under the holder that asks.
        """
        if is_here:
            self._loaded_with = missing_keys
        return self._loaded_with is missing_keys

    def __getstate__(self) -> dict[str, Any]:
        # References to state_dicts of the past can be neither copied nor pickled.
        return {**self.__dict__, "_saved_in": None, "_loaded_with": None}


def save_once(holder: nn.Module, name: str) -> None:
    """Lets a module that others hold too stand once in a state_dict, and be loaded from there.

    Args:
        holder: Module that holds it.
        name: Name under which it does; there is a `SharedModule`.
    """
    holder.register_state_dict_post_hook(partial(_drop_repeated, child=name))
    holder.register_load_state_dict_pre_hook(partial(_find_repeated, child=name))


def _drop_repeated(
    holder: nn.Module, state_dict: MutableMapping[str, Any], prefix: str, local_metadata: dict[str, Any], *, child: str
) -> None:
    del local_metadata
    if getattr(holder, child).is_in(state_dict):
        for key in [key for key in state_dict if key.startswith(f"{prefix}{child}.")]:
            del state_dict[key]


def _find_repeated(
    holder: nn.Module,
    state_dict: MutableMapping[str, Any],
    prefix: str,
    local_metadata: dict[str, Any],
    strict: bool,
    missing_keys: list[str],
    unexpected_keys: list[str],
    error_msgs: list[str],
    *,
    child: str,
) -> None:
    """Where a shared module is missing but was loaded with another holder, it is given its own values."""
    del local_metadata, strict, unexpected_keys, error_msgs
    prefix, module = f"{prefix}{child}.", getattr(holder, child)
    is_here = any(key.startswith(prefix) for key in state_dict)
    if module.is_loaded_with(missing_keys, is_here=is_here) and not is_here:
        # The tensors themselves, not detached copies: with `assign=True` the parameters must stay the same objects.
        state_dict.update({prefix + name: value for name, value in module.state_dict(keep_vars=True).items()})
