"""Threads that share layers, forks while a thread works, and memory over many steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from faults.asked_process import AskedProcess
from faults.outcome import Kind, Outcome, TryCase


def _prepare(name: str, bad: str) -> Callable[[Path], TryCase]:
    def prepare(folder: Path) -> TryCase:
        del folder
        asked = AskedProcess(["-W", "ignore", "-m", "faults.stress", name], {"OMP_NUM_THREADS": "2"})

        def try_case(number: int) -> Outcome:
            answer = asked.ask(number)
            if isinstance(answer, Outcome):
                return answer
            return Outcome("equal" if answer == "equal" else bad, f"case {number}: {answer}")

        return try_case

    return prepare


KINDS = (
    Kind("threads", "8 threads that share layers of every geometry and gate, 400 calls each", 20,
         _prepare("threads", "silent"), is_isolated=False),
    Kind("forks", "10 forks each, while a thread trains a layer and convolves", 30, _prepare("forks", "silent"),
         is_isolated=False),
    Kind("leaks", "memory over 1,000 training steps each, 10,000 of each of five rules", 50,
         _prepare("leaks", "memory"), is_isolated=False),
)  # fmt: skip
