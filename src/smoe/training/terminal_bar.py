"""A progress bar on the error stream of a terminal, with lines above it."""

from __future__ import annotations

import sys
from typing import Any, Self

from rich.console import Console
from rich.progress import Progress, ProgressColumn


class TerminalBar:
    """Shows a progress bar while it is active; use it as a context manager.

    Args:
        columns: Columns of the bar.
        is_quiet: Show nothing.
        **options: Further arguments of `rich.progress.Progress`.
    """

    def __init__(self, *columns: ProgressColumn, is_quiet: bool = False, **options: Any) -> None:
        self.console = Console(file=sys.stderr, highlight=False, quiet=is_quiet)
        self._bar = Progress(*columns, console=self.console, transient=True, **options)

    def __enter__(self) -> Self:
        # In a log file a bar is noise.
        if self.console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self._bar.stop()

    def notify(self, text: str) -> None:
        """Prints a line above the bar."""
        self.console.print(text, markup=False, soft_wrap=True)
