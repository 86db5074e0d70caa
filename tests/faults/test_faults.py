"""A few cases of each kind of fault; `make faults` runs all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from faults.campaign import Campaign, run_side_by_side
from faults.outcome import BAD, Kind, Outcome, TryCase, judge_error, read_or_refuse
from faults.registry import KINDS
from smoe.errors import DataError

# Cases of each kind: a few of those that take seconds, more of the others.
FEW, MORE = 1, 4
NEEDS_ROOT = ("disks",)


def run(folder: Path, kinds: list[str], most: int) -> None:
    """Runs some cases in a process of their own: that of the tests has threads, which are not forked."""
    command = [sys.executable, "-W", "ignore", "-m", "faults", "--only", *kinds, "--most", str(most), "--jobs", "2"]
    command += ["--state", str(folder / "state"), "--output", str(folder / "results")]
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    rows = [json.loads(line) for line in (folder / "results" / "faults.jsonl").read_text().splitlines()]
    assert len(rows) == len(kinds)
    assert all(row["tried"] == min(most, row["of"]) for row in rows)
    assert not any(row[verdict] for row in rows for verdict in BAD)
    assert all(row["commit"] and row["date"] and row["load"] is not None for row in rows)


def split_kinds() -> tuple[list[str], list[str]]:
    """The kinds whose cases take seconds, and the others; those that mount file systems need root."""
    names = [kind.name for kind in KINDS if os.geteuid() == 0 or kind.name not in NEEDS_ROOT]
    slow = [name for name in names if name.startswith(("kill-", "signals", "disks", "threads", "forks", "leaks"))]
    return slow, [name for name in names if name not in slow]


def test_commands_that_are_stopped_disks_and_threads(tmp_path: Path) -> None:
    pytest.importorskip("netCDF4")
    run(tmp_path, split_kinds()[0], FEW)


def test_damaged_files_and_records_and_kernels(tmp_path: Path) -> None:
    for module in ("xarray", "zarr", "eccodes", "meshio"):
        pytest.importorskip(module)
    run(tmp_path, split_kinds()[1], MORE)


def test_a_kind_that_cannot_be_prepared_does_not_stop_the_others(tmp_path: Path) -> None:
    def fail(folder: Path) -> TryCase:
        raise RuntimeError("no disk")

    def succeed(folder: Path) -> TryCase:
        return lambda number: Outcome("equal", "")

    kinds = [Kind("bad", "", 2, fail, is_isolated=False), Kind("good", "", 2, succeed, is_isolated=False)]
    campaigns = [Campaign(kind, state=tmp_path) for kind in kinds]
    said: list[str] = []
    assert run_side_by_side(campaigns, 2, said.append) == ["bad"]
    assert [campaign.num_tried for campaign in campaigns] == [0, 2]
    # A run that was stopped goes on.
    assert Campaign(kinds[1], state=tmp_path).num_tried == 2


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
