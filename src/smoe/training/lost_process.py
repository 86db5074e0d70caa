"""A process of a distributed training that has ended: which one, where its messages are, and how to continue."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from smoe.training.run_directory import RunDirectory

# What gloo, NCCL and the store of a process group write when the other end of a connection is gone.
_CONNECTION = re.compile(r"gloo|nccl|connection (closed|reset|refused)|broken pipe|timed out|socket", re.IGNORECASE)
# A launcher collects a killed process within some tenths of a second; until then it looks alive.
_PATIENCE = 3.0


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

    def has_ended(self) -> bool:
        """Whether the process has ended, as far as this host can tell."""
        if self.host != socket.gethostname():
            return False
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return _is_zombie(self.process)


@contextmanager
def name_lost_processes(accelerator: Accelerator, run: RunDirectory, stored: Callable[[], str]) -> Iterator[None]:
    """Turns the error of a broken connection between processes into one line. Every process must enter it.

    Args:
        accelerator: Accelerator of the run.
        run: Directory of the run.
        stored: Returns what the last checkpoint holds, in words.

    Raises:
        LostProcessError: If the connection to another process broke.
    """
    if accelerator.num_processes == 1:
        yield
        return
    members = _gather_members(accelerator)
    others = [member for member in members if member.rank != accelerator.process_index]
    try:
        yield
    except RuntimeError as error:
        if not (isinstance(error, torch.distributed.DistError) or _CONNECTION.search(str(error))):
            raise
        raise LostProcessError(
            f"rank {accelerator.process_index} of {len(members)} cannot go on: {_describe(_find_ended(others))}; "
            f"{run.last_checkpoint} holds {stored()}; continue with: {_resume_command(members, run)}"
        ) from error


def _gather_members(accelerator: Accelerator) -> list[Member]:
    mine = Member(accelerator.process_index, accelerator.local_process_index, socket.gethostname(), os.getpid())
    members: list[Any] = [None] * accelerator.num_processes
    torch.distributed.all_gather_object(members, mine)
    return members


def _find_ended(others: Sequence[Member]) -> list[Member]:
    """The processes of this host that have ended; waits a little for the first one."""
    until = time.monotonic() + _PATIENCE
    while True:
        ended = [member for member in others if member.has_ended()]
        if ended or time.monotonic() > until:
            return ended
        time.sleep(0.05)


def _describe(ended: Sequence[Member]) -> str:
    if not ended:
        return "the connection to a process of another host, or to one that hangs, is lost; its messages are there"
    parts = [f"rank {member.rank} (process {member.process}) has ended; {_log_of(member)}" for member in ended]
    return ", ".join(parts)


def _log_of(member: Member) -> str:
    """Where the messages of a process are. torchrun names the file for errors of each process, in a folder for each."""
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if error_file:
        log = Path(error_file).parents[1] / str(member.local_rank) / "stderr.log"
        if log.is_file():
            return f"its log is {log}"
    return "its messages, if any, are above (torchrun --redirects 3 --log-dir FOLDER keeps them in files)"


def _resume_command(members: Sequence[Member], run: RunDirectory) -> str:
    here = sum(member.host == socket.gethostname() for member in members)
    hosts = len({member.host for member in members})
    nodes = f"--nnodes {hosts} " if hosts > 1 else ""
    return f"torchrun {nodes}--nproc-per-node {here} -m smoe train --resume {run.path}"


def _is_zombie(process: int) -> bool:
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    # The state follows the name, which is in brackets and may hold anything.
    return status.rpartition(")")[2].split()[:1] == ["Z"]
