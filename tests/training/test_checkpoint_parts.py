"""Checkpoints in parts: whole or not at all, any number of readers, damage and hostile files refused."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from smoe.training.checkpoint_parts import (
    Parts,
    ShardedTensor,
    load_whole,
    open_checkpoint,
    read_rows,
    remove_parts,
    take_out,
    write_names,
    write_part,
)
from smoe.training.checkpoints import CheckpointError, load_checkpoint, save_checkpoint

WEIGHT, SCORES = torch.arange(21.0).reshape(7, 3), torch.arange(2).unsqueeze(1)


def write(path: Path, *, num_parts: int = 3, token: str = "0123abcd", change: float = 0.0) -> Parts:
    """A checkpoint with a tensor of seven rows and one of two: as many processes have none of its rows."""
    parts = [[*(WEIGHT + change).chunk(num_parts)], [*SCORES.chunk(num_parts)]]
    for chunks, whole in zip(parts, (WEIGHT, SCORES), strict=True):
        chunks += [whole[:0]] * (num_parts - len(chunks))
    digests = [
        write_part(path, token, number, num_parts, [chunks[number] for chunks in parts]) for number in range(num_parts)
    ]
    places: Sequence[tuple[str | int, ...]] = [("model", "weight"), ("optimizer", "state", 0, "scores")]
    tensors = [
        ShardedTensor(place, tuple(whole.shape), tuple(len(chunk) for chunk in chunks))
        for place, whole, chunks in zip(places, (WEIGHT, SCORES), parts, strict=True)
    ]
    made = Parts(path, token, tuple(digests), tuple(tensors))
    write_names(made, {"model": {"bias": torch.ones(2)}, "optimizer": {"state": {0: {"step": 3}}}, "epoch": 4})
    remove_parts(path, keep=token)
    return made


def refused(path: Path) -> str:
    with pytest.raises(CheckpointError) as raised:
        load_whole(path)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("num_parts", [1, 2, 3, 9])
def test_what_was_written_in_parts_is_read_whole_or_by_any_number_of_processes(tmp_path: Path, num_parts: int) -> None:
    path = tmp_path / "last.pt"
    parts = write(path, num_parts=num_parts)
    state = load_whole(path)
    assert (state["epoch"], state["optimizer"]["state"][0]["step"]) == (4, 3)
    assert torch.equal(state["model"]["weight"], WEIGHT) and torch.equal(state["model"]["bias"], torch.ones(2))
    assert torch.equal(state["optimizer"]["state"][0]["scores"], SCORES)
    for num_readers in (1, 2, 4, 8):

        def rows(num_rows: int, reader: int) -> tuple[int, int]:
            size = -(-num_rows // num_readers)  # noqa: B023
            return min(num_rows, reader * size), min(num_rows, (reader + 1) * size)

        read = [read_rows(parts, lambda n, reader=reader: rows(n, reader)) for reader in range(num_readers)]
        for tensors, whole in zip(zip(*read, strict=True), (WEIGHT, SCORES), strict=True):
            assert torch.equal(torch.cat(tensors), whole)
            assert all(tensor.dtype == whole.dtype for tensor in tensors)


def test_only_the_parts_that_hold_wanted_rows_are_read(tmp_path: Path) -> None:
    parts = write(tmp_path / "last.pt", num_parts=7)
    for number in range(1, 6):
        parts.file(number).unlink()
    last, none = read_rows(parts, lambda num_rows: (num_rows - 1, num_rows) if num_rows == 7 else (0, 0))
    assert torch.equal(last, WEIGHT[6:]) and none.shape == (0, 1) and none.dtype == torch.int64


def test_a_new_checkpoint_replaces_the_parts_and_whole_ones_need_none(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    write(path, token="00000000")
    write(path, token="11111111", num_parts=2, change=1.0)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "last.pt", "last.pt.11111111.0of2", "last.pt.11111111.1of2",
    ]  # fmt: skip
    assert torch.equal(load_whole(path)["model"]["weight"], WEIGHT + 1.0)
    save_checkpoint(path, {"model": {}})
    remove_parts(path)
    assert [file.name for file in tmp_path.iterdir()] == ["last.pt"]
    assert load_whole(path) == {"model": {}}


def test_any_change_of_a_part_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    parts = write(path)
    file = parts.file(1)
    content = file.read_bytes()
    for position in random.Random(0).sample(range(len(content)), 40):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        file.write_bytes(damaged)
        assert f"checkpoint {file} is damaged" in refused(path)
    file.write_bytes(content[: len(content) // 2])
    assert "does not end in a checksum" in refused(path)
    file.unlink()
    assert f"there is no checkpoint {file}" in refused(path)
    # A part of another checkpoint has a right checksum of its own.
    other = tmp_path / "other"
    other.mkdir()
    file.write_bytes(write(other / "last.pt", change=1.0).file(1).read_bytes())
    assert f"{file} is damaged: it was exchanged for another file" in refused(path)


def test_hostile_tables_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    write(path)
    stored = load_checkpoint(path)
    table = stored["parts"]
    place, shape, rows = table["tensors"][0]
    changes = [
        {"token": "../../etc"}, {"token": 3}, {"digests": 3}, {"digests": table["digests"][:2]}, {"tensors": [1]},
        *({"tensors": [(place, *numbers)]} for numbers in (
            ((8, 3), rows), (shape, (8, 3, -4)), ((10**15, 3), (10**15, 0, 0)), ((), rows), (shape, (7.0, 0, 0)),
        )),
        {"tensors": [((), shape, rows)]}, {"tensors": [(3, shape, rows)]}, {"tensors": []},
    ]  # fmt: skip
    for change in changes:
        save_checkpoint(path, {**stored, "parts": {**table, **change}})
        assert "is refused" in refused(path)
    for parts in (3, {}, [table]):
        save_checkpoint(path, {**stored, "parts": parts})
        assert "is refused" in refused(path)
    save_checkpoint(path, {"parts": table})
    assert "is refused" in refused(path)


@pytest.mark.parametrize("kind", ["shared", "expanded"])
def test_parts_take_no_more_memory_than_their_files(tmp_path: Path, kind: str) -> None:
    path, token = tmp_path / "last.pt", "0123abcd"
    one = torch.zeros(100, 100) if kind == "shared" else torch.zeros(1).expand(10**6, 10**6)
    values = [one] * (50 if kind == "shared" else 1)
    digest = save_checkpoint(tmp_path / f"last.pt.{token}.0of1", {"tensors": values})
    table = [(("model", number), tuple(one.shape), (len(one),)) for number in range(len(values))]
    save_checkpoint(path, {"parts": {"token": token, "digests": [digest], "tensors": table}, "state": {"model": {}}})
    assert ("claim more bytes" if kind == "shared" else "must have the shape") in refused(path)


def test_a_checkpoint_that_is_replaced_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "last.pt"
    write(path, token="00000000")
    opened = open_checkpoint

    def open_and_replace(path: Path) -> object:
        monkeypatch.undo()
        found = opened(path)
        write(path, token="11111111", change=1.0)
        return found

    monkeypatch.setattr("smoe.training.checkpoint_parts.open_checkpoint", open_and_replace)
    assert torch.equal(load_whole(path)["model"]["weight"], WEIGHT + 1.0)


def test_hosts_that_share_no_file_system_are_told(tmp_path: Path) -> None:
    tensor = ShardedTensor(("model", "weight"), (2,), (1, 1))
    digest = write_part(tmp_path / "last.pt", "0123abcd", 0, 2, [torch.ones(1)])
    with pytest.raises(CheckpointError, match=r"process 1 has written .*1of2, which process 0 does not see: .* share"):
        write_names(Parts(tmp_path / "last.pt", "0123abcd", (digest, digest), (tensor,)), {})
    assert not (tmp_path / "last.pt").exists()


def test_take_out_finds_values_in_nested_dictionaries() -> None:
    left, taken = take_out({"a": {1: WEIGHT, "b": {}}, "c": [SCORES]}, Tensor)
    assert left == {"a": {"b": {}}, "c": [SCORES]} and list(taken) == [("a", 1)]


def test_a_kill_leaves_the_old_checkpoint_or_the_new_one(tmp_path: Path) -> None:
    program = (
        "import secrets, sys, torch; from pathlib import Path\n"
        "from smoe.training.checkpoint_parts import *\n"
        "path, number = Path(sys.argv[1]), 0\n"
        "while True:\n"
        "    number += 1; token = secrets.token_hex(4); values = torch.full((30_000,), float(number))\n"
        "    digests = [write_part(path, token, part, 3, [values]) for part in range(3)]\n"
        "    tensor = ShardedTensor(('weight',), (90_000,), (30_000,) * 3)\n"
        "    write_names(Parts(path, token, tuple(digests), (tensor,)), {'number': number})\n"
        "    remove_parts(path, keep=token)\n"
    )
    path, draw = tmp_path / "last.pt", random.Random(0)
    process = subprocess.Popen([sys.executable, "-c", program, str(path)])
    try:
        until = time.monotonic() + 60
        while not path.exists() and time.monotonic() < until:
            time.sleep(0.01)
        numbers = []
        for _ in range(20):
            time.sleep(draw.uniform(0.0, 0.05))
            process.send_signal(signal.SIGSTOP)  # what a kill at this moment would leave
            state = load_whole(path)
            assert (state["weight"] == state["number"]).all()
            numbers.append(state["number"])
            process.send_signal(signal.SIGCONT)
    finally:
        process.kill()
        process.wait()
    assert numbers == sorted(numbers) and numbers[-1] > numbers[0]
    assert (load_whole(path)["weight"] == load_whole(path)["number"]).all()
