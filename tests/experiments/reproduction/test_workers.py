"""Runs in several processes: stored when they end, and stopped at any moment without a loss."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from smoe.experiments.reproduction.run import train_and_store
from smoe.experiments.reproduction.workers import _only_one, make_runs
from smoe.experiments.result_tables.stored_runs import RunStore
from smoe.training.loop import Loop, TrainingDiverged
from smoe.training.run_directory import RunError
from tiny_runs import Silent, tiny_runs

PROGRAM = Path(__file__).parents[2] / "tiny_runs.py"
# Long enough to be stopped in the middle, short enough to be waited for.
EPOCHS = 250


def start(folder: Path, name: str) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, PROGRAM, folder / f"{name}-store", folder / f"{name}-runs", str(EPOCHS)]
    return subprocess.Popen([str(argument) for argument in arguments])


def metrics_files(folder: Path) -> list[Path]:
    """Of runs that have ended an epoch."""
    return [path for path in folder.glob("*/metrics.jsonl") if path.read_text()]


def wait_for(condition, seconds: float = 180.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def without_time(path: Path) -> dict[str, object]:
    result = json.loads(path.read_text())
    return {name: value for name, value in result.items() if name not in ("seconds", "date", "threads", "commit")}


def test_runs_are_made_in_two_processes_and_stored(tmp_path: Path) -> None:
    runs, watcher = tiny_runs(3, max_epochs=2), Silent()
    store = RunStore(tmp_path / "store")
    assert make_runs(runs, store, tmp_path / "runs", jobs=2, num_threads=1, watcher=watcher)
    assert sorted(watcher.ended) == ["seed 0", "seed 1", "seed 2"]
    for run in runs:
        result = store.read(run.key)
        assert result is not None and result["seed"] == run.recipe.seed
        assert result["epochs"] == len(result["validation"]) == 2
        assert (result["parameters"], result["gate_parameters"]) == (27, 3 * 9 * 7)
        assert set(result["test"]) >= {"within_1_percent", "within_1_percent/region_0", "mse"}
        assert not (tmp_path / "runs" / run.key.name / "checkpoints" / "last.pt").exists()
        assert (tmp_path / "runs" / run.key.name / "checkpoints" / "best.pt").exists()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a run that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole")
    train_and_store(tiny_runs(1, EPOCHS)[0], RunStore(folder / "store"), folder / "runs")
    return folder / "store"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_stop_loses_nothing(whole: Path, tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path, "stopped")
    store, long, short = RunStore(tmp_path / "stopped-store"), tiny_runs(1, EPOCHS)[0], tiny_runs(2, 1)[1]
    metrics = tmp_path / "stopped-runs" / long.key.name / "metrics.jsonl"
    wait_for(lambda: metrics in metrics_files(tmp_path / "stopped-runs") and store.has(short.key))
    process.send_signal(number)
    assert process.wait(timeout=90) == (-signal.SIGKILL if number == signal.SIGKILL else 3)
    # The process that trained is gone too, and holds the folder no longer.
    time.sleep(1.5)
    num_epochs = len(metrics.read_text().splitlines())
    assert 1 <= num_epochs < EPOCHS
    time.sleep(0.7)
    assert len(metrics.read_text().splitlines()) == num_epochs
    assert not store.has(long.key)

    assert start(tmp_path, "stopped").wait(timeout=300) == 0
    assert without_time(store.folder / f"{long.key.name}.json") == without_time(whole / f"{long.key.name}.json")


def test_a_killed_process_is_told_and_not_waited_for(tmp_path: Path) -> None:
    class Killer(Silent):
        def look(self) -> None:
            if metrics_files(tmp_path / "runs"):
                for child in multiprocessing.active_children():
                    child.kill()

    run, store = tiny_runs(1, EPOCHS)[0], RunStore(tmp_path / "store")
    with pytest.raises(RunError, match=r"trained seed 0 was killed from outside.*give the same command again"):
        make_runs([run], store, tmp_path / "runs", jobs=1, num_threads=1, watcher=Killer())
    assert not store.has(run.key)


def test_a_diverged_run_is_stored_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(self: Loop, loss: float) -> None:
        raise TrainingDiverged("the loss became nan")

    monkeypatch.setattr(Loop, "_check_loss", diverge)
    run, store = tiny_runs(1, 2)[0], RunStore(tmp_path / "store")
    assert train_and_store(run, store, tmp_path / "runs")
    result = store.read(run.key)
    assert result is not None and result["stopped"] == "diverged: the loss became nan" and result["test"] == {}


def test_two_calls_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        _only_one(tmp_path),
        pytest.raises(RunError, match=f"process {os.getpid()} is making runs in"),
        _only_one(tmp_path),
    ):
        pass
    with _only_one(tmp_path):
        assert os.path.exists(tmp_path / ".lock")
