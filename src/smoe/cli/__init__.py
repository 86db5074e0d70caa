"""The command line: smoe train | evaluate | show | recipes."""

from smoe.cli.main import main

__all__ = ["main"]
