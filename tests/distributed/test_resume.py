"""A run that is stopped and resumed in several processes."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import torch
from torch import distributed, multiprocessing

from resumable_training import run_process, train
from smoe.training.checkpoints import load_checkpoint
from smoe.training.run_directory import Record, RunDirectory

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="torch was built without distributed")


def history(directory: Path) -> list[Record]:
    return [
        {key: value for key, value in record.items() if "seconds" not in key}
        for record in RunDirectory(directory).read_history()
    ]


def weights(directory: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(RunDirectory(directory).last_checkpoint)["model"]


def test_runs_resume_in_as_many_processes_and_in_others(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    train(tmp_path / "one")
    assert train(tmp_path / "one-then-two", stop_after=30) == (1, 30)
    multiprocessing.spawn(run_process, args=(2, port, str(tmp_path)), nprocs=2)
    train(tmp_path / "two-then-one")

    # As many processes: exact, with the random numbers of each.
    assert len(history(tmp_path / "noisy-whole")) == 3
    assert history(tmp_path / "noisy-stopped") == history(tmp_path / "noisy-whole")
    expected = weights(tmp_path / "noisy-whole")
    assert all(torch.equal(value, expected[name]) for name, value in weights(tmp_path / "noisy-stopped").items())
    assert list((tmp_path / "noisy-stopped").glob(".*")) == []

    # Another number: as exact as the sum of gradients.
    for changed in ("one-then-two", "two-then-one"):
        for ours, theirs in zip(history(tmp_path / changed), history(tmp_path / "one"), strict=True):
            for key in ("train/loss", "validation/mse", "test/mse"):
                if key in theirs:
                    assert ours[key] == pytest.approx(theirs[key], rel=1e-5), (changed, key)
        for name, value in weights(tmp_path / changed).items():
            torch.testing.assert_close(value, weights(tmp_path / "one")[name], rtol=0, atol=1e-5, msg=name)
