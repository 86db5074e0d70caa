"""Files that are read in another process: a crash there, or a claim of memory, is one line here."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from smoe.confined_process import ConfinedError, ConfinedReader
from smoe.errors import DataError
from smoe.gridded.open_fields import open_fields


def reader(path: Path, text: str) -> ConfinedReader:
    path.write_text(text)
    return ConfinedReader(path, "crashing_reader:CrashingReader", path)


def test_a_crash_is_one_line_and_other_files_are_read_on(tmp_path: Path) -> None:
    good, bad = reader(tmp_path / "good", "42"), reader(tmp_path / "bad", "abort")
    process = good.call("process")
    assert process not in (os.getpid(), None)
    assert bad.call("process") == process and good.call("read") == 42
    with pytest.raises(DataError, match=r"bad cannot be read: the library that reads it ended its process \(SIGABRT\)"):
        bad.call("read")
    assert good.call("read") == 42
    assert good.call("process") != process
    with pytest.raises(DataError, match="SIGABRT"):
        reader(tmp_path / "worse", "abort at once")
    assert good.get("path") == tmp_path / "good"


def test_an_interrupt_leaves_no_answer_for_the_next_request(tmp_path: Path) -> None:
    slow, good = reader(tmp_path / "slow", "slow 7"), reader(tmp_path / "good", "42")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            slow.call("read")
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert good.call("read") == 42


def test_a_process_that_was_killed_says_nothing_about_the_file(tmp_path: Path) -> None:
    good = reader(tmp_path / "good", "42")
    # A signal that reaches all processes of a group is left to this one.
    os.kill(good.call("process"), signal.SIGTERM)
    assert good.call("read") == 42
    os.kill(good.call("process"), signal.SIGKILL)
    with pytest.raises(DataError, match=r"the process that reads it was killed from outside, perhaps for its memory$"):
        good.call("read")


def test_errors_and_claims_of_memory(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"memory cannot be read: it wants more than 1.0 GB of memory, .* of 6 bytes"):
        reader(tmp_path / "memory", "memory").call("read")
    with pytest.raises(ConfinedError, match="KeyError: 'of the library'"):
        reader(tmp_path / "error", "error").call("read")
    with pytest.raises(DataError, match="loop cannot be read: the library that reads it did not come to an end"):
        reader(tmp_path / "loop", "for ever").call("read")
    with pytest.raises(DataError, match="of our own"):
        reader(tmp_path / "data", "data error").call("read")


def test_threads_and_forked_processes_share_nothing_by_mistake(tmp_path: Path) -> None:
    readers = [reader(tmp_path / str(number), str(number)) for number in range(8)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda number: readers[number % 8].call("read"), range(64))) == [*range(8)] * 8
    child = os.fork()
    if child == 0:
        os._exit(readers[3].call("read"))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert readers[5].call("read") == 5


def test_grib_files_are_opened_without_the_index_beside_them(tmp_path: Path) -> None:
    pytest.importorskip("eccodes")
    from ens10_files import GRID, STARTS, member_fields, write_grib

    path = write_grib(tmp_path / "members.grib", "pl", STARTS[:1], numbers=(1, 2))
    fields = open_fields(path)
    assert fields["t"].shape == (2, *GRID.shape)
    expected = member_fields("T", 500, STARTS[0])[1]
    np.testing.assert_allclose(fields["t"].isel(number=1, latitude=slice(2, 5)).values, expected[2:5], rtol=1e-5)
    np.testing.assert_allclose(fields["t"].isel(number=[1, 0], longitude=3).values[0], expected[:, 3], rtol=1e-5)
    # cfgrib would write an index, and read one, which is a pickle.
    assert [each.name for each in tmp_path.iterdir()] == ["members.grib"]
    whole = path.read_bytes()
    # Inside the last message, behind it, and in its header.
    for damaged in (whole[:-100], whole + b"GR", whole[:-1] + b"8", whole[: len(whole) // 14 + 9]):
        path.write_bytes(damaged)
        with pytest.raises(
            DataError, match=r"members\.grib is truncated or damaged: the message at byte \d+ does not end"
        ):
            open_fields(path)
    path.write_bytes(whole + bytes(8))
    assert "t" in open_fields(path)
