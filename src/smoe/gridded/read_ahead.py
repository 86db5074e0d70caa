"""Reads the next block while the one before is worked on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np


def read_ahead(read: Callable[[int], np.ndarray], firsts: Iterable[int]) -> Iterator[tuple[int, np.ndarray]]:
    """Yields `first` and `read(first)`; a thread reads one block ahead, so that two blocks are held at once.

    Args:
        read: Reads the block that begins at a row; what it raises is raised where its block is due.
        firsts: First rows of the blocks, in their order.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="smoe-read") as pool:
        waiting: tuple[int, Future[np.ndarray]] | None = None
        for first in firsts:
            following = (first, pool.submit(read, first))
            if waiting is not None:
                yield waiting[0], waiting[1].result()
            waiting = following
        if waiting is not None:
            yield waiting[0], waiting[1].result()
