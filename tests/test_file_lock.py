"""Locks: who holds them, and what an error or another process leaves of them."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from smoe.file_lock import FileLock, LockedError


def test_the_holder_is_named_with_its_host_if_that_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with FileLock(path):
        with pytest.raises(LockedError, match=f"^process {os.getpid()} has the lock"), FileLock(path):
            pass
        path.write_text("71 node4\n")
        with pytest.raises(LockedError, match="process 71 on node4 has the lock"), FileLock(path):
            pass
        path.write_text("")
        with pytest.raises(LockedError, match="another process has the lock"), FileLock(path):
            pass
    assert socket.gethostname() != "node4"


def test_a_disk_that_is_full_leaves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(OSError, match="No space left"), FileLock(tmp_path / "lock"):
        pass
    assert not any(tmp_path.iterdir())
    monkeypatch.undo()
    with FileLock(tmp_path / "lock") as lock:
        assert lock.is_held


def test_the_lock_of_another_process_at_the_same_path_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with FileLock(path):
        path.unlink()
        other = FileLock(path)
        other.__enter__()
    with pytest.raises(LockedError), FileLock(path):
        pass
    other.__exit__()
    assert not path.exists()


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.warns(UserWarning, match="cannot be locked"), FileLock(tmp_path / "lock") as lock:
        assert not lock.is_held
    with FileLock(tmp_path / "lock", warns=False) as lock:
        assert not lock.is_held
