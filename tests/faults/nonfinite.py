"""Values that become infinite or NaN at a random step of a training, with and without a signal."""

from __future__ import annotations

import shutil
import signal
from dataclasses import replace
from pathlib import Path

from faults.outcome import Kind, Outcome, TryCase, random_of
from smoe.training.interruption import Interrupted
from smoe.training.loop import Loop, TrainingDiverged
from smoe.training.run_directory import RunDirectory
from spoiled_training import PLAN, SPOILS, SpoilAt, assert_finite, make_task, spoil_average

_NUM_STEPS = 30


def _prepare(folder: Path) -> TryCase:
    def try_case(number: int) -> Outcome:
        chance = random_of("nonfinite", number)
        spoil = SPOILS[number % len(SPOILS)]
        step, value = chance.randrange(1, _NUM_STEPS + 1), chance.choice((float("nan"), float("inf"), float("-inf")))
        sent = chance.choice((None, signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        plan = replace(PLAN, average_every=100, part_size=2) if spoil is spoil_average else PLAN
        run = RunDirectory(folder / f"run-{number}")
        what = f"{spoil.__name__} {value} at step {step}, signal {sent}"
        reporter = SpoilAt(spoil, value, step, sent)
        loop = reporter.loop = Loop(make_task(), plan, run, reporter)
        try:
            loop.fit()
            return Outcome("silent", f"{what}: it was not noticed")
        except Interrupted:
            return Outcome("silent", f"{what}: it was stored")
        except TrainingDiverged as error:
            if f"{run.last_checkpoint} holds {loop.checkpoints.stored}" not in str(error):
                return Outcome("silent", f"{what}: {error}")
        try:
            assert_finite(run)
            Loop(make_task(), plan, run).fit(resume=True)
        except Exception as error:  # what is stored cannot be used
            return Outcome("lost", f"{what}: {error!r}")
        shutil.rmtree(run.path)
        return Outcome("refused", what)

    return try_case


KINDS = (
    Kind("nonfinite", "weights, moments, buffers or averages that become infinite or NaN, with signals", 200, _prepare),
)
