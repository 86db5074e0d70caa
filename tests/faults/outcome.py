"""What came of a fault."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from smoe.cli.main import _speaks_to_user

GOOD = ("refused", "read", "equal")
BAD = ("lost", "silent", "crash", "traceback", "hang", "memory")
VERDICTS = {
    "refused": "an error of one line that speaks to the user",
    "read": "the file was read: the damage changed nothing, or values that no checksum covers",
    "equal": "the result is equal, bit by bit, to that without a fault",
    "lost": "the result differs from that without a fault, or cannot be had",
    "silent": "damage that had to be noticed was not",
    "crash": "a signal such as SIGSEGV ended the process",
    "traceback": "an error that does not speak to the user",
    "hang": "no answer",
    "memory": "more memory than ten times the file and 1 GB, or memory that is not given back",
}


class Outcome(NamedTuple):
    """What came of one case.

    Attributes:
        verdict: One of `VERDICTS`.
        detail: What was done, and what was said.
    """

    verdict: str
    detail: str


TryCase = Callable[[int], Outcome]


class Kind(NamedTuple):
    """A kind of fault.

    Attributes:
        name: Short name, for the command line.
        title: What is tried.
        number: Number of cases of a whole run.
        prepare: Makes what the cases need in a folder, and returns the function that tries a case by its number.
        is_isolated: Try the cases in a process of their own, because they may crash it.
        seconds: Seconds after which a case hangs.
    """

    name: str
    title: str
    number: int
    prepare: Callable[[Path], TryCase]
    is_isolated: bool = True
    seconds: float = 300.0


def random_of(name: str, number: int) -> random.Random:
    """Random numbers of a case, the same in every run."""
    return random.Random(f"{name} {number}")


def read_or_refuse(detail: str, read: Callable[[], Any], is_right: Callable[[Any], bool] | None = None) -> Outcome:
    """Reads something that was damaged.

    Args:
        detail: What was done to it.
        read: Reads it.
        is_right: Whether a result is one that may be returned; None accepts every result.
    """
    try:
        result = read()
    except MemoryError as error:
        return Outcome("memory", f"{detail}: {error}")
    except Exception as error:  # which error it is, is what is asked
        return judge_error(detail, error)
    if is_right is not None and not is_right(result):
        return Outcome("silent", f"{detail}: read as {str(result)[:200]}")
    return Outcome("read", detail)


def judge_error(detail: str, error: Exception) -> Outcome:
    """Whether an error is one line that speaks to the user."""
    text = str(error)
    if not _speaks_to_user(error):
        where = "".join(traceback.format_exception(error)[-3:])
        return Outcome("traceback", f"{detail}: {type(error).__name__}: {text[:300]}\n{where}")
    return Outcome("refused", f"{detail}: {text[:300]}")
