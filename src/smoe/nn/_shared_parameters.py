"""State that modules share or keep beside parameters: in state_dicts, and among processes."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, MutableMapping
from functools import partial
from typing import Any, Self

import torch
from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations


class CopiedModule(nn.Module):
    """A module that is copied by its `__getstate__` also if it is parametrised: PyTorch would copy its attributes."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        kind: Any = type_before_parametrizations(self)
        memo[id(self)] = copied = self.__new__(type(self))
        copied.__setstate__(copy.deepcopy(kind.__getstate__(self), memo))
        return copied


class SharedModule(CopiedModule):
    """A module that stands in a state_dict under the first module that holds it; see `save_once`."""

    def __init__(self) -> None:
        super().__init__()
        # In which state_dict the module stands already, and in which call of load_state_dict it was loaded already.
        self._saved_in: weakref.ref[Any] | None = None
        self._loaded_with: list[str] | None = None

    def _is_in(self, state_dict: MutableMapping[str, Any]) -> bool:
        """Whether another holder has written the module into this state_dict; if not, it is taken as written now."""
        if self._saved_in is not None and self._saved_in() is state_dict:
            return True
        # A plain dict cannot be referred to weakly: it keeps the repetitions, which is harmless.
        if type(state_dict) is not dict:
            self._saved_in = weakref.ref(state_dict)
        return False

    def _is_loaded_with(self, missing_keys: list[str], *, is_here: bool) -> bool:
        """Whether another holder has loaded the module in this call of load_state_dict, told by its `missing_keys`."""
        if is_here:
            self._loaded_with = missing_keys
        return self._loaded_with is missing_keys

    def __getstate__(self) -> dict[str, Any]:
        # References to state_dicts of the past can be neither copied nor pickled.
        return {**self.__dict__, "_saved_in": None, "_loaded_with": None}


def save_once(holder: nn.Module, name: str) -> None:
    """Lets the `SharedModule` of this name, which others hold too, stand once in a state_dict."""
    holder.register_state_dict_post_hook(partial(_drop_repeated, child=name))
    holder.register_load_state_dict_pre_hook(partial(_find_repeated, child=name))


def _drop_repeated(
    holder: nn.Module, state_dict: MutableMapping[str, Any], prefix: str, local_metadata: dict[str, Any], *, child: str
) -> None:
    del local_metadata
    if getattr(holder, child)._is_in(state_dict):
        for key in [key for key in state_dict if key.startswith(f"{prefix}{child}.")]:
            del state_dict[key]


def _find_repeated(
    holder: nn.Module, state_dict: MutableMapping[str, Any], prefix: str, *rest: Any, child: str
) -> None:
    """Where a shared module is missing but was loaded with another holder, it is given its own values."""
    _, _, missing_keys, _, _ = rest
    prefix, module = f"{prefix}{child}.", getattr(holder, child)
    is_here = any(key.startswith(prefix) for key in state_dict)
    if module._is_loaded_with(missing_keys, is_here=is_here) and not is_here:
        # The tensors themselves, not detached copies: with `assign=True` the parameters must stay the same objects.
        state_dict.update({prefix + name: value for name, value in module.state_dict(keep_vars=True).items()})


class StatefulModule(nn.Module):
    """Buffers on the device of the layer and counters on the host.

    Counters decide what is computed, so they are Python integers: reading them never waits for a device. They are saved
    with the buffers. State with other names or shapes, such as that of a different rule, is discarded on loading and
    this state is reset; no error is raised.

    Args:
        *counters: Names of the counters, which start at 0.
    """

    def __init__(self, *counters: str) -> None:
        super().__init__()
        self.counters = dict.fromkeys(counters, 0)

    def restart(self) -> None:
        for buffer in self.buffers(recurse=False):
            buffer.zero_()
        self.counters = dict.fromkeys(self.counters, 0)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.counters:
            destination[f"{prefix}counters"] = torch.tensor(list(self.counters.values()))

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
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
        self.counters = dict(zip(self.counters, counters, strict=True))
        is_assigned = local_metadata.get("assign_to_params_buffers", False)
        with torch.no_grad():
            for name, buffer in own.items():
                if is_assigned:
                    setattr(self, name, given[name])
                else:
                    buffer.copy_(given[name])


def at_least_float32(fn: Callable[[torch.Tensor], torch.Tensor], values: torch.Tensor) -> torch.Tensor:
    """What `fn` makes of values when a module is moved, except that they do not lose digits in half precision."""
    new = fn(values)
    half = (torch.float16, torch.bfloat16)
    return values.to(new.device) if new.dtype in half and values.dtype not in half else new


def is_sharded(module: nn.Module) -> bool:
    """Whether FSDP divides the parameters of a module among processes."""
    return getattr(module, "_is_fsdp_managed_module", False)


def refuse_shards(module: nn.Module) -> None:
    """Raises a RuntimeError if this process holds only shards of the parameters of a module at the moment."""
    if is_sharded(module) and any(hasattr(parameter, "to_local") for parameter in module.parameters()):
        raise RuntimeError(
            f"the parameters of {type(module).__name__} are sharded among processes; use it inside "
            "`with smoe.nn.unsharded(model):`, in all processes"
        )


def has_process_group() -> bool:
    """Whether several processes train the model."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()
