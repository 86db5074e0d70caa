"""The state of a training rule, which starts anew where a state_dict holds that of another rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import nn

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
