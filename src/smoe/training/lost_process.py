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

import torch

from smoe.training.heartbeat import INTERVAL, LIMIT, Heartbeat
from smoe.training.roll_call import LostProcessError, Member, call_roll, find_processes, open_store
from smoe.training.run_directory import RunDirectory

# What gloo, NCCL and the store of a process group write when the other end of a connection is gone.
_CONNECTION = re.compile(r"gloo|nccl|connection (closed|reset|refused)|broken pipe|timed out|socket", re.IGNORECASE)
# A process of another host that has missed two beats after a connection broke is lost.
_SILENCE = 2.5 * INTERVAL
# A launcher collects a killed process within some tenths of a second; until then it looks alive.
_PATIENCE = _SILENCE + INTERVAL


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
        name = f"rank {member.rank} (process {member.process} on {member.host})"
        if self.silence is None:
            return f"{name} has ended; {_log_of(member)}"
        return f"{name} has not been heard from for {self.silence:.0f} s; its messages are on that host"


class WatchedProcesses:
    """The processes of a training, which hear from each other.

    Args:
        run: Directory of the run.
        rank: Number of this process.
        num_processes: Number of processes. Nothing is watched if there is one.

    Attributes:
        stored: Returns what the last checkpoint holds, in words.

    Raises:
        LostProcessError: If a process does not start.
    """

    def __init__(self, run: RunDirectory, rank: int, num_processes: int) -> None:
        self._run, self._rank = run, rank
        has_begun = run.last_checkpoint.exists()
        self.stored: Callable[[], str] = lambda: "what it held before" if has_begun else "no state yet"
        self._heartbeat: Heartbeat | None = None
        self._members: list[Member] = []
        if num_processes > 1:
            store = open_store(rank, num_processes)
            self._members = call_roll(store, rank, num_processes)
            self._heartbeat = Heartbeat(rank, self._members, store, self._end)
            self._heartbeat.start()

    @property
    def are_several(self) -> bool:
        """Whether there are processes to watch."""
        return self._heartbeat is not None

    def begin_training(self) -> None:
        """Ends the preparation, in which a process may be silent for longer."""
        if self._heartbeat is not None:
            self._heartbeat.limit = LIMIT

    def stop(self, *, is_done: bool) -> None:
        """Ends the watch; the arguments are those of `Heartbeat.stop`."""
        if self._heartbeat is not None:
            self._heartbeat.stop(is_done=is_done)

    def explain(self) -> str:
        """Why an operation with the other processes failed, in one line."""
        assert self._heartbeat is not None
        others = [member for member in self._members if member.rank != self._rank]
        return self._message(_find_lost(others, self._heartbeat))

    def _end(self, ranks: Sequence[int]) -> None:
        assert self._heartbeat is not None
        members = [self._members[rank] for rank in ranks]
        lost = [Lost(member, None if member.has_ended() else self._heartbeat.limit) for member in members]
        # Without the host that holds the store, nobody is heard, not even a process of this host.
        lost = [each for each in lost if each.silence is None or not each.member.is_here] or lost
        sys.stderr.write(f"smoe: error: {self._message(lost)}\n")
        sys.stderr.flush()
        os._exit(1)

    def _message(self, lost: Sequence[Lost]) -> str:
        run = self._run
        remedy = "start all processes again with the same command"
        if run.recipe_file.exists():
            remedy = f"continue with: {_resume_command(self._members, lost, run)}"
        return (
            f"rank {self._rank} of {len(self._members)} cannot go on: {_describe(lost)}; {run.last_checkpoint} holds "
            f"{self.stored()}; {remedy}"
        )


@contextmanager
def watch_processes(run: RunDirectory) -> Iterator[WatchedProcesses]:
    """Turns the loss of another process into one line. Every process must enter it.

    A connection that breaks raises an error in the operation that needs it. A host that was cut off breaks no
    connection: if nothing is heard from a process for `heartbeat.LIMIT` seconds, this process writes the line and ends
    at once, because its main thread may wait in an operation that nothing else can end. The same happens within
    seconds if a process of this host ends while this one needs no connection to it, as at the start.

    Args:
        run: Directory of the run.

    Raises:
        LostProcessError: If a process does not start, or the connection to another process broke.
    """
    processes = WatchedProcesses(run, *find_processes())
    is_done = False
    try:
        yield processes
        is_done = True
    except RuntimeError as error:
        is_connection = isinstance(error, torch.distributed.DistError) or _CONNECTION.search(str(error))
        if not (processes.are_several and is_connection):
            raise
        raise LostProcessError(processes.explain()) from error
    finally:
        processes.stop(is_done=is_done)


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
        # Every host that is left prints its own number.
        number = next(number for number, host in enumerate(hosts) if host == socket.gethostname())
        nodes = f"--nnodes {len(hosts)} --node-rank {number} --master-addr {hosts[0]} --master-port 29500 "
    return f"torchrun {nodes}--nproc-per-node {here} -m smoe train --resume {run.path}"
