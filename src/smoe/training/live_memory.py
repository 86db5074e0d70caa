"""The memory of tensors: how many bytes live at once, for real tensors and for those that have shapes only."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveMemory(TorchDispatchMode):
    """Counts the bytes of all tensors that operations return while the mode is active, from first use to last.

    On the meta device nothing is computed or allocated: the count is that of a computation that was not made.

    Attributes:
        current: Bytes of the tensors that live now.
        peak: Largest number of them so far.
        operations: Number of calls of each operator that this library adds, with the shapes of its tensors.
    """

    def __init__(self) -> None:
        super().__init__()
        self.current = self.peak = 0
        self.operations: dict[tuple[Any, ...], int] = {}
        self._known: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        del types
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor.untyped_storage())
        self.peak = max(self.peak, self.current)
        if func.namespace == "smoe":
            shapes = tuple(tuple(part.shape) for part in tree_leaves((args, kwargs)) if isinstance(part, torch.Tensor))
            key = (func._schema.name.removeprefix("smoe::"), *shapes)
            self.operations[key] = self.operations.get(key, 0) + 1
        return result

    def _note(self, storage: torch.UntypedStorage) -> None:
        # A storage has one Python object for as long as it lives.
        number, size = id(storage), storage.nbytes()
        if number in self._known:
            return

        def forget(_: object) -> None:
            del self._known[number]
            self.current -= size

        self._known[number] = weakref.ref(storage, forget)
        self.current += size


def peak_bytes() -> int:
    """The largest number of bytes of memory that this process has held; 0 where the system does not say."""
    return _kilobytes("/proc/self/status", "VmHWM") * 1024


def available_bytes() -> int | None:
    """Bytes of memory that this machine, or the container of this process, can still give; None if it does not say."""
    found = _kilobytes("/proc/meminfo", "MemAvailable") * 1024
    try:
        limit, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current"))
        found = min(found, limit - used) if found else limit - used
    except (OSError, ValueError):  # no container, or one without a limit
        pass
    return found or None


def _kilobytes(file: str, name: str) -> int:
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)
