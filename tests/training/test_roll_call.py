"""Processes meet before anything else: those that do not come, or have ended, are named."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from smoe.training import heartbeat, roll_call
from smoe.training.heartbeat import Heartbeat
from smoe.training.lost_process import Lost, WatchedProcesses, _resume_command
from smoe.training.roll_call import LostProcessError, Member, call_roll, find_processes, open_store
from smoe.training.run_directory import RunDirectory

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="torch was built without distributed")


@pytest.fixture
def store() -> Any:
    return torch.distributed.HashStore()


@pytest.fixture
def ended() -> int:
    """Identifier of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def enter(store: Any, rank: int, process: int, host: str = socket.gethostname()) -> None:
    store.set(f"member/{rank}", f"{rank} {process} {host}")


def test_all_processes_learn_of_each_other(store: Any) -> None:
    found: list[list[Member]] = []
    threads = [threading.Thread(target=lambda rank=rank: found.append(call_roll(store, rank, 3))) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(found) == 3 and found[0] == found[1] == found[2]
    assert [member.rank for member in found[0]] == [0, 1, 2]
    assert all(member.is_here and member.process == os.getpid() for member in found[0])


def test_a_process_that_does_not_start_is_named(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll_call, "START_LIMIT", 0.2)
    enter(store, 2, os.getpid())
    with pytest.raises(LostProcessError, match="rank 0 of 3 cannot start: rank 1 has not started within 0 s; look at"):
        call_roll(store, 0, 3)


def test_a_process_that_ended_while_it_waited_is_named_at_once(store: Any, ended: int) -> None:
    enter(store, 1, ended)
    started = time.monotonic()
    with pytest.raises(LostProcessError, match="rank 0 of 3 cannot start: rank 1 has ended; look at"):
        call_roll(store, 0, 3)
    assert time.monotonic() - started < 20


def test_a_store_that_ends_is_no_traceback() -> None:
    class Ended:
        def set(self, key: str, value: str) -> None:
            del key, value

        def check(self, keys: list[str]) -> bool:
            raise torch.distributed.DistNetworkError(f"Failed to recv {keys}")

    with pytest.raises(LostProcessError, match="rank 1 of 2 cannot start: rank 0 has ended, or has not started"):
        call_roll(Ended(), 1, 2)


def test_a_store_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(roll_call, "START_LIMIT", 1.0)
    assert find_processes() == (1, 2)
    with pytest.raises(LostProcessError, match=f"rank 1 of 2 cannot start: nothing answers at 127.0.0.1:{port}"):
        open_store(1, 2)


def test_one_process_watches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert find_processes() == (0, 1)
    assert not WatchedProcesses(RunDirectory(tmp_path), 0, 1).are_several


@pytest.mark.parametrize("case", ["ended", "left", "silent", "alive"])
def test_a_process_that_ends_without_a_word_is_lost(
    store: Any, ended: int, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in {"INTERVAL": 0.1, "_PATIENCE": 0.3}.items():
        monkeypatch.setattr(heartbeat, name, seconds)
    store.set_timeout(timedelta(seconds=5))
    here, process = socket.gethostname(), ended if case in ("ended", "left") else os.getpid()
    members = [Member(0, 0, here, os.getpid()), Member(1, 1, here, process)]
    store.set("heartbeat/1", "left" if case == "left" else "1")
    lost: list[int] = []
    watch = Heartbeat(0, members, store, lost.extend)
    watch.limit = 0.5 if case == "silent" else 300.0
    watch.start()
    until = time.monotonic() + (20.0 if case in ("ended", "silent") else 3.5)
    while not lost and time.monotonic() < until:
        time.sleep(0.05)
    watch.stop(is_done=True)
    assert lost == ([1] if case in ("ended", "silent") else [])
    assert store.get("heartbeat/0") == b"left"


def test_the_command_to_continue_is_for_the_hosts_that_are_left(tmp_path: Path) -> None:
    hosts = ["node1", socket.gethostname(), "node3"]
    members = [Member(rank, 0, host, 100 + rank) for rank, host in enumerate(hosts)]
    command = _resume_command(members, [Lost(members[2], 30.0)], RunDirectory(tmp_path))
    assert command == (
        "torchrun --nnodes 2 --node-rank 1 --master-addr node1 --master-port 29500 --nproc-per-node 1 -m smoe train "
        f"--resume {tmp_path}"
    )
    command = _resume_command(members[1:], [Lost(members[2], 30.0)], RunDirectory(tmp_path))
    assert command == f"torchrun --nproc-per-node 1 -m smoe train --resume {tmp_path}"
