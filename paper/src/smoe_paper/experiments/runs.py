"""Trains recipes, opens runs that were trained, and makes the runs that tables need, each in a process of its own.

A path that a recipe.json names is used if it lies inside the run or the working directory.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import multiprocessing
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

import torch

from smoe.training import (
    FileLock,
    Interrupted,
    LockedError,
    RecipeError,
    is_path,
    shorten,
    type_hints,
    write_atomically,
)
from smoe.training.loop import Loop, TrainingDiverged
from smoe.training.plan import check_monitor, resumable_fields
from smoe.training.progress import Reporter
from smoe.training.run_directory import (
    CheckpointError,
    Record,
    RunDirectory,
    RunError,
    keep_freed_memory,
    load_checkpoint,
)
from smoe.training.task import metric_names
from smoe_paper.experiments.experiment import Notify, experiment_of, recipe_from_plain
from smoe_paper.experiments.recipe import Recipe
from smoe_paper.experiments.stored_runs import DATA_PLACES, RunKey, RunStore
from smoe_paper.experiments.tables import ResultTable, Scale, TableSet
from smoe_paper.experiments.task import OpenRun, count_parameters

CheckpointName = Literal["best", "last"]


def data_paths(recipe: Recipe) -> dict[str, Path | None]:
    """The fields of the recipe's data that can hold a path, which a command takes as `--data.FIELD PATH`."""
    hints = type_hints(type(recipe.data))
    names = [field.name for field in fields(recipe.data) if is_path(hints[field.name])]
    return {name: getattr(recipe.data, name) for name in names}


def with_data(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    return replace(recipe, data=replace(recipe.data, **changes))


def outside_paths(recipe: Recipe, directory: RunDirectory) -> dict[str, Path]:
    """The paths of a recipe's data that lie outside its run and the working directory."""
    return {
        name: path for name, path in data_paths(recipe).items() if path is not None and not directory.allows_path(path)
    }


def check_paths(directory: RunDirectory, outside: Mapping[str, Path]) -> None:
    """Refuses a run that would have files opened or written outside."""
    for name, path in outside.items():
        raise RunError(
            f"{directory.recipe_file}: data.{name} is {str(path)!r}, outside the run and the working directory: give "
            f"the place as --data.{name.replace('_', '-')} PATH (in Python data={{{name!r}: PATH}})"
        )
    for parent, folders, files in os.walk(directory.path):
        for entry in (Path(parent) / name for name in (*folders, *files)):
            if entry.is_symlink() and not directory.allows_path(entry):
                raise RunError(
                    f"{directory.path} holds a link that leads out of it and of the working directory, "
                    f"{str(entry.relative_to(directory.path))!r}: remove it, or work in a folder that holds both"
                )


def train(
    name: str,
    recipe: Recipe,
    output_dir: Path,
    *,
    resume: bool = False,
    reporter: Reporter | None = None,
    notify: Notify = print,
) -> Record:
    """Trains a recipe and returns its last record.

    What can be refused without data is refused before they are made: a directory that cannot be written or is in use, a
    recipe that differs from the run's, a metric that does not exist.
    """
    set_num_threads(recipe)
    keep_freed_memory()
    directory = RunDirectory(output_dir)
    directory.check_writable()
    experiment, plain = experiment_of(recipe), {"name": name, "recipe": recipe.plain()}
    with directory.lock():
        check_paths(directory, {})
        may_differ = resumable_fields(recipe.training) | {f"data.{name}" for name in data_paths(recipe)}
        directory.check(plain, resume=resume, may_differ=may_differ)
        check_monitor(recipe.training, metric_names(experiment.build(recipe, (), _silence).metrics))
        loop = Loop(experiment.build(recipe, notify=notify), recipe.training, directory, reporter)
        loop.begin(plain)
        before = recipe.pretraining()
        if before is not None and not directory.last_checkpoint.exists():
            folder = RunDirectory(directory.path / "pretraining")
            train(name, before, folder.path, resume=True, reporter=reporter, notify=notify)
            loop.task.model.load_state_dict(load_checkpoint(folder.best_checkpoint)["model"])
        return loop.fit(resume=resume)


def open_run(
    path: Path | str,
    checkpoint: CheckpointName = "best",
    splits: tuple[str, ...] = ("test",),
    notify: Notify = print,
    data: Mapping[str, Any] | None = None,
) -> OpenRun:
    """Builds a run's model again, loads its weights, and opens the data of some splits.

    Args:
        data: Fields of the recipe's data to replace, such as `store`: a path that its recipe.json names is used if it
            lies inside the run or the working directory.

    Example:
        >>> run = open_run("runs/weather-smoe-0", data={"store": "stores/era5"})  # doctest: +SKIP
        >>> prediction, truth = next(run.predict("test"))  # doctest: +SKIP
    """
    directory, data = RunDirectory(path), dict(data or {})
    name, recipe = read_recipe(directory)
    experiment, outside = experiment_of(recipe), outside_paths(recipe, directory)
    needs_data = bool(splits) or not experiment.builds_without_data
    check_paths(directory, {name: path for name, path in outside.items() if needs_data and name not in data})
    types = data_paths(recipe)
    recipe = with_data(recipe, {key: Path(v) if key in types and v is not None else v for key, v in data.items()})
    set_num_threads(recipe)
    file = directory.best_checkpoint if checkpoint == "best" else directory.last_checkpoint
    if checkpoint == "best" and not file.exists():
        raise CheckpointError(f"{path} has no best checkpoint yet: no epoch has ended; try --checkpoint last")
    weights = load_checkpoint(file)["model"]
    task = experiment.build(recipe, splits, notify)
    try:
        task.model.load_state_dict(weights)
    except (RuntimeError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"the weights of {file} do not fit the recipe beside them: {reason}") from error
    task.model.eval()
    return OpenRun(name, recipe, task, directory)


def kept_run(
    table_set: TableSet, recipe: Recipe, store: RunStore, runs_dir: Path, splits: tuple[str, ...] = (), **data: Any
) -> OpenRun | None:
    """The stored run of a recipe with seed 0 at the largest scale whose weights are kept in `runs_dir`."""
    for scale in table_set.scales:
        key = RunKey.of(replace(scale.apply(recipe), seed=0))
        folder = runs_dir / key.name
        if key in store.runs() and RunDirectory(folder).best_checkpoint.exists():
            return open_run(folder, splits=splits, notify=_silence, data=data)
    return None


def read_recipe(directory: RunDirectory) -> tuple[str, Recipe]:
    """The name of the recipe that a run began as, and the recipe itself."""
    stored, file = directory.read_recipe(), directory.recipe_file
    name, plain = stored.get("name"), stored.get("recipe")
    if not isinstance(name, str):
        raise RunError(f"{file}: name must be a text, got {name!r}")
    if not isinstance(plain, dict):
        raise RunError(f"{file}: recipe must be a dictionary, got {shorten(plain)}")
    try:
        return name, recipe_from_plain(plain)
    except RecipeError as error:
        raise RunError(f"{file}: {error}") from error


def _silence(text: str) -> None:
    del text


def set_num_threads(recipe: Recipe) -> None:
    if recipe.training.num_threads is not None:
        torch.set_num_threads(recipe.training.num_threads)


# Weights larger than this are not kept after the run: fifty million of a gate would fill the disk.
_LARGEST_KEPT_CHECKPOINT = 2**22
_RESULT = "result.json"
_STOPPED = 128 + signal.SIGTERM  # exit code of a process that SIGTERM stopped, after its state was saved


@dataclass(frozen=True)
class PlannedRun:
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
                if not row.can_run or (only and only.lower() not in [t.lower() for t in (row.label, *row.labels)]):
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
    if 0 < code != _STOPPED:
        return f"the process that trained {run.label} failed with code {code}; its message is above"
    name = signal.Signals(signal.SIGTERM if code == _STOPPED else -code).name
    return (
        f"the process that trained {run.label} was killed by {name}, perhaps for its memory; the "
        "checkpoint of its last epoch stays: give the same command again, or fewer --jobs"
    )


def _train_in_process(run: PlannedRun, runs_dir: Path, num_threads: int) -> None:
    # A terminal sends Ctrl-C to all processes of the group; the parent ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(num_threads)
    if train_run(run, runs_dir) is None:
        sys.exit(_STOPPED)


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
    plain, checksum = recipe.plain(), experiment_of(recipe).find("data_checksum")
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
        **({} if checksum is None else {"data": checksum(recipe.data)[:8]}),
    }
