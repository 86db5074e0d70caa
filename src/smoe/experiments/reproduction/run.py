"""Trains one row of a table with one seed, and stores what it reached."""

from __future__ import annotations

import datetime
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from smoe.experiments.parameter_counts import count_parameters
from smoe.experiments.recipe import Recipe
from smoe.experiments.recipe_files import recipe_from_plain
from smoe.experiments.registry import experiment_of
from smoe.experiments.result_tables.stored_runs import DATA_PLACES, RunKey, RunStore
from smoe.experiments.runs import train
from smoe.training.interruption import Interrupted
from smoe.training.loop import TrainingDiverged
from smoe.training.run_directory import Record, RunDirectory

# Weights larger than this are not kept after the run: fifty million of a gate would fill the disk.
_LARGEST_KEPT_CHECKPOINT = 2**22


@dataclass(frozen=True)
class PlannedRun:
    """A run that is to be made.

    Attributes:
        recipe: Recipe with its seed, at its scale.
        label: Name for people.
    """

    recipe: Recipe
    label: str

    @property
    def key(self) -> RunKey:
        """Key under which it is stored."""
        return RunKey.of(self.recipe)


def train_and_store(planned: PlannedRun, store: RunStore, runs_dir: Path) -> bool:
    """Trains, or continues where an earlier call was stopped; returns whether the run came to its end.

    Args:
        planned: Run to make.
        store: Store of the result.
        runs_dir: Folder of the run's folder, with its best weights afterwards.
    """
    key = planned.key
    folder = runs_dir / key.name
    # As JSON and back: what is trained is what is stored.
    recipe = recipe_from_plain(json.loads(json.dumps(planned.recipe.plain())))
    directory = RunDirectory(folder)
    try:
        last = train(key.digest, recipe, folder, resume=True, notify=_silence)
    except Interrupted:
        return False
    except TrainingDiverged as error:
        # Without the place of the checkpoint, which is not kept.
        last = {"stopped": f"diverged: {error.what}"}
    store.write(key, _result(recipe, last, directory))
    _drop_large_files(directory)
    return True


def _result(recipe: Recipe, last: Record, directory: RunDirectory) -> dict[str, Any]:
    monitor = f"validation/{recipe.training.monitor}"
    # The last record is that of the test.
    history = [epoch for epoch in directory.read_history() if monitor in epoch]
    parameters, gate_parameters = count_parameters(experiment_of(recipe).build(recipe, (), _silence).model)
    environment = json.loads(directory.environment_file.read_text())
    return {
        "recipe": _without_places(recipe.plain()),
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


def _without_places(recipe: dict[str, Any]) -> dict[str, Any]:
    """A plain recipe without the folders of whoever ran it: results are published."""
    return {**recipe, "data": {name: None if name in DATA_PLACES else value for name, value in recipe["data"].items()}}


def _drop_large_files(directory: RunDirectory) -> None:
    directory.last_checkpoint.unlink(missing_ok=True)
    best = directory.best_checkpoint
    if best.exists() and best.stat().st_size > _LARGEST_KEPT_CHECKPOINT:
        shutil.rmtree(best.parent)


def _silence(text: str) -> None:
    del text
