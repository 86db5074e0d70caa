"""Temporary files that killed processes leave: they are removed at the next write, those in use are not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from smoe.atomic_files import remove_leftovers, write_atomically

_WRITER = """
import sys, time
from pathlib import Path
from smoe.atomic_files import write_atomically
def write(file):
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    time.sleep(600)
write_atomically(Path(sys.argv[1]), write)
"""


def test_the_next_write_removes_what_a_killed_process_left_but_not_what_another_writes(tmp_path: Path) -> None:
    # The name is no pattern.
    path = tmp_path / "report[1].html"
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout is not None and writer.stdout.readline() == "writing\n"
        write_atomically(path, lambda file: file.write(b"whole"))
        assert len(list(tmp_path.glob(".report*.tmp"))) == 1
    finally:
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        if writer.stdout is not None:
            writer.stdout.close()
    write_atomically(path, lambda file: file.write(b"again"))
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == b"again"


def test_without_locks_nothing_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    leftover = tmp_path / ".a.txt.7.00.tmp"
    leftover.write_text("half")
    monkeypatch.setattr("fcntl.flock", refuse)
    write_atomically(tmp_path / "a.txt", lambda file: file.write(b"whole"))
    assert leftover.exists() and (tmp_path / "a.txt").read_text() == "whole"
    monkeypatch.undo()
    remove_leftovers([tmp_path / "a.txt"])
    assert not leftover.exists()


def test_a_write_that_fails_keeps_the_old_file_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def fail(file: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, fail)
    assert path.read_text() == "old" and [each.name for each in tmp_path.iterdir()] == ["a.txt"]
