"""A process of a training is killed: the other ends in one line, and the run continues exactly.

As a program, this file is `smoe train`, in which the first process kills itself if the variable KILLED is set.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import distributed

from resumable_training import free_port
from smoe.cli.main import main
from smoe.training import loop
from smoe.training.run_directory import load_checkpoint

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="torch was built without distributed")

FLAGS = [
    *("heat/smoe", "--data.spatial-shape", "8", "8", "--data.num-steps", "5", "--data.num-train-runs", "64"),
    *("--data.num-validation-runs", "1", "--data.num-test-runs", "1", "--training.stop-at", "None"),
    *("--training.early-stop-patience", "100", "--training.device", "cpu", "--training.max-epochs", "3"),
]


def launch(arguments: Sequence[str], **more: str) -> list[subprocess.Popen[str]]:
    """Starts two processes one by one, as SLURM does: no launcher ends those that are left."""
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    environment |= {"LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), **more}
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


def test_the_other_process_ends_and_the_run_continues_exactly(tmp_path: Path) -> None:
    run = tmp_path / "run"
    processes = launch([*FLAGS, "--output-dir", str(run)], KILLED="yes")
    try:
        _, error = processes[1].communicate(timeout=300)
        assert processes[0].wait(timeout=30) == -signal.SIGKILL
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    # Threads of gloo that lost their connection may end the interpreter's own end by an abort.
    assert processes[1].returncode in (1, -signal.SIGABRT) and "Traceback" not in error, error
    (line,) = (line for line in error.splitlines() if "smoe: error: " in line)
    assert "process 1 has lost the connection to another one" in line
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


if __name__ == "__main__":
    if "KILLED" in os.environ and os.environ["RANK"] == "0":
        # Of the calls of this function, the seventh is in the middle of the training.
        original, calls = loop.from_main_process, itertools.count(1)
        loop.from_main_process = lambda *given: (
            os.kill(os.getpid(), signal.SIGKILL) if next(calls) == 7 else original(*given)
        )
    sys.exit(main())
