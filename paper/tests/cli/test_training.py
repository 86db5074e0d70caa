"""`smoe train`: resumed, extended, locked, refused early, of an experiment of its own, with a tracker."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from smoe.cli.main import main
from smoe.training.run_directory import load_checkpoint
from smoe_paper.experiments.experiment import EXPERIMENTS, all_recipes, find_experiment

SMALL = [
    *("--data.spatial-shape", "8", "7", "--data.num-steps", "10", "--data.num-train-runs", "10"),
    *("--data.num-validation-runs", "1", "--data.num-test-runs", "1", "--training.device", "cpu"),
]


def complaint(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The one line that a command that cannot be done answers with."""
    assert main(args) in (1, 2)
    output = capsys.readouterr()
    assert output.err.count("\n") == 1 and output.err.startswith("smoe: error: "), output.err
    return output.err


def model_of(run: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(run / "checkpoints" / "last.safetensors")["model"]


def epochs_of(run: Path) -> list[int]:
    return [json.loads(line)["epoch"] for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three epochs that nothing stopped."""
    run = tmp_path_factory.mktemp("whole") / "run"
    assert main(["train", "heat/smoe", "--training.max-epochs", "3", "--output-dir", str(run), *SMALL]) == 0
    return run


def test_a_run_is_extended_and_needs_no_other_flag(whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main(["train", "heat/smoe", "--training.max-epochs", "2", "--output-dir", str(run), *SMALL]) == 0
    assert main(["train", "--resume", str(run), "--training.max-epochs", "3"]) == 0
    # Three epochs and the record of the test.
    assert epochs_of(run) == [1, 2, 3, 3]
    ours, theirs = model_of(run), model_of(whole)
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    assert json.loads((run / "recipe.json").read_text())["recipe"]["training"]["max_epochs"] == 3


def test_a_stopped_run_continues_without_flags(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "smoe", "train", "heat/smoe", "--output-dir", str(run), *SMALL]
    command += ["--training.max-epochs", "100000", "--training.early-stop-patience", "100000"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 90
    while not (run / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    # A second process is refused while the first one trains, and reads nothing and simulates nothing.
    second = subprocess.run(
        [sys.executable, "-m", "smoe", "train", "--resume", str(run)], capture_output=True, text=True, check=False
    )
    assert second.returncode == 1
    assert second.stderr == (
        f"smoe: error: process {process.pid} trains in {run}; wait until it ends, or choose another folder\n"
    )
    # A kill leaves a lock file behind, which locks nothing.
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    assert (run / ".lock").exists()
    num_epochs = len(epochs_of(run))
    assert main(["train", "--resume", str(run), "--training.max-epochs", str(num_epochs + 2)]) == 0
    assert epochs_of(run)[-2:] == [num_epochs + 2] * 2 and not (run / ".lock").exists()


def test_what_a_resumed_run_may_not_change(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    capsys.readouterr()
    error = complaint(capsys, "train", "--resume", str(run), "--seed", "1")
    assert "holds a run of another recipe: recipe.seed is 0 there and 1 now" in error
    assert "is not a run directory: it has no recipe.json" in complaint(
        capsys, "train", "--resume", str(tmp_path / "nowhere")
    )
    error = complaint(capsys, "train", "--resume", str(run), "--training.max-epoch", "3")
    assert "did you mean --training.max-epochs?" in error


def test_a_moved_run_is_evaluated(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "elsewhere" / "moved"
    shutil.copytree(whole, run)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert main(["evaluate", "elsewhere/moved"]) == 0
    output = capsys.readouterr()
    assert "heat/smoe, test split" in output.out and "simulating 1 runs" in output.err
    assert main(["evaluate", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mse"] > 0.0
    assert "did you mean test?" in complaint(capsys, "evaluate", str(run), "--split", "tset")
    assert "did you mean --checkpoint?" in complaint(capsys, "evaluate", str(run), "--chekpoint", "last")


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--training.monitor", "within_1_percnt"], "no metric has this name; did you mean 'within_1_percent'?"),
        (["--model.num-experts", "0"], "num_experts"),
        (["--output-dir", "FILE/run"], "FILE is a file"),
        (["--output-dir", "LOCKED/run"], "LOCKED is not writable"),
        (["--auxiliary.load", "True"], "auxiliary.load needs gates with noise"),
        (["--rule", "froze"], "did you mean 'frozen'?"),
        (["--rule", "rc(weigt=3)"], "did you mean 'weight'?"),
        (["--damping", "3"], "factor must be in [0, 1], got 3"),
    ],
)
def test_what_can_be_refused_early_is_refused_before_anything_is_simulated(
    flags: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "LOCKED/run" in flags and os.geteuid() == 0:
        pytest.skip("root can write everywhere")
    names = {"FILE": tmp_path / "file", "LOCKED": tmp_path / "locked"}
    names["FILE"].touch()
    names["LOCKED"].mkdir(mode=0o555)
    for name, path in names.items():
        flags = [flag.replace(name, str(path)) for flag in flags]
        text = text.replace(name, str(path))
    output = [] if "--output-dir" in flags else ["--output-dir", str(tmp_path / "run")]
    # Of paper scale: a simulation would take a minute and write what it does.
    error = complaint(capsys, "train", "heat/smoe", *output, *flags)
    assert text in error and "simulating" not in error
    assert not (tmp_path / "run").exists()


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An experiment of the test's own, registered by one line."""
    monkeypatch.setitem(EXPERIMENTS, "toy", "toy_experiment:TOY")
    for cached in (find_experiment, all_recipes):
        cached.cache_clear()
    yield
    for cached in (find_experiment, all_recipes):
        cached.cache_clear()


@pytest.mark.usefixtures("toy")
def test_an_experiment_of_ones_own_works_in_every_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(tmp_path / "run")
    assert main(["recipes"]) == 0
    assert "toy/smoe" in capsys.readouterr().out
    flags = ["--rule", "rc(weight=2)", "--data.factor", "3", "--optimizer.gate-lr", "0.1", "--output-dir", run]
    assert main(["train", "toy/smoe", *flags]) == 0
    assert "toy/smoe, test split" in capsys.readouterr().out
    assert main(["train", "--resume", run, "--training.max-epochs", "3"]) == 0
    assert main(["evaluate", run, "--split", "validation"]) == 0
    assert "validation split" in capsys.readouterr().out
    assert main(["reproduce", "toy", "--dry-run", "--output-dir", str(tmp_path / "results")]) == 0
    assert "missing: toy/all: SMoE, paper, seed 2" in capsys.readouterr().out


def test_training_without_data_names_the_remedy(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["train", "weather/smoe", "--output-dir", str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "smoe data prepare weather" in error


TRACKED = [
    *("--data.spatial-shape", "8", "7", "--data.num-steps", "10", "--data.num-train-runs", "10"),
    *("--data.num-validation-runs", "1", "--data.num-test-runs", "1", "--training.device", "cpu"),
    *("--training.max-epochs", "2"),
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_run_is_recorded_by_tensorboard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    command = ["train", "heat/smoe", "--output-dir", str(run), *TRACKED, "--training.log-with", "tensorboard"]
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
