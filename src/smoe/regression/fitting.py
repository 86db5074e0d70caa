"""Trains the net of a regressor by the training loop."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from smoe._files import temporary_folder
from smoe._signals import Interrupted
from smoe.regression.objectives import GridObjective, MeanObjective
from smoe.regression.options import MACHINE_OPTIONS, RegressorOptions
from smoe.regression.samples import GridSamples, keep_batch
from smoe.training.environment import keep_freed_memory
from smoe.training.loop import Loop, TrainingDiverged
from smoe.training.plan import TrainingPlan
from smoe.training.progress import Reporter
from smoe.training.run_directory import RunDirectory
from smoe.training.task import Task

# Options that do not change what is computed.
_MAY_DIFFER = frozenset(f"options.{name}" for name in (*MACHINE_OPTIONS, "compare", "keep"))


def make_plan(options: RegressorOptions, num_samples: int) -> TrainingPlan:
    """The plan of a training: the learning rate falls when the validation stops to improve, then the training ends."""
    return TrainingPlan(
        batch_size=min(options.batch_size, num_samples),
        evaluation_batch_size=max(options.batch_size, 1),
        max_epochs=options.max_epochs,
        monitor="loss",
        monitor_mode="min",
        stop_at=None,
        plateau_patience=max(1, options.patience // 3),
        plateau_factor=0.3,
        early_stop_patience=options.patience,
        device=options.device,
        num_threads=options.num_threads,
        num_workers=options.num_workers,
    )


def train_net(
    net: nn.Module,
    splits: Mapping[str, GridSamples],
    objective: GridObjective,
    options: RegressorOptions,
    *,
    directory: RunDirectory | None = None,
    resume: bool = False,
    reporter: Reporter | None = None,
    recipe: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Trains a net in place; it ends with the weights of the best validation.

    Args:
        net: Net to train.
        splits: Samples named `train` and `validation`.
        objective: Objective.
        options: Options of the regressor.
        directory: Directory of the record and the checkpoints; a temporary one if None.
        resume: Continue the training that is there.
        reporter: Logs progress.
        recipe: What the record says of the training.

    Returns:
        The records of the epochs; the last one says why the training ended.

    Raises:
        Interrupted: After a SIGINT, SIGTERM or SIGHUP. The state was stored.
        TrainingDiverged: If the loss or the weights are not finite.
    """
    if options.num_threads is not None:
        torch.set_num_threads(options.num_threads)
    keep_freed_memory()
    plan = make_plan(options, len(splits["train"]))
    task = Task(
        model=net,
        optimizer=torch.optim.Adam(net.parameters(), lr=options.learning_rate),
        loss=objective,
        metrics=[MeanObjective(objective)],
        # The score of the test part is computed in the units of the data, beside simple predictions, by `score`.
        splits={"train": splits["train"], "validation": splits["validation"]},
        collate=keep_batch,
        seed=options.seed,
        reads_ahead=True,
    )
    with ExitStack() as stack:
        is_temporary = directory is None
        if directory is None:
            directory = RunDirectory(stack.enter_context(temporary_folder("smoe-fit-")))
        stack.enter_context(directory.lock())
        # As JSON has it: what is stored has lists for tuples.
        plain = json.loads(json.dumps({"name": "regression", "recipe": dict(recipe or {})}))
        directory.check(plain, resume=resume, may_differ=_MAY_DIFFER)
        loop = Loop(task, plan, directory, reporter)
        objective.to(loop.accelerator.device)
        directory.begin(plain)
        try:
            loop.fit(resume=resume)
        except TrainingDiverged as error:
            if not is_temporary:
                raise
            # Its checkpoint goes with the folder.
            raise TrainingDiverged(error.what) from None
        if loop.signal_number is not None:
            # The training had ended, but the fit goes on after it.
            raise Interrupted(loop.signal_number)
        net.cpu().eval()
        return list(loop.state.history)
