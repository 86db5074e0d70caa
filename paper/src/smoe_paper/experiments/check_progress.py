"""A progress bar for the check of data sets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

# Receives how much is done, of how much, and what is under way.
Show = Callable[[int, int, str], None]


@contextlib.contextmanager
def check_progress() -> Iterator[Show]:
    """Shows a bar on the standard error while data are checked."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("opening files", total=None)

        def show(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)

        yield show


def make_console() -> Console:
    """A console for reports: nothing is highlighted, folded or read as markup."""
    return Console(highlight=False, soft_wrap=True, markup=False)
