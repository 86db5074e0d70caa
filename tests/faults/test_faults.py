"""A few cases of each kind of fault; `make faults` runs all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from faults.outcome import BAD, judge_error, read_or_refuse
from smoe.errors import DataError

CHECKPOINTS = ("checkpoints", "checkpoint-bits", "hostile-checkpoints", "recipes", "places", "metrics")
FILES = ("netcdf-classic", "netcdf-4", "zarr-2-blosc", "zarr-3-shards", "grib", "mesh-vtu", "fitted-model")
STOPS = ("kill-train", "kill-prepare", "kill-fit", "signals")
WATCHED = ("kernels", "threads", "leaks")


def run(folder: Path, kinds: tuple[str, ...], most: int) -> None:
    """Runs some cases in a process of their own: that of the tests has threads, which are not forked."""
    command = [sys.executable, "-m", "faults", "--only", *kinds, "--most", str(most)]
    command += ["--state", str(folder / "state"), "--output", str(folder / "results")]
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    rows = [json.loads(line) for line in (folder / "results" / "faults.jsonl").read_text().splitlines()]
    assert len(rows) == len(kinds)
    assert all(row["tried"] == min(most, row["of"]) for row in rows)
    assert not any(row[verdict] for row in rows for verdict in BAD)


def test_damaged_and_hostile_checkpoints_and_records(tmp_path: Path) -> None:
    run(tmp_path, CHECKPOINTS, most=12)


def test_damaged_files(tmp_path: Path) -> None:
    for module in ("xarray", "zarr", "eccodes", "meshio"):
        pytest.importorskip(module)
    run(tmp_path, ("hostile-files", *(f"file-{name}" for name in FILES)), most=12)


def test_commands_that_are_stopped(tmp_path: Path) -> None:
    pytest.importorskip("netCDF4")
    run(tmp_path, STOPS, most=2)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts small file systems, which needs root")
@pytest.mark.slow
def test_disks_that_are_full_or_gone(tmp_path: Path) -> None:
    run(tmp_path, ("disks",), most=4)


def test_kernels_and_threads(tmp_path: Path) -> None:
    run(tmp_path, WATCHED, most=3)


def test_verdicts() -> None:
    def fail(error: Exception) -> None:
        raise error

    assert read_or_refuse("", lambda: fail(DataError("one line"))).verdict == "refused"
    assert read_or_refuse("", lambda: fail(KeyError("x"))).verdict == "traceback"
    assert read_or_refuse("", lambda: fail(MemoryError())).verdict == "memory"
    assert read_or_refuse("", lambda: 3, lambda value: value == 4).verdict == "silent"
    assert read_or_refuse("", lambda: 3).verdict == "read"
    assert judge_error("", RuntimeError("inside")).verdict == "traceback"


ISOLATED = """
import os, time
from faults.isolation import try_isolated
from faults.outcome import Outcome

def try_case(number):
    if number == 1:
        os.abort()
    if number == 2:
        time.sleep(60)
    if number == 3:
        bytearray(4_000_000_000)
    return Outcome("equal", str(number))

def try_memory(number):
    try:
        return try_case(number)
    except MemoryError:
        return Outcome("memory", "")

import faults.isolation
faults.isolation._PREPARING = 1.0
print(*(outcome.verdict for outcome in try_isolated(lambda: try_memory, range(5), 1.0)))
"""


def test_crashes_and_hangs_are_found_and_the_next_case_is_tried() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", ISOLATED], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["equal", "crash", "hang", "memory", "equal"], done.stderr
