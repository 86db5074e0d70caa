"""Makes the runs that tables need: each in a process of its own, stored when it ends, resumable at any moment."""

from __future__ import annotations

import contextlib
import datetime
import json
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from smoe.training import FileLock, Interrupted, LockedError, write_atomically
from smoe.training.loop import TrainingDiverged
from smoe.training.run_directory import Record, RunDirectory, RunError
from smoe_paper.experiments.experiment import experiment_of, recipe_from_plain
from smoe_paper.experiments.recipe import Recipe
from smoe_paper.experiments.runs import train
from smoe_paper.experiments.stored_runs import DATA_PLACES, RunKey, RunStore
from smoe_paper.experiments.tables import ResultTable, Scale, TableSet
from smoe_paper.experiments.task import count_parameters

# Weights larger than this are not kept after the run: fifty million of a gate would fill the disk.
_LARGEST_KEPT_CHECKPOINT = 2**22
_RESULT = "result.json"


@dataclass(frozen=True)
class PlannedRun:
    """A run that is to be made."""

    recipe: Recipe
    label: str

    @property
    def key(self) -> RunKey:
        return RunKey.of(self.recipe)


def plan_runs(
    table_set: TableSet, tables: Sequence[ResultTable], scale: Scale, num_seeds: int, *, data: Path, only: str = ""
) -> list[PlannedRun]:
    """The runs of all rows that can be trained, each once; the first seed of all rows comes before any second."""
    planned: dict[RunKey, PlannedRun] = {}
    for seed in range(num_seeds):
        for table in tables:
            for row in table.rows:
                if only and only.lower() not in (text.lower() for text in (row.label, *row.labels)):
                    continue
                recipe = scale.recipe(row, seed)
                # The threads are those of the process that trains it.
                training = replace(recipe.training, num_threads=None)
                recipe = table_set.with_data(replace(recipe, training=training), data)
                label = f"{table.name}: {row.label}, {scale.name}, seed {seed}"
                planned.setdefault(RunKey.of(recipe), PlannedRun(recipe, label))
    return list(planned.values())


def make_runs(
    planned: Sequence[PlannedRun],
    store: RunStore,
    runs_dir: Path,
    *,
    jobs: int = 1,
    num_threads: int = 1,
    on_end: Callable[[PlannedRun], object] = lambda _: None,
) -> None:
    """Trains and stores all planned runs, in their order. A run that is stopped continues at the next call."""
    context = multiprocessing.get_context("spawn")
    waiting = list(reversed(planned))
    active: dict[BaseProcess, PlannedRun] = {}
    runs_dir.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(FileLock(runs_dir / f".lock-{store.path.parent.name}"))
        except LockedError as error:
            raise RunError(f"{error.holder} is making runs in {runs_dir}; wait for it or stop it") from None
        stack.callback(_stop, active)
        while waiting or active:
            while waiting and len(active) < jobs:
                run = waiting.pop()
                process = context.Process(target=_train_in_process, args=(run, runs_dir, num_threads))
                process.start()
                active[process] = run
            wait([process.sentinel for process in active])
            for process in [process for process in active if process.exitcode is not None]:
                run = active.pop(process)
                if process.exitcode:
                    raise RunError(_failure(run, process.exitcode))
                store.write(run.key, json.loads((runs_dir / run.key.name / _RESULT).read_text()))
                on_end(run)


def _stop(active: Iterable[BaseProcess]) -> None:
    """Ends processes; a training that is under way saves its state."""
    for process in active:
        process.terminate()
    for process in active:
        process.join()


def _failure(run: PlannedRun, code: int) -> str:
    if code > 0:
        return f"the process that trained {run.label} failed with code {code}; its message is above"
    return (
        f"the process that trained {run.label} was killed by {signal.Signals(-code).name}, perhaps for its memory; the "
        "checkpoint of its last epoch stays: give the same command again, or fewer --jobs"
    )


def _train_in_process(run: PlannedRun, runs_dir: Path, num_threads: int) -> None:
    # A terminal sends Ctrl-C to all processes of the group; the parent ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(num_threads)
    if train_run(run, runs_dir) is None:
        # Stopped by SIGTERM, after its state was saved: the parent shall see that.
        os.kill(os.getpid(), signal.SIGTERM)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    # Killed: nobody would take the result. The checkpoint of the last epoch stays.
    os._exit(1)


def train_run(planned: PlannedRun, runs_dir: Path) -> dict[str, Any] | None:
    """Trains, or continues where an earlier call was stopped; returns the result, which is `result.json` too."""
    key = planned.key
    # As JSON and back: what is trained is what is stored.
    recipe = recipe_from_plain(json.loads(json.dumps(planned.recipe.plain())))
    directory = RunDirectory(runs_dir / key.name)
    try:
        last = train(key.digest, recipe, directory.path, resume=True, notify=_silence)
    except Interrupted:
        return None
    except TrainingDiverged as error:
        # Without the place of the checkpoint, which is not kept.
        last = {"stopped": f"diverged: {error.what}"}
    result = _result(recipe, last, directory)
    text = json.dumps(result)
    write_atomically(directory.path / _RESULT, lambda file: file.write(text.encode()))
    directory.last_checkpoint.unlink(missing_ok=True)
    best = directory.best_checkpoint
    if best.exists() and best.stat().st_size > _LARGEST_KEPT_CHECKPOINT:
        shutil.rmtree(best.parent)
    return result


def _result(recipe: Recipe, last: Record, directory: RunDirectory) -> dict[str, Any]:
    monitor = f"validation/{recipe.training.monitor}"
    # The last record is that of the test.
    history = [epoch for epoch in directory.read_history() if monitor in epoch]
    parameters, gate_parameters = count_parameters(experiment_of(recipe).build(recipe, (), _silence).model)
    environment = json.loads(directory.environment_file.read_text())
    plain = recipe.plain()
    # Without the folders of whoever ran it: results are published.
    plain["data"] |= {name: None for name in plain["data"] if name in DATA_PLACES}
    return {
        "recipe": plain,
        "seed": recipe.seed,
        "parameters": parameters,
        "gate_parameters": gate_parameters,
        "test": {name.removeprefix("test/"): value for name, value in last.items() if name.startswith("test/")},
        "stopped": last["stopped"],
        "epochs": len(history),
        "best_epoch": last.get("best_epoch"),
        "validation": [epoch[monitor] and round(epoch[monitor], 4) for epoch in history],
        "routing": {name: [epoch[name] for epoch in history] for name in history[0] if name.startswith("routing/")}
        if history
        else {},
        "seconds": round(sum(epoch["seconds"] for epoch in history), 1),
        "threads": torch.get_num_threads(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": environment["commit"],
        "processor": environment["processor"],
        "torch": environment["packages"]["torch"],
    }


def _silence(text: str) -> None:
    del text
