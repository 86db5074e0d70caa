"""A process of a training is killed: the other ends in one line, and the run continues exactly.

As a program, this file is `smoe train` in which one process kills itself: the variables HIT_RANK, HIT_PLACE and
HIT_CALL name the process, the function and the number of the call of it.
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from smoe.cli.main import main
from smoe.training.run_directory import load_checkpoint

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="torch was built without distributed")

FLAGS = [
    *("heat/smoe", "--data.spatial-shape", "8", "8", "--data.num-steps", "5", "--data.num-train-runs", "64"),
    *("--data.num-validation-runs", "1", "--data.num-test-runs", "1", "--training.stop-at", "None"),
    *("--training.early-stop-patience", "100", "--training.device", "cpu", "--training.max-epochs", "3"),
]
# Rank, place and number of the call.
HITS = [
    pytest.param(0, "smoe.training.loop:by_first", 7),
    pytest.param(1, "smoe.training.loop:evaluate", 2, marks=pytest.mark.slow),
    pytest.param(0, "smoe.training.loop:by_first", 4, marks=pytest.mark.slow),
]


def launch(arguments: Sequence[str], hit: dict[str, str] | None = None) -> list[subprocess.Popen[str]]:
    """Starts two processes one by one, as SLURM does: no launcher ends those that are left."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    environment |= {"LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1", **(hit or {})}
    return [
        subprocess.Popen(
            [sys.executable, __file__, "train", *arguments],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


def complete(arguments: Sequence[str]) -> None:
    for process in launch(arguments):
        _, error = process.communicate(timeout=300)
        assert process.returncode == 0, error


@pytest.mark.parametrize(("rank", "place", "call"), HITS)
def test_the_other_process_ends_and_the_run_continues_exactly(rank: int, place: str, call: int, tmp_path: Path) -> None:
    run = tmp_path / "run"
    hit = {"HIT_RANK": str(rank), "HIT_PLACE": place, "HIT_CALL": str(call)}
    processes = launch([*FLAGS, "--output-dir", str(run)], hit)
    try:
        _, error = processes[1 - rank].communicate(timeout=300)
        assert processes[rank].wait(timeout=30) == -signal.SIGKILL
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    # Threads of gloo that lost their connection may end the interpreter's own end by an abort.
    assert processes[1 - rank].returncode in (1, -signal.SIGABRT) and "Traceback" not in error, error
    (line,) = (line for line in error.splitlines() if "smoe: error: " in line)
    assert f"process {1 - rank} has lost the connection to another one" in line
    assert re.search(r"last\.\w+ holds (no state yet|the state (before|after batch [0-9]+ of) epoch [0-9]+); ", line)

    complete(["--resume", str(run)])
    complete([*FLAGS, "--output-dir", str(tmp_path / "whole")])
    last = Path("checkpoints", "last.safetensors")
    ours, theirs = (load_checkpoint(path / last)["model"] for path in (run, tmp_path / "whole"))
    assert all(torch.equal(ours[key], value) for key, value in theirs.items())
    files = [sorted(path.name for path in (folder / "checkpoints").iterdir()) for folder in (run, tmp_path / "whole")]
    assert files[0] == files[1] == ["best.safetensors", "last.safetensors"]
    # What two processes have stored is evaluated, and continued, by one.
    assert main(["evaluate", str(run)]) == 0
    assert main(["train", "--resume", str(run), "--training.max-epochs", "4"]) == 0


def kill_at(place: str, call: int) -> None:
    """Lets this process kill itself at a call of a function, from 1."""
    folder, _, name = place.partition(":")
    module = importlib.import_module(folder)
    original, left = getattr(module, name), call

    def replacement(*arguments: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **options)

    setattr(module, name, replacement)


if __name__ == "__main__":
    if os.environ["RANK"] == os.environ.get("HIT_RANK"):
        kill_at(os.environ["HIT_PLACE"], int(os.environ["HIT_CALL"]))
    sys.exit(main())
