"""Runs in several processes: stored when they end, and stopped at any moment without a loss."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from smoe.training import FileLock
from smoe.training.loop import Loop, TrainingDiverged
from smoe.training.run_directory import RunError
from smoe_paper.experiments.runs import make_runs, train_run
from smoe_paper.experiments.stored_runs import RunStore
from smoe_paper.heat.model import data_checksum
from tiny_runs import tiny_runs

PROGRAM = Path(__file__).parents[1] / "tiny_runs.py"
# Long enough to be stopped in the middle, short enough to be waited for.
EPOCHS = 250


def start(folder: Path) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, PROGRAM, folder / "runs.jsonl", folder / "runs", str(EPOCHS)]
    return subprocess.Popen([str(argument) for argument in arguments])


def has_begun(folder: Path) -> bool:
    """Whether a run has ended an epoch."""
    return any(path.read_text() for path in folder.glob("*/metrics.jsonl"))


def wait_for(condition, seconds: float = 180.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def without_time(result: dict[str, Any] | None) -> dict[str, Any]:
    assert result is not None
    return {name: value for name, value in result.items() if name not in ("seconds", "date", "threads", "commit")}


def test_runs_are_made_in_two_processes_and_stored(tmp_path: Path) -> None:
    runs, ended = tiny_runs(3, max_epochs=2), []
    store = RunStore(tmp_path / "runs.jsonl")
    make_runs(runs, store, tmp_path / "runs", jobs=2, on_end=lambda run: ended.append(run.label))
    assert sorted(ended) == ["seed 0", "seed 1", "seed 2"]
    for run in runs:
        result = store.runs().get(run.key)
        assert result is not None and result["seed"] == run.recipe.seed
        assert result["epochs"] == len(result["validation"]) == 2
        assert (result["parameters"], result["gate_parameters"]) == (27, 3 * 9 * 7)
        other = replace(run.recipe.data, test_seed=1)
        assert data_checksum(run.recipe.data).startswith(result["data"]) and result["data"] not in data_checksum(other)
        assert set(result["test"]) >= {"within_1_percent", "within_1_percent/region_0", "mse"}
        assert not (tmp_path / "runs" / run.key.name / "checkpoints" / "last.safetensors").exists()
        assert (tmp_path / "runs" / run.key.name / "checkpoints" / "best.safetensors").exists()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of a run that nobody stopped."""
    return without_time(train_run(tiny_runs(1, EPOCHS)[0], tmp_path_factory.mktemp("whole")))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_stop_loses_nothing(whole: dict[str, Any], tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path)
    store, long, short = RunStore(tmp_path / "runs.jsonl"), tiny_runs(1, EPOCHS)[0], tiny_runs(2, 1)[1]
    metrics = tmp_path / "runs" / long.key.name / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.read_text() and short.key in store.runs())
    process.send_signal(number)
    assert process.wait(timeout=90) == -number
    # The process that trained is gone too, and holds the folder no longer.
    time.sleep(1.5)
    num_epochs = len(metrics.read_text().splitlines())
    assert 1 <= num_epochs < EPOCHS
    time.sleep(0.7)
    assert len(metrics.read_text().splitlines()) == num_epochs
    assert long.key not in store.runs()

    make_runs([long], store, tmp_path / "runs")
    assert without_time(store.runs()[long.key]) == whole


def test_a_killed_process_is_told(tmp_path: Path) -> None:
    def kill() -> None:
        wait_for(lambda: has_begun(tmp_path / "runs"))
        for child in multiprocessing.active_children():
            child.kill()

    run, store = tiny_runs(1, EPOCHS)[0], RunStore(tmp_path / "runs.jsonl")
    threading.Thread(target=kill).start()
    with pytest.raises(RunError, match=r"trained seed 0 was killed by SIGKILL.*give the same command again"):
        make_runs([run], store, tmp_path / "runs")
    assert run.key not in store.runs()


def test_a_diverged_run_is_stored_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(self: Loop, loss: float) -> None:
        raise TrainingDiverged("the loss became nan")

    monkeypatch.setattr(Loop, "_check_loss", diverge)
    result = train_run(tiny_runs(1, 2)[0], tmp_path / "runs")
    assert result is not None and result["stopped"] == "diverged: the loss became nan" and result["test"] == {}


def test_two_calls_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        FileLock(tmp_path / ".lock-heat"),
        pytest.raises(RunError, match=f"process {os.getpid()} is making runs in"),
    ):
        make_runs([], RunStore(tmp_path / "heat/runs.jsonl"), tmp_path)
    with FileLock(tmp_path / ".lock-heat"):
        make_runs([], RunStore(tmp_path / "weather/runs.jsonl"), tmp_path)
