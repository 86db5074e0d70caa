"""`smoe train RECIPE --training.log-with PACKAGE`: the records of a run reach a tracker."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from smoe.cli.main import main

SMALL = [
    *("--data.spatial-shape", "8", "7", "--data.num-steps", "10", "--data.num-train-runs", "10"),
    *("--data.num-validation-runs", "1", "--data.num-test-runs", "1", "--training.device", "cpu"),
    *("--training.max-epochs", "2"),
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_run_is_recorded_by_tensorboard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    command = ["train", "heat/smoe", "--output-dir", str(run), *SMALL, "--training.log-with", "tensorboard"]
    assert main(command) == 0
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    expected = {record["epoch"]: record["train/loss"] for record in records if "train/loss" in record}
    events = EventAccumulator(str(run)).Reload()
    logged = {event.step: event.value for event in events.Scalars("train/loss")}
    assert len(logged) == 2 and logged == pytest.approx(expected)
    # What records a run is no part of its recipe: runs with and without it are the same.
    assert "log_with" not in (run / "recipe.json").read_text()
    # A command that is refused records nothing.
    before = sorted(run.iterdir())
    assert main(command) == 1 and "holds a run already" in capsys.readouterr().err
    assert sorted(run.iterdir()) == before


def test_a_package_that_is_not_installed_is_named_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if importlib.util.find_spec("wandb") is not None:
        pytest.skip("wandb is installed")
    command = ["train", "heat/smoe", "--output-dir", str(tmp_path / "run"), *SMALL, "--training.log-with"]
    assert main([*command, "wandb"]) == 1
    assert "log_with='wandb' needs the package wandb: pip install wandb" in capsys.readouterr().err
    assert main([*command, "wandbb"]) == 2
    assert "did you mean wandb?" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
