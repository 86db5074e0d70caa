"""A process of a training is killed: the others end soon, in one line with the rank and the command to resume."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch import distributed

from smoe.cli.main import main

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="torch was built without distributed")


def test_the_dead_rank_is_named_with_the_command_to_resume(tmp_path: Path) -> None:
    run = tmp_path / "run"
    flags = ["heat/smoe", "--output-dir", str(run), "--data.spatial-shape", "8", "8", "--data.num-steps", "5"]
    flags += ["--data.num-train-runs", "64", "--training.max-epochs", "100000", "--training.device", "cpu"]
    flags += ["--data.num-validation-runs", "1", "--data.num-test-runs", "1", "--training.stop-at", "None"]
    flags += ["--training.early-stop-patience", "100000"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # The processes are started one by one, as SLURM does: no launcher ends those that are left.
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    environment |= {"LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "smoe", "train", *flags],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        until = time.monotonic() + 300
        while not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").stat().st_size:
            assert time.monotonic() < until and all(process.poll() is None for process in processes)
            time.sleep(0.05)
        os.kill(processes[1].pid, signal.SIGKILL)
        processes[1].communicate(timeout=30)
        _, error = processes[0].communicate(timeout=60)
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [1, -signal.SIGKILL]
    assert "Traceback" not in error
    line = next(line for line in error.splitlines() if "smoe: error: " in line)
    assert f"rank 0 of 2 cannot go on: rank 1 (process {processes[1].pid} on {socket.gethostname()}) has ended" in line
    assert re.search(r"last.pt holds the state (before|after batch [0-9]+ of) epoch [0-9]+; continue with: ", line)
    assert line.endswith(f"torchrun --nproc-per-node 2 -m smoe train --resume {run}")
    num_epochs = len((run / "metrics.jsonl").read_text().splitlines())
    assert main(["train", "--resume", str(run), "--training.max-epochs", str(num_epochs + 1)]) == 0
