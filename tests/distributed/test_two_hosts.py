"""Two hosts train together; one of them is cut off; the other one ends with a message, and continues alone."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed

from launched_training import history, train
from smoe.cli.main import main
from smoe.training.checkpoint_parts import load_whole
from two_hosts import Host, two_hosts, why_impossible

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="torch was built without distributed")

FLAGS = [
    *("heat/smoe", "--data.spatial-shape", "8", "7", "--data.num-steps", "20", "--data.num-train-runs", "12"),
    *("--data.num-validation-runs", "3", "--data.num-test-runs", "1", "--training.evaluation-batch-size", "7"),
    *("--training.stop-at", "None", "--training.early-stop-patience", "100000", "--training.device", "cpu"),
    *("--training.num-threads", "1", "--training.monitor", "mse", "--training.monitor-mode", "min"),
]


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    reason = why_impossible()
    if reason is not None:
        pytest.skip(reason)
    with two_hosts() as made:
        yield made


def wait(processes: list[subprocess.Popen[str]], seconds: float) -> list[str]:
    """What the processes wrote as errors, once all have ended."""
    until = time.monotonic() + seconds
    try:
        return [process.communicate(timeout=max(0.0, until - time.monotonic()))[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def assert_equal_training(ours: Path, theirs: Path) -> None:
    mine, other = history(ours), history(theirs)
    assert len(mine) == len(other)
    for record, expected in zip(mine, other, strict=True):
        for key in ("train/loss", "validation/mse", "test/mse"):
            if key in expected:
                assert record[key] == pytest.approx(expected[key], rel=1e-4), key
    models = [load_whole(run / "checkpoints" / "last.pt")["model"] for run in (ours, theirs)]
    for key, value in models[1].items():
        torch.testing.assert_close(models[0][key], value, rtol=0, atol=2e-5, msg=key)


def test_a_host_that_was_cut_off_ends_the_other_which_continues_alone(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    run = tmp_path / "run"
    flags = [*FLAGS, "--training.max-epochs", "100000", "--output-dir", str(run)]
    launcher = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", hosts[0].name, "--master-port", "29500"]
    processes = [host.start([*launcher, "--node-rank", str(rank)], flags) for rank, host in enumerate(hosts)]
    until = time.monotonic() + 240
    while not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").stat().st_size:
        if time.monotonic() > until or any(process.poll() is not None for process in processes):
            pytest.fail("\n".join(wait(processes, 0.0)))
        time.sleep(0.05)
    hosts[1].cut()
    errors = wait(processes, 60.0)
    assert [process.returncode for process in processes] == [1, 1]
    for rank, error in enumerate(errors):
        (line,) = (line for line in error.splitlines() if "smoe: error: " in line)
        assert f"rank {rank} of 2 cannot go on: rank {1 - rank} (process " in line
        assert f" on {hosts[1 - rank].name}) has not been heard from for 30 s; its messages are on that host" in line
        assert re.search(r"last.pt holds the state (before|after batch [0-9]+ of) epoch [0-9]+; continue with: ", line)
        assert line.endswith(f"torchrun --nproc-per-node 1 -m smoe train --resume {run}")

    # The checkpoint may be one epoch ahead of the record, which is written after it.
    num_epochs = len(history(run)) + 2
    assert main(["train", "--resume", str(run), "--training.max-epochs", str(num_epochs)]) == 0
    # To compare long runs, weights would have to be equal for longer than rounding allows.
    if num_epochs < 100:
        train(
            [*FLAGS, "--training.max-epochs", str(num_epochs), "--output-dir", str(tmp_path / "one")], num_processes=1
        )
        assert_equal_training(run, tmp_path / "one")


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["none", "full"])
def test_four_processes_on_two_hosts_train_what_one_trains(
    hosts: tuple[Host, Host], sharding: str, tmp_path: Path
) -> None:
    flags = [*FLAGS, "--training.max-epochs", "3"]
    launcher = ["--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    launcher += ["--rdzv-endpoint", f"{hosts[0].name}:29500", "--rdzv-id", "test"]
    arguments = [*flags, "--output-dir", str(tmp_path / "four"), "--training.sharding", sharding]
    processes = [host.start(launcher, arguments) for host in hosts]
    errors = wait(processes, 400.0)
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
    train([*flags, "--output-dir", str(tmp_path / "one")], num_processes=1)
    assert_equal_training(tmp_path / "four", tmp_path / "one")
