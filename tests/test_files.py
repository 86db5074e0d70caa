"""Locks, temporary folders and files that are written whole: what a kill, an error or another user leaves of them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from smoe._files import FileLock, LockedError, temporary_folder, write_atomically


def refuse(*_: object) -> int:
    raise OSError(95, "Operation not supported")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@contextmanager
def started(program: str, path: Path) -> Iterator[str]:
    """A process that has printed its first line, which is killed at the end."""
    process = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        try:
            yield process.stdout.readline().strip()
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()


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
    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(OSError, match="not supported"), FileLock(tmp_path / "lock"):
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
    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.warns(UserWarning, match="cannot be locked"), FileLock(tmp_path / "lock") as lock:
        assert not lock.is_held
    with FileLock(tmp_path / "lock", warns=False) as lock:
        assert not lock.is_held


def test_a_lock_that_is_a_link_or_a_pipe_is_refused_and_what_it_names_untouched(tmp_path: Path) -> None:
    (tmp_path / "authorized_keys").write_text("a key that is longer than a process number and a host\n")
    (tmp_path / "link").symlink_to(tmp_path / "authorized_keys")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(OSError), FileLock(tmp_path / name):
            pass
    assert (tmp_path / "authorized_keys").read_text() == "a key that is longer than a process number and a host\n"


def test_a_link_in_an_abandoned_folder_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (tmp_path / "smoe-test-1").mkdir()
    (tmp_path / "smoe-test-1" / "lock").symlink_to(precious)
    (tmp_path / "smoe-test-2").symlink_to(tmp_path / "smoe-test-1")
    with temporary_folder("smoe-test-", tmp_path):
        pass
    assert precious.read_text() == "kept" and names(tmp_path) == ["precious", "smoe-test-1", "smoe-test-2"]


_HOLDER = """
import sys, time
from pathlib import Path
from smoe._files import temporary_folder
with temporary_folder("smoe-test-", Path(sys.argv[1])) as folder:
    (folder / "block").write_bytes(bytes(100))
    print(folder.name, flush=True)
    time.sleep(600)
"""


def test_a_folder_ends_with_its_process_or_at_the_next_start(tmp_path: Path) -> None:
    (tmp_path / "smoe-other").mkdir()
    with started(_HOLDER, tmp_path) as theirs, temporary_folder("smoe-test-", tmp_path) as ours:
        assert names(tmp_path) == sorted(["smoe-other", theirs, ours.name])
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
    abandoned = tmp_path / "smoe-test-1"
    abandoned.mkdir()
    (abandoned / "lock").touch()
    monkeypatch.setattr("fcntl.flock", refuse)
    with temporary_folder("smoe-test-", tmp_path):
        pass
    assert names(tmp_path) == ["smoe-test-1"]


_WRITER = """
import sys, time
from pathlib import Path
from smoe._files import write_atomically
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
    with started(_WRITER, path) as said:
        assert said == "writing"
        write_atomically(path, lambda file: file.write(b"whole"))
        assert len(names(tmp_path)) == 2 and path.read_bytes() == b"whole"
    write_atomically(path, lambda file: file.write(b"again"))
    assert names(tmp_path) == [path.name] and path.read_bytes() == b"again"


def test_a_write_that_fails_keeps_the_old_file_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(OSError, match="not supported"):
        write_atomically(path, refuse)
    assert path.read_text() == "old" and names(tmp_path) == ["a.txt"]
