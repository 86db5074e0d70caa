"""Counts what the host waits for: values of tensors that it reads, and copies to a device."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Operations whose result, or the shape of it, depends on values that the host has to wait for.
READS = (
    "_local_scalar_dense",
    "item",
    "is_nonzero",
    "nonzero",
    "nonzero_numpy",
    "equal",
    "masked_select",
    "unique_dim",
    "_unique2",
    "unique_consecutive",
    "repeat_interleave",
)
COPIES = ("_to_copy", "copy_")


class CountReads(TorchDispatchMode):
    """Counts the operations that wait. A tensor on the meta device stands for one on an accelerator.

    Attributes:
        reads: Names of the operations that waited.
        num_operations: Number of all operations.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []
        self.num_operations = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        del types
        self.num_operations += 1
        name, kwargs = func._schema.name.removeprefix("aten::"), kwargs or {}
        result = func(*args, **kwargs)
        if name in READS:
            self.reads.append(func._schema.name)
        elif name in COPIES and torch.is_tensor(result) and result.is_meta:
            # From the CPU, unless the caller says that it need not be waited for.
            source, is_asynchronous = args[name == "copy_"], kwargs.get("non_blocking") or args[2:3] == (True,)
            if not source.is_meta and source.ndim > 0 and not is_asynchronous:
                self.reads.append(f"copy of {tuple(source.shape)}")
        return result
