"""States that are not finite are never stored, whenever a stop comes, and the message about what is stored is true."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from smoe._signals import Interrupted
from smoe.training.checkpoints import load_checkpoint
from smoe.training.loop import Loop, TrainingDiverged
from smoe.training.run_directory import RunDirectory
from spoiled_training import PLAN, SPOILS, SpoilAt, assert_finite, make_task, spoil_average


@pytest.mark.parametrize("spoil", SPOILS)
# In the middle of the first epoch, its last batch, the first batch of the second one and its last.
@pytest.mark.parametrize("step", [4, 10, 11, 20])
@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGINT])
def test_what_is_not_finite_is_never_stored(
    tmp_path: Path, spoil: Callable[[Loop, float], None], step: int, number: int | None
) -> None:
    run = RunDirectory(tmp_path)
    # The average takes in the weights at the first step of an epoch, and parts of a batch add up.
    plan = replace(PLAN, average_every=100, part_size=2) if spoil is spoil_average else PLAN
    value = float("nan") if step % 2 else float("inf")
    reporter = SpoilAt(spoil, value, step, number)
    loop = reporter.loop = Loop(make_task(), plan, run, reporter)
    with pytest.raises(TrainingDiverged, match=r"holds the state before epoch [12]; begin another run") as told:
        loop.fit()
    assert_finite(run)
    # The message is true: the run resumes from there, and equals one that nothing spoiled.
    said = re.search(r"before epoch (\d)", str(told.value))
    assert said is not None and load_checkpoint(run.last_checkpoint)["epoch"] == int(said[1])
    Loop(make_task(), plan, run).fit(resume=True)
    whole = RunDirectory(tmp_path / "whole")
    Loop(make_task(), plan, whole).fit()
    theirs, ours = load_checkpoint(whole.last_checkpoint)["model"], load_checkpoint(run.last_checkpoint)["model"]
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


@pytest.mark.parametrize("lr", [1e18, 1e30])
@pytest.mark.parametrize("step", [1, 2, 3, 9])
def test_a_stop_while_the_learning_rate_is_too_high(tmp_path: Path, lr: float, step: int) -> None:
    run = RunDirectory(tmp_path)
    reporter = SpoilAt(lambda loop, value: None, 0.0, step, signal.SIGTERM)
    loop = reporter.loop = Loop(make_task(lr), PLAN, run, reporter)
    with pytest.raises((TrainingDiverged, Interrupted)) as told:
        loop.fit()
    assert_finite(run)
    if told.type is Interrupted:
        assert load_checkpoint(run.last_checkpoint)["next_batch"] == step
    else:
        assert "holds the state before epoch 1" in str(told.value)


def test_a_fit_in_a_temporary_folder_names_no_checkpoint() -> None:
    xr = pytest.importorskip("xarray")
    import smoe
    from gridded_files import regional

    del xr
    model = smoe.GridRegressor(
        net="layer", filters=2, max_epochs=2, learning_rate=1e30, device="cpu", progress=False, compare="no"
    )
    with pytest.raises(TrainingDiverged) as told:
        model.fit(regional(30, 4, 6, seed=1), regional(30, 4, 6, seed=2))
    assert "last.safetensors" not in str(told.value) and "lower learning rate" in str(told.value)
