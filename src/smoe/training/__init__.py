"""One training loop for every task, with its checkpoints and run directory.

Also what recipes and results of one's own need: files that survive a kill, locks, and dataclasses as JSON, checked.
"""

from smoe._files import FileLock, LockedError, temporary_folder, write_atomically
from smoe._json import RecipeError, from_plain, is_path, shorten, to_plain, type_hints
from smoe.errors import Interrupted, stopped_code

__all__ = [
    "FileLock",
    "Interrupted",
    "LockedError",
    "RecipeError",
    "from_plain",
    "is_path",
    "shorten",
    "stopped_code",
    "temporary_folder",
    "to_plain",
    "type_hints",
    "write_atomically",
]
