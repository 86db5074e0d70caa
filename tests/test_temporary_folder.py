"""Temporary folders: those of killed processes are removed, those in use stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from smoe.temporary_folder import temporary_folder

_HOLDER = """
import sys, time
from pathlib import Path
from smoe.temporary_folder import temporary_folder
with temporary_folder("smoe-test-", Path(sys.argv[1])) as folder:
    (folder / "block").write_bytes(bytes(100))
    print(folder.name, flush=True)
    time.sleep(600)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_ends_with_its_process_or_at_the_next_start(tmp_path: Path) -> None:
    (tmp_path / "smoe-other").mkdir()
    holder = subprocess.Popen([sys.executable, "-c", _HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        theirs = holder.stdout.readline().strip()
        with temporary_folder("smoe-test-", tmp_path) as ours:
            assert names(tmp_path) == sorted(["smoe-other", theirs, ours.name])
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        if holder.stdout is not None:
            holder.stdout.close()
    assert names(tmp_path) == sorted(["smoe-other", theirs])
    with temporary_folder("smoe-test-", tmp_path) as ours:
        assert names(tmp_path) == sorted(["smoe-other", ours.name])
    assert names(tmp_path) == ["smoe-other"]


def test_a_folder_that_was_never_locked_is_removed_if_it_is_empty(tmp_path: Path) -> None:
    empty, foreign = tmp_path / "smoe-test-1", tmp_path / "smoe-test-2"
    empty.mkdir()
    foreign.mkdir()
    (foreign / "file").touch()
    with temporary_folder("smoe-test-", tmp_path):
        assert foreign.exists() and not empty.exists()


def test_a_folder_that_was_removed_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, made = tempfile.mkdtemp, []

    def make_and_lose(prefix: str, dir: Path) -> str:
        made.append(make(prefix=prefix, dir=dir))
        if len(made) == 1:
            os.rmdir(made[0])
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", make_and_lose)
    with temporary_folder("smoe-test-", tmp_path) as folder:
        assert str(folder) == made[1]
    assert not any(tmp_path.iterdir())


def test_without_locks_no_folder_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    abandoned = tmp_path / "smoe-test-1"
    abandoned.mkdir()
    (abandoned / "lock").touch()
    monkeypatch.setattr("fcntl.flock", refuse)
    with temporary_folder("smoe-test-", tmp_path):
        pass
    assert names(tmp_path) == ["smoe-test-1"]
