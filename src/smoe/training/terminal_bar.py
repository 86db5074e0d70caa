"""A progress bar on the error stream, seen only where somebody watches, with lines above it."""

from __future__ import annotations

import sys
from typing import Any, Self

from rich.console import Console
from rich.progress import Progress, ProgressColumn


class TerminalBar:
    """Owns the bar of a long work; use it as a context.

    Args:
        columns: of the bar.
        is_quiet: show nothing at all.
        **options: further ones of `rich.progress.Progress`.
    """

    def __init__(self, *columns: ProgressColumn, is_quiet: bool = False, **options: Any) -> None:
        self.console = Console(file=sys.stderr, highlight=False, quiet=is_quiet)
        self._bar = Progress(*columns, console=self.console, transient=True, **options)

    def __enter__(self) -> Self:
        # Where nobody watches, in a log file, a bar is noise.
        if self.console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self._bar.stop()

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        self.console.print(text, markup=False, soft_wrap=True)
