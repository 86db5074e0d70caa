"""Two processes of two parts each train what one process trains with four: same copies, views and mixtures."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from image_folders import write_folders
from launched_training import history, train
from smoe.training.run_directory import load_checkpoint

ARGUMENTS = [
    *("--data.train-size", "32", "--data.resize", "52", "--data.crop", "48", "--data.held-out-per-class", "1"),
    *("--model.filters", "4", "--model.num-blocks", "1", "1", "1", "1", "--augmentation.repetitions", "2"),
    *(
        "--optimizer.lr",
        "0.05",
        "--optimizer.gate-lr",
        "20",
        "--training.batch-size",
        "12",
        "--training.part-size",
        "3",
    ),
    *("--training.evaluation-batch-size", "3", "--training.max-epochs", "2", "--training.warmup-epochs", "1"),
    *("--training.average-every", "1", "--training.average-decay", "0.9", "--training.num-workers", "0"),
    *("--training.device", "cpu", "--training.num-threads", "1"),
]


def train_and_read(root: Path, output_dir: Path, *, num_processes: int) -> list[dict[str, float]]:
    places = ["--data.root", str(root), "--output-dir", str(output_dir)]
    train(["imagenet/smoe", *places, *ARGUMENTS], num_processes=num_processes)
    return history(output_dir)


def test_two_processes_train_what_one_trains(tmp_path: Path) -> None:
    write_folders(tmp_path / "images", images_per_class=6)
    write_folders(tmp_path / "images", images_per_class=2, split="val")
    one = train_and_read(tmp_path / "images", tmp_path / "one", num_processes=1)
    two = train_and_read(tmp_path / "images", tmp_path / "two", num_processes=2)
    assert len(one) == len(two) == 3
    for ours, theirs in zip(two[:2], one[:2], strict=True):
        assert ours["train/loss"] == pytest.approx(theirs["train/loss"], rel=1e-4)
        assert ours["routing/changed"] == pytest.approx(theirs["routing/changed"], abs=1e-3)
    states = [load_checkpoint(tmp_path / run / "checkpoints" / "last.safetensors") for run in ("one", "two")]
    parts = {"model": [state["model"] for state in states], "average": [state["average"]["model"] for state in states]}
    for part, (ones, twos) in parts.items():
        for key, value in ones.items():
            # The running means are those of process 0, which sees every other part.
            if "running" not in key and "num_batches" not in key:
                torch.testing.assert_close(twos[key], value, rtol=0, atol=2e-5, msg=f"{part} {key}")
