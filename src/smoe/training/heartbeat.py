"""Notices that another process of a training is no longer heard from, such as one on a host that was cut off.

A collective operation waits for a silent process for as long as the time limit of the process group, half an hour by
default: it cannot tell one that is slow, as while a checkpoint is written, from one that is gone. Here each process
counts up a number of its own in the store of the process group, from a thread, whatever the main thread does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

# Seconds between two beats, and seconds without one after which a process is lost.
INTERVAL = 3.0
LIMIT = 30.0
# A pause of this process that is longer, as of a computer that slept, does not count against the others.
_LONGEST_PAUSE = 5.0
_LEFT = b"left"


class Heartbeat:
    """Tells the other processes that this one lives, and finds those that are silent.

    Every process must make one, and then meet the others in a collective operation before `start`.

    Args:
        rank: Number of this process.
        num_processes: Number of processes.
        on_silence: Called once, by a thread, with the ranks that have been silent for `LIMIT` seconds.
    """

    def __init__(self, rank: int, num_processes: int, on_silence: Callable[[Sequence[int]], None]) -> None:
        self._rank, self._on_silence = rank, on_silence
        self._others = [other for other in range(num_processes) if other != rank]
        # A connection of its own: the main thread may wait in the other one.
        store: Any = torch.distributed.distributed_c10d._get_default_store()
        self._store = store.clone()
        self._heard = dict.fromkeys(self._others, time.monotonic())
        self._ended = threading.Event()
        self._store.set(_key(rank), "0")

    def start(self) -> None:
        """Begins to beat and to listen."""
        self._heard = dict.fromkeys(self._others, time.monotonic())
        # Two threads: the store of a host that was cut off does not answer.
        for work in (self._beat, self._watch):
            threading.Thread(target=work, name="smoe-heartbeat", daemon=True).start()

    def stop(self, *, is_done: bool) -> None:
        """Ends the threads.

        Args:
            is_done: This process needs the others no more, and they must not miss it.
        """
        self._ended.set()
        if is_done:
            try:
                self._store.set(_key(self._rank), _LEFT)
            except RuntimeError:
                # The process that holds the store has left already.
                return

    def silent(self, seconds: float) -> list[int]:
        """The ranks that have not been heard from for so many seconds."""
        now = time.monotonic()
        return [rank for rank, heard in self._heard.items() if now - heard > seconds]

    def _beat(self) -> None:
        seen: dict[int, bytes] = {}
        number = 0
        while not self._ended.wait(INTERVAL):
            number += 1
            try:
                self._store.set(_key(self._rank), str(number))
                values = self._store.multi_get([_key(rank) for rank in self._others])
            except RuntimeError:
                # The store is gone, or does not answer: nobody is heard.
                continue
            now = time.monotonic()
            for rank, value in zip(self._others, values, strict=True):
                if value != seen.get(rank) or value == _LEFT:
                    seen[rank], self._heard[rank] = value, now

    def _watch(self) -> None:
        looked = time.monotonic()
        while not self._ended.wait(1.0):
            pause = time.monotonic() - looked
            looked += pause
            if pause > _LONGEST_PAUSE:
                self._heard = {rank: heard + pause for rank, heard in self._heard.items()}
            silent = self.silent(LIMIT)
            if silent:
                self._on_silence(silent)
                return


def _key(rank: int) -> str:
    return f"smoe/heartbeat/{rank}"
