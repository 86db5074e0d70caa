"""Loads the weights of another run as a start, for fine-tuning after pretraining."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from smoe.training.checkpoints import CheckpointError, load_checkpoint
from smoe.training.run_directory import RunDirectory


def check_initial_weights(run: Path) -> None:
    """Checks that a run has weights to start from, before any data are made.

    Raises:
        CheckpointError: If it has none.
    """
    file = RunDirectory(run).best_checkpoint
    if not file.is_file():
        raise CheckpointError(
            f"init_from is {run}, which holds no best weights ({file} is missing): name the folder of a run of which "
            "an epoch has ended"
        )


def load_initial_weights(model: nn.Module, run: Path) -> None:
    """Loads the best weights of a run.

    Raises:
        CheckpointError: If it has none, or if they do not fit, with the first parameter that does not.
    """
    check_initial_weights(run)
    theirs, ours = load_checkpoint(RunDirectory(run).best_checkpoint)["model"], model.state_dict()
    for name in [*ours, *theirs]:
        in_run = tuple(theirs[name].shape) if name in theirs else "not there"
        here = tuple(ours[name].shape) if name in ours else "not there"
        if in_run != here:
            raise CheckpointError(
                f"the weights of {run} do not fit: {name} is {in_run} in that run and {here} here; give both the same "
                "model, inputs, targets and grid"
            )
    model.load_state_dict(theirs)
