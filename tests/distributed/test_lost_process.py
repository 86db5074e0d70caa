"""A process of a training is killed or stopped: the others end soon, in one line with the rank and how to continue."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import distributed

from smoe.cli.main import main
from smoe.training.checkpoint_parts import load_whole

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="torch was built without distributed")

PROGRAM = Path(__file__).parents[1] / "killed_training.py"
FLAGS = [
    *("heat/smoe", "--data.spatial-shape", "8", "8", "--data.num-steps", "5", "--data.num-train-runs", "64"),
    *("--data.num-validation-runs", "1", "--data.num-test-runs", "1", "--training.stop-at", "None"),
    *("--training.early-stop-patience", "100", "--training.device", "cpu", "--training.max-epochs", "3"),
]
# Rank, place, number of the call and signal of the hit, and how the model is held.
HITS = [
    pytest.param(0, "before parts are named", 9, "SIGKILL", "full"),
    pytest.param(1, "before a part is written", 4, "SIGKILL", "full", marks=pytest.mark.slow),
    pytest.param(1, "before the processes meet", 1, "SIGKILL", "none", marks=pytest.mark.slow),
    pytest.param(1, "while data are made", 1, "SIGKILL", "none", marks=pytest.mark.slow),
    pytest.param(0, "while data are made", 1, "SIGTERM", "full", marks=pytest.mark.slow),
    pytest.param(1, "before the first batch", 1, "SIGKILL", "full", marks=pytest.mark.slow),
    pytest.param(0, "in a batch", 5, "SIGKILL", "none", marks=pytest.mark.slow),
    pytest.param(1, "in a batch", 5, "SIGSTOP", "full", marks=pytest.mark.slow),
    pytest.param(0, "in an evaluation", 2, "SIGSTOP", "none", marks=pytest.mark.slow),
    pytest.param(1, "in an evaluation", 2, "SIGKILL", "full", marks=pytest.mark.slow),
    pytest.param(0, "before a checkpoint is written", 4, "SIGKILL", "none", marks=pytest.mark.slow),
    pytest.param(1, "at the end", 1, "SIGKILL", "full", marks=pytest.mark.slow),
    pytest.param(0, "at the end", 1, "SIGSTOP", "none", marks=pytest.mark.slow),
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
            [sys.executable, str(PROGRAM), "train", *arguments],
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


@pytest.mark.parametrize(("rank", "place", "call", "name", "sharding"), HITS)
def test_a_lost_rank_is_named_and_the_run_continues_exactly(
    rank: int, place: str, call: int, name: str, sharding: str, tmp_path: Path
) -> None:
    run, flags = tmp_path / "run", [*FLAGS, "--training.sharding", sharding]
    hit = {"HIT_RANK": str(rank), "HIT_PLACE": place, "HIT_CALL": str(call), "HIT_SIGNAL": name}
    processes = launch([*flags, "--output-dir", str(run)], hit)
    lost, other = processes[rank], processes[1 - rank]
    try:
        _, error = other.communicate(timeout=400)
        lost.kill()
        lost.communicate(timeout=30)
    finally:
        for process in processes:
            process.kill()
    assert other.returncode == 1 and "Traceback" not in error, error
    (line,) = (line for line in error.splitlines() if "smoe: error: " in line)
    if place == "before the processes meet":
        assert f"rank {1 - rank} of 2 cannot start: rank {rank} has not started within 300 s" in line
        return
    where = f"rank {1 - rank} of 2 cannot go on: rank {rank} (process {lost.pid} on {socket.gethostname()})"
    what = "has not been heard from for 30 s" if name == "SIGSTOP" else "has ended; its messages, if any, are above"
    assert f"{where} {what}" in line
    if place == "while data are made":
        assert line.endswith("last.pt holds no state yet; start all processes again with the same command")
        return
    assert re.search(r"last.pt holds (no state yet|the state (before|after batch [0-9]+ of) epoch [0-9]+); ", line)
    assert line.endswith(f"continue with: torchrun --nproc-per-node 2 -m smoe train --resume {run}")

    complete(["--resume", str(run)])
    complete([*flags, "--output-dir", str(tmp_path / "whole")])
    ours, theirs = (load_whole(path / "checkpoints" / "last.pt")["model"] for path in (run, tmp_path / "whole"))
    assert all(torch.equal(ours[key], value) for key, value in theirs.items())
    files = [sorted(path.name for path in (folder / "checkpoints").iterdir()) for folder in (run, tmp_path / "whole")]
    assert len(files[0]) == len(files[1]) == (6 if sharding == "full" else 2), files
    # What two processes have stored is evaluated, and continued, by one.
    assert main(["evaluate", str(run)]) == 0
    assert main(["train", "--resume", str(run), "--training.max-epochs", "4"]) == 0
    assert sorted(path.name for path in (run / "checkpoints").glob("last*")) == ["last.pt"]
