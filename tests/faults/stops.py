"""Commands that are killed, or stopped by signals, at random moments, and then run again to their end."""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path

from faults.jobs import (
    FITTING,
    PREDICTING,
    PREDICTING_ZARR,
    PREPARING,
    REPORTING,
    REPRODUCING,
    SAVING,
    TRAINING,
    Job,
    Started,
    apart,
    make_inputs,
    run_to_end,
)
from faults.outcome import Kind, Outcome, TryCase, random_of

_SECONDS = 60.0


class Reference:
    """A job, its inputs, and what it leaves if nothing stops it.

    Args:
        job: The job.
        folder: Folder of inputs and outputs.
    """

    def __init__(self, job: Job, folder: Path) -> None:
        self.job, self.folder, self.inputs = job, folder, folder / "inputs"
        self.inputs.mkdir()
        make_inputs(job, self.inputs)
        output = folder / "whole"
        started = time.monotonic()
        code, said = run_to_end(job, self.inputs, output)
        assert code == 0, said
        self.seconds = time.monotonic() - started
        self.digest = apart(lambda: job.digest(output))

    def finish(self, what: str, output: Path) -> Outcome:
        """Runs a command that was stopped to its end, and compares what it leaves."""
        code, said = run_to_end(self.job, self.inputs, output)
        if code is None:
            return Outcome("hang", f"{what}: the command that goes on hangs")
        if code != 0:
            return Outcome(
                "traceback" if "Traceback" in said else "lost", f"{what}: the next start said: {said[-1500:]}"
            )
        try:
            digest = apart(lambda: self.job.digest(output))
        except Exception as error:  # what is left cannot be read
            return Outcome("lost", f"{what}: what is left cannot be read: {error!r}")
        shutil.rmtree(output, ignore_errors=True)
        is_equal = digest == self.digest
        return Outcome(
            "equal" if is_equal else "lost", f"{what}: {digest if is_equal else f'{digest}, not {self.digest}'}"
        )


def _kills(job: Job, folder: Path) -> TryCase:
    reference = Reference(job, folder)

    def try_case(number: int) -> Outcome:
        chance = random_of(f"kill {job.name}", number)
        output = folder / f"killed-{number}"
        while True:
            shutil.rmtree(output, ignore_errors=True)
            moment = chance.uniform(0.0, reference.seconds)
            started = Started(job, reference.inputs, output)
            if started.code(moment) is None:
                break
            # It ended before the kill, and is tried again.
        started.send(signal.SIGKILL)
        started.code(_SECONDS)
        what = f"killed after {moment:.2f} s"
        try:
            apart(lambda: str(job.check(output)))
        except Exception as error:  # a file is not whole under its final name
            return Outcome("lost", f"{what}: {error!r}")
        return reference.finish(what, output)

    return try_case


# Those that are stopped in the middle of their work most often come most often.
_STOPPED = (TRAINING, TRAINING, FITTING, PREDICTING, PREPARING, REPORTING)
_WAYS = (
    *((signal.SIGTERM,), (signal.SIGINT,), (signal.SIGHUP,)),
    *((signal.SIGINT, signal.SIGINT), (signal.SIGINT, signal.SIGTERM)),
)


def _signals(folder: Path) -> TryCase:
    references: dict[str, Reference] = {}

    def reference_of(job: Job) -> Reference:
        if job.name not in references:
            (folder / job.name).mkdir()
            references[job.name] = Reference(job, folder / job.name)
        return references[job.name]

    def try_case(number: int) -> Outcome:
        chance = random_of("signals", number)
        reference = reference_of(_STOPPED[number % len(_STOPPED)])
        signals = chance.choice(_WAYS)
        output = reference.folder / f"stopped-{number}"
        started = Started(reference.job, reference.inputs, output)
        moment = chance.uniform(0.0, reference.seconds)
        code = started.code(moment)
        for each in signals:
            if code is None:
                started.send(each)
                code = started.code(chance.uniform(0.0, 0.2) if each is not signals[-1] else _SECONDS)
        what = f"{'+'.join(each.name for each in signals)} after {moment:.2f} s of {reference.job.name}, code {code}"
        if code is None:
            started.send(signal.SIGKILL)
            started.code(_SECONDS)
            return Outcome("hang", what)
        if "Traceback" in started.said():
            return Outcome("traceback", f"{what}: {started.said()[-1500:]}")
        # Before a command handles signals, they have their usual meaning.
        if code not in (0, *(128 + each for each in signals), *(-each for each in signals)):
            return Outcome("lost", f"{what}: {started.said()[-500:]}")
        try:
            apart(lambda: str(reference.job.check(output)))
        except Exception as error:  # a file is not whole under its final name
            return Outcome("lost", f"{what}: {error!r}")
        return reference.finish(what, output)

    return try_case


def _kind(name: str, title: str, number: int, job: Job) -> Kind:
    return Kind(name, title, number, lambda folder: _kills(job, folder), is_isolated=False)


KINDS = (
    _kind("kill-train", "kill -9 of smoe train", 100, TRAINING),
    _kind("kill-prepare", "kill -9 of smoe data prepare", 50, PREPARING),
    _kind("kill-fit", "kill -9 of smoe fit", 40, FITTING),
    _kind("kill-reproduce", "kill -9 of the runs of smoe reproduce", 10, REPRODUCING),
    _kind("kill-predict", "kill -9 of smoe predict, NetCDF", 15, PREDICTING),
    _kind("kill-predict-zarr", "kill -9 of smoe predict, Zarr", 15, PREDICTING_ZARR),
    _kind("kill-report", "kill -9 of smoe report", 10, REPORTING),
    _kind("kill-save", "kill -9 of GridRegressor.save over another model", 40, SAVING),
    Kind("signals", "SIGTERM, SIGINT, SIGHUP and two signals: train, fit, predict, data prepare, report", 120, _signals,
         is_isolated=False),
)  # fmt: skip
