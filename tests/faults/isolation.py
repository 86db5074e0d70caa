"""Tries cases in a forked process: a crash ends that process, is recorded, and the next case is tried in another."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

from faults.outcome import Outcome, TryCase
from smoe.file_claims import ALLOWANCE

# Beside the allowance for a file: what a process takes by itself while it works.
_OWN_MEMORY = 500_000_000
# Seconds that preparing may take.
_PREPARING = 600.0


def try_isolated(prepare: Callable[[], TryCase], numbers: range, seconds: float) -> Iterator[Outcome]:
    """Yields the outcomes of the cases, in their order.

    Args:
        prepare: Makes what the cases need, and returns the function that tries one. It is called in the forked process
            too, because reading libraries start threads, which are not forked.
        numbers: Numbers of the cases.
        seconds: Seconds after which a case hangs.
    """
    place = 0
    while place < len(numbers):
        first = place
        ours, theirs = Pipe(duplex=False)
        child = os.fork()
        if child == 0:
            ours.close()
            _work(prepare, numbers[place:], cast(Connection, theirs))
        theirs.close()
        while place < len(numbers):
            if not ours.poll(seconds + (_PREPARING if place == first else 0.0)):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                yield Outcome("hang", f"case {numbers[place]}: no answer within {seconds:.0f} s")
                place += 1
                break
            try:
                outcome = Outcome(*ours.recv())
                if outcome.verdict == "failed":
                    raise RuntimeError(f"the cases could not be prepared: {outcome.detail}")
                yield outcome
            except EOFError:
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                yield Outcome("crash", f"case {numbers[place]}: its process ended with {code}")
                place += 1
                break
            place += 1
        else:
            os.waitpid(child, 0)
        ours.close()


def _work(prepare: Callable[[], TryCase], numbers: range, connection: Connection) -> None:
    try:
        try:
            try_case = prepare()
        except Exception as error:
            # What the cases need could not be made: no case was tried.
            connection.send(("failed", repr(error)))
            raise
        _bound_memory()
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 1)
        os.dup2(devnull, 2)
        for number in numbers:
            connection.send(tuple(try_case(number)))
    except BaseException:  # nothing of the process that forked may run here
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _bound_memory() -> None:
    import resource

    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limit = in_use + ALLOWANCE + _OWN_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
