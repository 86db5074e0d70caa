"""The command line: smoe fit | predict | report, and what other distributions add."""

from smoe.cli.main import main

__all__ = ["main"]
