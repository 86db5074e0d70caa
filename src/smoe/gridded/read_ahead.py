"""Reads the next block while the one before is worked on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Block = TypeVar("Block")


def read_ahead(read: Callable[[Item], Block], items: Iterable[Item]) -> Iterator[tuple[Item, Block]]:
    """Yields `item` and `read(item)`; a thread reads one block ahead, so that two blocks are held at once.

    Args:
        read: Reads a block, such as the one that begins at a row; what it raises is raised where its block is due.
        items: What the blocks are read by, in their order.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="smoe-read") as pool:
        waiting: tuple[Item, Future[Block]] | None = None
        for item in items:
            following = (item, pool.submit(read, item))
            if waiting is not None:
                yield waiting[0], waiting[1].result()
            waiting = following
        if waiting is not None:
            yield waiting[0], waiting[1].result()
