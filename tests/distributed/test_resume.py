"""A run that is stopped and resumed in several processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import distributed, multiprocessing

from resumable_training import free_port, run_process, train
from small_training import without_times
from smoe.training.run_directory import Record, RunDirectory, load_checkpoint

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="torch was built without distributed")


def history(directory: Path) -> list[Record]:
    return without_times(RunDirectory(directory).read_history())


def weights(directory: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(RunDirectory(directory).last_checkpoint)["model"]


def assert_equal(folder: Path, name: str) -> None:
    """The run that was stopped equals the one that was not, to the last bit."""
    stopped, whole = folder / f"{name}-stopped", folder / f"{name}-whole"
    assert len(history(whole)) == 3
    assert history(stopped) == history(whole)
    expected = weights(whole)
    assert all(torch.equal(value, expected[name]) for name, value in weights(stopped).items())
    assert list(stopped.glob(".*")) == []


def assert_close(ours: Path, theirs: Path) -> None:
    """As exact as the sum of gradients."""
    for mine, other in zip(history(ours), history(theirs), strict=True):
        assert mine.keys() == other.keys()
        for key in ("train/loss", "validation/mse", "test/mse", "routing/changed_since_start"):
            if key in other:
                assert mine[key] == pytest.approx(other[key], rel=1e-5), (ours, key)
    for name, value in weights(theirs).items():
        torch.testing.assert_close(weights(ours)[name], value, rtol=0, atol=1e-5, msg=f"{ours} {name}")


def test_runs_resume_in_as_many_processes_and_in_others(tmp_path: Path) -> None:
    train(tmp_path / "one")
    assert train(tmp_path / "one-then-two", stop_after=30) == (1, 30)
    multiprocessing.spawn(run_process, args=(2, free_port(), str(tmp_path)), nprocs=2)
    train(tmp_path / "two-then-one")

    # As many processes: exact, with the random numbers of each.
    assert_equal(tmp_path, "noisy")
    for changed in ("one-then-two", "two-then-one"):
        assert_close(tmp_path / changed, tmp_path / "one")
    assert history(tmp_path / "noisy-whole")[-1]["routing_gains"][-1]["num_samples"] == 4
