"""A gate shared by several layers stands once in a state_dict, under the first layer that holds it.

torch would store it under each of them. These two hooks, which every layer registers, drop the repetitions when a
state_dict is made and do without them when it is loaded; a state_dict that has them loads too.
"""

from __future__ import annotations

import weakref
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from smoe.nn.gates.gate import SpatialGate
    from smoe.nn.routed_layer import RoutedLayer

# In which state_dict a gate stands already, and in which call of load_state_dict it was loaded already (each call has
# one list of missing keys). Kept outside the gates, which are copied and pickled.
_saved_in: weakref.WeakKeyDictionary[SpatialGate, weakref.ref[Any]] = weakref.WeakKeyDictionary()
_loaded_in: weakref.WeakKeyDictionary[SpatialGate, list[str]] = weakref.WeakKeyDictionary()


def drop_repeated_gate(
    layer: RoutedLayer, state_dict: MutableMapping[str, Any], prefix: str, local_metadata: dict[str, Any]
) -> None:
    """State-dict hook: removes the layer's gate if another layer has written it into the same state_dict."""
    del local_metadata
    known = _saved_in.get(layer.gate)
    if known is not None and known() is state_dict:
        for key in [key for key in state_dict if key.startswith(f"{prefix}gate.")]:
            del state_dict[key]
        return
    # A plain dict given as destination cannot be referred to weakly: it keeps the repetitions, which is harmless.
    if not isinstance(state_dict, dict) or type(state_dict) is not dict:
        _saved_in[layer.gate] = weakref.ref(state_dict)


def find_repeated_gate(
    layer: RoutedLayer,
    state_dict: MutableMapping[str, Any],
    prefix: str,
    local_metadata: dict[str, Any],
    strict: bool,
    missing_keys: list[str],
    unexpected_keys: list[str],
    error_msgs: list[str],
) -> None:
    """Load hook: where the layer's gate is missing but was loaded with another layer, gives it its own values."""
    del local_metadata, strict, unexpected_keys, error_msgs
    prefix = f"{prefix}gate."
    if any(key.startswith(prefix) for key in state_dict):
        _loaded_in[layer.gate] = missing_keys
    elif _loaded_in.get(layer.gate) is missing_keys:
        state_dict.update({prefix + name: value for name, value in _persistent_tensors(layer.gate).items()})


def _persistent_tensors(gate: nn.Module) -> dict[str, Any]:
    # The tensors themselves, not detached copies: with `assign=True` the gate's parameters must stay the same objects.
    return gate.state_dict(keep_vars=True)
