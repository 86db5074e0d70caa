"""Disks that are full, become read-only, or lose the directory, while a command writes."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

from faults.jobs import FITTING, PREDICTING, PREPARING, TRAINING, Started
from faults.outcome import Kind, Outcome, TryCase, random_of
from faults.stops import Reference
from smoe.training.checkpoints import CheckpointError, load_checkpoint

_SECONDS = 60.0


def _mount(folder: Path, size: int) -> None:
    folder.mkdir(exist_ok=True)
    options = f"size={max(8, size // 1024)}k"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"these cases mount small file systems, which needs root: {done.stderr.decode()}")


def _unmount(folder: Path) -> None:
    subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _disks(folder: Path) -> TryCase:
    references = []
    for job in (TRAINING, FITTING, PREPARING, PREDICTING):
        (folder / job.name).mkdir()
        references.append(Reference(job, folder / job.name))

    def try_case(number: int) -> Outcome:
        chance = random_of("disks", number)
        reference = references[number // 4 % 4]
        way = ("full", "full", "read-only", "vanished")[number % 4]
        disk = folder / f"disk-{number}"
        needed = _size(reference.folder / "whole")
        size = int(chance.uniform(0.1, 1.3) * needed) if way == "full" else 20 * needed
        what = f"{reference.job.name}: {way}"
        _mount(disk, size)
        try:
            output = disk / "output"
            started = Started(reference.job, reference.inputs, output)
            if way != "full":
                started.code(chance.uniform(0.0, reference.seconds))
                if way == "read-only":
                    subprocess.run(["mount", "-o", "remount,ro", str(disk)], capture_output=True, check=False)
                else:
                    shutil.rmtree(output, ignore_errors=True)
            code = started.code(_SECONDS)
            return _judge(reference, way, what, number, code, started, output)
        finally:
            time.sleep(0.01)
            _unmount(disk)

    return try_case


def _judge(
    reference: Reference, way: str, what: str, number: int, code: int | None, started: Started, output: Path
) -> Outcome:
    said = started.said()
    if code is None:
        started.send(9)
        started.code(_SECONDS)
        return Outcome("hang", what)
    if "Traceback" in said or (code != 0 and "smoe: error: " not in said and code != 1):
        return Outcome("traceback", f"{what}, code {code}: {said[-1500:]}")
    if way == "vanished":
        # Nothing is left that could go on.
        return Outcome("equal" if code == 0 else "refused", f"{what}: {said[-300:]}")
    for path in output.rglob("*.pt"):
        try:
            load_checkpoint(path)
        except CheckpointError as error:
            return Outcome("lost", f"{what}: {error}")
    copied = reference.folder / f"freed-{number}"
    if output.is_dir():
        shutil.copytree(output, copied)
    return reference.finish(f"{what}, code {code}: {said[-200:]}", copied)


KINDS = (
    Kind("disks", "disks that are full, read-only or gone: smoe train, fit, data prepare, predict", 100, _disks,
         is_isolated=False),
)  # fmt: skip
