"""Two processes train the weather network, with its batch normalisation, as one process does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from launched_training import history, train
from smoe.training.run_directory import load_checkpoint
from tiny_weather import make_store

ARGUMENTS = [
    *("--data.train-years", "2000", "2000", "--data.validation-years", "2001", "2001"),
    *("--data.test-years", "2002", "2002", "--data.start-every-hours", "192", "--data.test-every-hours", "24"),
    *("--model.filters", "4", "--model.num-blocks", "1", "--model.dropout", "0", "--routing-warmup-epochs", "1"),
    *("--optimizer.gate-lr", "0.01", "--training.batch-size", "4", "--training.evaluation-batch-size", "7"),
    *("--training.device", "cpu", "--training.max-epochs", "2", "--training.num-threads", "1"),
]


def train_and_read(store: Path, output_dir: Path, *, num_processes: int) -> list[dict[str, float]]:
    places = ["--data.store", str(store), "--output-dir", str(output_dir)]
    train(["weather/smoe-prior", *places, *ARGUMENTS], num_processes=num_processes)
    return history(output_dir)


def test_two_processes_train_what_one_trains(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    one = train_and_read(store, tmp_path / "one", num_processes=1)
    two = train_and_read(store, tmp_path / "two", num_processes=2)
    assert len(one) == len(two) == 3
    for ours, theirs in zip(two, one, strict=True):
        for key in ("train/loss", "validation/loss", "validation/rmse_z_500", "test/mae_t2m"):
            if key in theirs:
                assert ours[key] == pytest.approx(theirs[key], rel=1e-4), key
    models = [load_checkpoint(tmp_path / run / "checkpoints" / "last.safetensors")["model"] for run in ("one", "two")]
    for key in models[0]:
        # Adam divides by the root of small squares, which magnifies the rounding of the summed gradients.
        torch.testing.assert_close(models[1][key], models[0][key], rtol=0, atol=2e-5)
