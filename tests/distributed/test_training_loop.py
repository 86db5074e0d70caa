"""The command line under a launcher: two processes train what one process trains."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from launched_training import history, train
from smoe.training.run_directory import load_checkpoint

ARGUMENTS = [
    "heat/smoe",
    *("--data.spatial-shape", "8", "7", "--data.num-steps", "20", "--data.num-train-runs", "12"),
    *("--data.num-validation-runs", "3", "--data.num-test-runs", "1", "--training.evaluation-batch-size", "7"),
    *("--training.device", "cpu", "--training.max-epochs", "3", "--training.num-threads", "1"),
]


def test_two_processes_train_what_one_trains(tmp_path: Path) -> None:
    train([*ARGUMENTS, "--output-dir", str(tmp_path / "one")], num_processes=1)
    arguments = [*ARGUMENTS, "--output-dir", str(tmp_path / "two")]
    output = train(arguments, num_processes=2)
    assert output.count("test split") == 1
    one, two = history(tmp_path / "one"), history(tmp_path / "two")
    assert len(one) == len(two) == 4
    for ours, theirs in zip(two, one, strict=True):
        for key in ("train/loss", "validation/mse", "validation/within_1_percent", "test/mae"):
            if key in theirs:
                assert ours[key] == pytest.approx(theirs[key], rel=1e-4), key
    for name in ("best", "last"):
        file = Path("checkpoints", f"{name}.safetensors")
        models = [load_checkpoint(tmp_path / run / file)["model"] for run in ("one", "two")]
        for key in models[0]:
            # Adam divides by the root of small squares, which magnifies the rounding of the summed gradients.
            torch.testing.assert_close(models[1][key], models[0][key], rtol=0, atol=1e-5)
    assert "test split" in train([*arguments, "--resume"], num_processes=2)
    assert history(tmp_path / "two") == two
