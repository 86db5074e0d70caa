"""`smoe train` under a launcher, in so many processes, and the record it leaves."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from smoe.cli.main import main


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def train(arguments: Sequence[str], *, num_processes: int) -> str:
    """Runs the command; returns what the processes printed, or nothing if there is one only: that runs in this one."""
    if num_processes == 1:
        assert main(["train", *arguments]) == 0
        return ""
    launcher = ["torch.distributed.run", f"--nproc-per-node={num_processes}", f"--master-port={free_port()}"]
    command = [sys.executable, "-m", *launcher, "-m", "smoe", "train", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert result.returncode == 0, result.stderr
    return result.stdout


def history(output_dir: Path) -> list[dict[str, float]]:
    """The records of a run."""
    return [json.loads(line) for line in (output_dir / "metrics.jsonl").read_text().splitlines()]
