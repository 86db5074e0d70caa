"""A process of a distributed training that has ended: which one, where its messages are, and how to continue."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from smoe.training.heartbeat import INTERVAL, LIMIT, Heartbeat
from smoe.training.run_directory import RunDirectory

# What gloo, NCCL and the store of a process group write when the other end of a connection is gone.
_CONNECTION = re.compile(r"gloo|nccl|connection (closed|reset|refused)|broken pipe|timed out|socket", re.IGNORECASE)
# A process of another host that has missed two beats after a connection broke is lost.
_SILENCE = 2.5 * INTERVAL
# A launcher collects a killed process within some tenths of a second; until then it looks alive.
_PATIENCE = _SILENCE + INTERVAL


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


@dataclass(frozen=True)
class Lost:
    """A process that is lost.

    Attributes:
        member: The process.
        silence: Seconds for which nothing was heard from it; None if it has ended.
    """

    member: Member
    silence: float | None

    def __str__(self) -> str:
        member = self.member
        if self.silence is None:
            return f"rank {member.rank} (process {member.process}) has ended; {_log_of(member)}"
        return (
            f"rank {member.rank} (process {member.process} on {member.host}) has not been heard from for "
            f"{self.silence:.0f} s; its messages are on that host"
        )


@contextmanager
def name_lost_processes(accelerator: Accelerator, run: RunDirectory, stored: Callable[[], str]) -> Iterator[None]:
    """Turns the loss of another process into one line. Every process must enter it.

    A connection that breaks raises an error in the operation that needs it. A host that was cut off breaks no
    connection: if nothing is heard from a process for `heartbeat.LIMIT` seconds, this process writes the line and ends
    at once, because its main thread may wait in an operation that nothing else can end.

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
    rank = accelerator.process_index

    def message(lost: Sequence[Lost]) -> str:
        return (
            f"rank {rank} of {len(members)} cannot go on: {_describe(lost)}; {run.last_checkpoint} holds {stored()}; "
            f"continue with: {_resume_command(members, lost, run)}"
        )

    def end(silent: Sequence[int]) -> None:
        lost = [Lost(members[other], LIMIT) for other in silent]
        # Without the host that holds the store, nobody is heard, not even a process of this host.
        lost = [each for each in lost if not each.member.is_here] or lost
        sys.stderr.write(f"smoe: error: {message(lost)}\n")
        sys.stderr.flush()
        os._exit(1)

    heartbeat = Heartbeat(rank, accelerator.num_processes, end)
    members = _gather_members(accelerator)
    heartbeat.start()
    is_done = False
    try:
        yield
        is_done = True
    except RuntimeError as error:
        if not (isinstance(error, torch.distributed.DistError) or _CONNECTION.search(str(error))):
            raise
        others = [member for member in members if member.rank != rank]
        raise LostProcessError(message(_find_lost(others, heartbeat))) from error
    finally:
        heartbeat.stop(is_done=is_done)


def _gather_members(accelerator: Accelerator) -> list[Member]:
    mine = Member(accelerator.process_index, accelerator.local_process_index, socket.gethostname(), os.getpid())
    members: list[Any] = [None] * accelerator.num_processes
    torch.distributed.all_gather_object(members, mine)
    return members


def _find_lost(others: Sequence[Member], heartbeat: Heartbeat) -> list[Lost]:
    """The processes of this host that have ended, or those of other hosts that are silent; waits a little for them."""
    until = time.monotonic() + _PATIENCE
    while True:
        lost = [Lost(member, None) for member in others if member.has_ended()]
        silent = heartbeat.silent(_SILENCE)
        lost += [Lost(member, _SILENCE) for member in others if member.rank in silent and not member.is_here]
        if lost or time.monotonic() > until:
            return lost
        time.sleep(0.05)


def _describe(lost: Sequence[Lost]) -> str:
    if not lost:
        return "the connection to a process that hangs is lost, or to one of another host; its messages are there"
    return ", ".join(map(str, lost))


def _log_of(member: Member) -> str:
    """Where the messages of a process are. torchrun names the file for errors of each process, in a folder for each."""
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if error_file:
        log = Path(error_file).parents[1] / str(member.local_rank) / "stderr.log"
        if log.is_file():
            return f"its log is {log}"
    return "its messages, if any, are above (torchrun --redirects 3 --log-dir FOLDER keeps them in files)"


def _resume_command(members: Sequence[Member], lost: Sequence[Lost], run: RunDirectory) -> str:
    """The command for the hosts that are left, as many processes on each as on this one."""
    gone = {each.member.host for each in lost if not each.member.is_here}
    hosts = [host for host in dict.fromkeys(member.host for member in members) if host not in gone]
    here = sum(member.is_here for member in members)
    nodes = ""
    if len(hosts) > 1:
        nodes = f"--nnodes {len(hosts)} --rdzv-backend c10d --rdzv-endpoint {hosts[0]}:29500 "
    return f"torchrun {nodes}--nproc-per-node {here} -m smoe train --resume {run.path}"


def _is_zombie(process: int) -> bool:
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    # The state follows the name, which is in brackets and may hold anything.
    return status.rpartition(")")[2].split()[:1] == ["Z"]
