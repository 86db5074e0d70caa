"""Which processes take part in a training: each enters its name before any of them waits for another."""

from __future__ import annotations

import itertools
import os
import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

# Seconds that the processes of a training wait for each other at its start. A launcher starts them together.
START_LIMIT = 300.0
# Names in the store are those of one watch; a process may train several times.
_number = itertools.count()


class LostProcessError(Exception):
    """Another process of the training has ended, and this one cannot go on."""


@dataclass(frozen=True)
class Member:
    """One of the processes of a training.

    Attributes:
        rank: Number among all processes.
        local_rank: Number among the processes of its host.
        host: Name of its host.
        process: Process identifier on its host.
    """

    rank: int
    local_rank: int
    host: str
    process: int

    @property
    def is_here(self) -> bool:
        """Whether the process runs on this host."""
        return self.host == socket.gethostname()

    def has_ended(self) -> bool:
        """Whether the process has ended, as far as this host can tell."""
        if not self.is_here:
            return False
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return _is_zombie(self.process)


def find_processes() -> tuple[int, int]:
    """The number of this process and of all, by the process group or the environment of a launcher."""
    if torch.distributed.is_available():
        if torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        if all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
            return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return 0, 1


def open_store(rank: int, num_processes: int) -> Any:
    """A connection of its own to the store of the processes, under names that no earlier training has used.

    Raises:
        LostProcessError: If the process that holds the store cannot be reached.
    """
    prefix = f"smoe/{next(_number)}"
    if torch.distributed.is_initialized():
        store: Any = torch.distributed.distributed_c10d._get_default_store()
        return torch.distributed.PrefixStore(prefix, store.clone())
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    # torchrun holds the store itself; otherwise the first process does, and shares it with its process group.
    is_holder = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        store = torch.distributed.TCPStore(
            host, port, is_master=is_holder, timeout=timedelta(seconds=START_LIMIT), wait_for_workers=False,
            multi_tenant=True,
        )  # fmt: skip
    except torch.distributed.DistError as error:
        raise LostProcessError(
            f"rank {rank} of {num_processes} cannot start: nothing answers at {host}:{port}, where the processes meet; "
            "look at the messages of rank 0, and start all processes again with the same command"
        ) from error
    return torch.distributed.PrefixStore(prefix, store)


def call_roll(store: Any, rank: int, num_processes: int) -> list[Member]:
    """Enters this process, waits for the others, and returns all of them.

    Raises:
        LostProcessError: If a process is still missing after `START_LIMIT` seconds, or has ended in the meantime.
    """
    members: dict[int, Member] = {}
    until = time.monotonic() + START_LIMIT
    try:
        store.set(_key(rank), f"{os.environ.get('LOCAL_RANK', rank)} {os.getpid()} {socket.gethostname()}")
        while len(members) < num_processes and time.monotonic() < until:
            for other in set(range(num_processes)) - members.keys():
                if store.check([_key(other)]):
                    local_rank, process, host = store.get(_key(other)).decode().split(" ", 2)
                    members[other] = Member(other, int(local_rank), host, int(process))
            ended = [member.rank for member in members.values() if member.has_ended()]
            if ended:
                raise LostProcessError(_cannot_start(rank, num_processes, ended, "has ended"))
            time.sleep(0.02)
    except torch.distributed.DistError as error:
        # The process that holds the store has waited as long as this one, and ended.
        missing = [other for other in range(num_processes) if other not in (*members, rank)] or [0]
        raise LostProcessError(_cannot_start(rank, num_processes, missing, "has ended, or has not started")) from error
    if len(members) < num_processes:
        missing = [other for other in range(num_processes) if other not in members]
        what = f"has not started within {START_LIMIT:.0f} s"
        raise LostProcessError(_cannot_start(rank, num_processes, missing, what))
    return [members[other] for other in range(num_processes)]


def _cannot_start(rank: int, num_processes: int, others: list[int], what: str) -> str:
    names = ", ".join(map(str, others))
    return (
        f"rank {rank} of {num_processes} cannot start: rank {names} {what}; look at its messages, and start all "
        "processes again with the same command"
    )


def _key(rank: int) -> str:
    return f"member/{rank}"


def _is_zombie(process: int) -> bool:
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    # The state follows the name, which is in brackets and may hold anything.
    return status.rpartition(")")[2].split()[:1] == ["Z"]
