"""`smoe train` that a signal hits at a certain call: run as a program by `tests/distributed/test_lost_process.py`.

The variables HIT_RANK, HIT_PLACE, HIT_CALL and HIT_SIGNAL name the process, the function, the number of the call of it
and the signal.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import Any

PLACES = {
    "before the processes meet": ("smoe.training.lost_process", "open_store"),
    "while data are made": ("smoe.experiments.runs", "check_monitor"),
    "before the first batch": ("smoe.training.loop", "load_batches"),
    "in a batch": ("smoe.training.loop", "track_loss_scale"),
    "in an evaluation": ("smoe.training.loop", "evaluate"),
    "before a part is written": ("smoe.training.sharded_model", "write_part"),
    "before parts are named": ("smoe.training.sharded_model", "by_first"),
    "before a checkpoint is written": ("smoe.training.distribution", "by_first"),
    "at the end": ("smoe.training.devices", "leave_processes"),
}


def hit_at(place: str, call: int, number: int) -> None:
    """Lets a signal hit this process at a call of a function, from 1."""
    folder, name = PLACES[place]
    module = importlib.import_module(folder)
    original, left = getattr(module, name), call

    def replacement(*arguments: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), number)
        return original(*arguments, **options)

    setattr(module, name, replacement)


if __name__ == "__main__":
    from smoe.cli.main import main

    if os.environ["RANK"] == os.environ.get("HIT_RANK"):
        hit_at(os.environ["HIT_PLACE"], int(os.environ["HIT_CALL"]), getattr(signal, os.environ["HIT_SIGNAL"]))
    sys.exit(main())
