"""How dask reads files: one after the other, by threads, by processes, or on a running cluster."""

from __future__ import annotations

import importlib
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from smoe.child_processes import follow_parent, leaving_signals
from smoe.errors import DataError
from smoe.gridded.read_ahead import read_ahead

Item = TypeVar("Item")
Block = TypeVar("Block")

SCHEDULERS = ("serial", "threads", "processes")
# Seconds to wait for the scheduler of a cluster.
_TIMEOUT = 20


def check_scheduler(scheduler: str | None) -> None:
    """Refuses a text that is neither a name nor an address.

    Raises:
        ValueError: With what may be given.
    """
    if scheduler is not None and scheduler not in SCHEDULERS and "://" not in scheduler:
        raise ValueError(
            f"scheduler must be one of {', '.join(SCHEDULERS)}, or an address such as tcp://host:8786, got "
            f"{scheduler!r}"
        )


@dataclass(frozen=True)
class Readers:
    """Reads several things side by side.

    Attributes:
        count: How many at once.
    """

    count: int = 1

    def in_order(self, read: Callable[[Item], Block], items: Sequence[Item]) -> Iterator[tuple[Item, Block]]:
        """Yields each item and `read(item)` in their order.

        One reader reads when the item is due. Several read a group, one item each, while the group before is worked
        on: two groups are in memory at most.

        Args:
            read: Reads one item; of processes and clusters, it is sent to them.
            items: Items in their order.
        """
        if self.count == 1:
            yield from ((item, read(item)) for item in items)
            return
        groups = [items[first : first + self.count] for first in range(0, len(items), self.count)]
        for group, blocks in read_ahead(partial(_read_group, read), groups):
            yield from zip(group, blocks, strict=True)


ONE_READER = Readers()


def _read_group(read: Callable[[Item], Block], group: Sequence[Item]) -> list[Block]:
    import dask

    try:
        return list(dask.compute(*(dask.delayed(read, pure=False, traverse=False)(item) for item in group)))
    except Exception:
        # What a worker raises has its traceback in the text; read in this process, the error is the usual one.
        return [read(item) for item in group]


@contextmanager
def reading_by(scheduler: str | None) -> Iterator[Readers]:
    """Lets dask read in one way while the context lasts; what is read is the same in each.

    Args:
        scheduler: `serial`, `threads`, `processes`, or the address of a running cluster; its workers must see the
            files under the same paths. None leaves dask's own choice: threads, or a cluster that the user has
            connected to.

    Raises:
        DataError: If dask is not installed, or no cluster answers.
    """
    check_scheduler(scheduler)
    if scheduler is None:
        yield Readers()
        return
    try:
        import dask
        from dask.system import CPU_COUNT
    except ModuleNotFoundError:
        raise DataError(f"to read by {scheduler} needs dask: pip install 'smoe[fit]'") from None
    if scheduler == "processes":
        # Kept while the context lasts: a new process takes a second to import what reads the files.
        with (
            _started_pool(CPU_COUNT) as pool,
            dask.config.set(scheduler="processes", pool=pool),
        ):
            yield Readers(CPU_COUNT)
    elif scheduler == "serial":
        with dask.config.set(scheduler="synchronous"):
            yield Readers()
    elif scheduler == "threads":
        with dask.config.set(scheduler="threads"):
            yield Readers(CPU_COUNT)
    else:
        client = _connect(scheduler)
        try:
            with dask.config.set(scheduler=client):
                yield Readers(max(1, sum(client.nthreads().values())))
        finally:
            client.close()


def _started_pool(count: int) -> ProcessPoolExecutor:
    """A pool whose processes leave signals to this one, and end with it."""
    pool = ProcessPoolExecutor(
        count, multiprocessing.get_context("spawn"), initializer=follow_parent, initargs=(os.getpid(),)
    )
    with leaving_signals():
        # The first task starts all processes.
        pool.submit(int)
    return pool


def _connect(address: str) -> Any:
    try:
        client = importlib.import_module("distributed.client")
    except ModuleNotFoundError:
        raise DataError(f"to read on the cluster {address} needs distributed: pip install 'smoe[cluster]'") from None
    try:
        return client.Client(address, timeout=_TIMEOUT, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise DataError(
            f"no cluster answers at {address} ({' '.join(str(error).split())}): start one with `dask scheduler` and "
            "`dask worker`, or choose threads or processes"
        ) from error
