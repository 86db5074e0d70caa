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

from smoe.training.roll_call import Member

# Seconds between two beats, and seconds without one after which a process is lost. A process that prepares its data
# may be in a call that lets no other thread work.
INTERVAL = 3.0
LIMIT = 30.0
PREPARATION_LIMIT = 300.0
# A process of this host that has ended, and has not said that it leaves, is lost after two beats.
_PATIENCE = 2.5 * INTERVAL
# A pause of this process that is longer, as of a computer that slept, does not count against the others.
_LONGEST_PAUSE = 5.0
_LEFT = b"left"


class Heartbeat:
    """Tells the other processes that this one lives, and finds those that are silent or have ended.

    Args:
        rank: Number of this process.
        members: All processes.
        store: Connection to the store of the processes, which nothing else uses.
        on_loss: Called once, by a thread, with the ranks that are lost.

    Attributes:
        limit: Seconds without a beat after which a process is lost.
    """

    def __init__(
        self, rank: int, members: Sequence[Member], store: Any, on_loss: Callable[[Sequence[int]], None]
    ) -> None:
        self.limit = PREPARATION_LIMIT
        self._rank, self._store, self._on_loss = rank, store, on_loss
        self._others = [member for member in members if member.rank != rank]
        self._heard = {member.rank: time.monotonic() for member in self._others}
        self._left: set[int] = set()
        self._ended = threading.Event()

    def start(self) -> None:
        """Begins to beat and to listen."""
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
        number, is_complete = 0, False
        while not self._ended.wait(INTERVAL if number else 0.0):
            number += 1
            try:
                self._store.set(_key(self._rank), str(number))
                # To read a name that does not exist yet would wait for it.
                keys = [_key(member.rank) for member in self._others]
                is_complete = is_complete or self._store.check(keys)
                values = self._store.multi_get(keys) if is_complete else []
            except RuntimeError:
                # The store is gone, or does not answer: nobody is heard.
                continue
            now = time.monotonic()
            for member, value in zip(self._others, values, strict=False):
                if value == _LEFT:
                    self._left.add(member.rank)
                if value != seen.get(member.rank) or value == _LEFT:
                    seen[member.rank], self._heard[member.rank] = value, now

    def _watch(self) -> None:
        looked = time.monotonic()
        ended: dict[int, float] = {}
        while not self._ended.wait(1.0):
            pause = time.monotonic() - looked
            looked += pause
            if pause > _LONGEST_PAUSE:
                self._heard = {rank: heard + pause for rank, heard in self._heard.items()}
            for member in self._others:
                if member.rank not in self._left and member.has_ended():
                    ended.setdefault(member.rank, looked)
            lost = [rank for rank, since in ended.items() if rank not in self._left and looked - since > _PATIENCE]
            lost = lost or self.silent(self.limit)
            if lost and not self._ended.is_set():
                self._on_loss(lost)
                return


def _key(rank: int) -> str:
    return f"heartbeat/{rank}"
