"""Checkpoints, in one file and in parts: whole or not at all, for any number of readers; damaged ones are refused."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from smoe.training import checkpoints
from smoe.training.checkpoints import (
    CheckpointError,
    load_checkpoint,
    open_checkpoint,
    part_names,
    save_checkpoint,
    save_part,
)

WEIGHT, SCORES = torch.arange(21.0).reshape(7, 3), torch.arange(2).unsqueeze(1)


class Shard(torch.Tensor):
    """Rows of a tensor, as a process holds them."""

    def to_local(self) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)


def write(path: Path, num_parts: int = 3, change: float = 0.0) -> list[Path]:
    """A checkpoint with a tensor of seven rows and one of two: as many processes have none of its rows."""
    chunks = [[*whole.chunk(num_parts)] for whole in (WEIGHT + change, SCORES)]
    for pieces, whole in zip(chunks, (WEIGHT, SCORES), strict=True):
        pieces += [whole[:0]] * (num_parts - len(pieces))
    parts, state = part_names(path, num_parts), {}
    for number, part in enumerate(parts):
        weight, scores = (pieces[number].as_subclass(Shard) for pieces in chunks)
        moments = {"state": {0: {"step": 3, "scores": scores}}}
        state = {"model": {"weight": weight, "bias": torch.ones(2)}, "optimizer": moments, "epoch": 4}
        save_part(part, state)
    save_checkpoint(path, state, parts)
    return parts


def refused(path: Path) -> str:
    with pytest.raises(CheckpointError) as raised:
        load_checkpoint(path)
    assert "\n" not in str(raised.value) and path.name in str(raised.value)
    return str(raised.value)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    weight, shared = torch.randn(3, 4), torch.arange(3)
    state: dict[str, Any] = {
        "model": {"0.weight": weight.t(), "tied": weight.t(), "half": weight.bfloat16(), "mask": weight > 0},
        "optimizer": {"state": {0: {"step": torch.tensor(7.0)}}, "groups": [{"betas": (0.9, 0.999), "foreach": None}]},
        "epoch": 7,
        "history": [{"loss": 0.1 + 0.2, "best": -math.inf, "$odd": {}}],
        "random": [shared, shared[1:]],
    }
    save_checkpoint(tmp_path / "checkpoints" / "last.safetensors", state)
    loaded = load_checkpoint(tmp_path / "checkpoints" / "last.safetensors")
    for name, value in state["model"].items():
        assert torch.equal(loaded["model"][name], value) and loaded["model"][name].dtype == value.dtype
    assert torch.equal(loaded["random"][1], shared[1:])
    step = loaded["optimizer"]["state"][0].pop("step")
    assert step == 7.0 and step.shape == ()
    for rest in (loaded, state):
        del rest["model"], rest["random"]
    state["optimizer"]["state"][0].clear()
    assert loaded == state
    assert [file.name for file in (tmp_path / "checkpoints").iterdir()] == ["last.safetensors"]
    # Other programs find the weights by their names.
    assert "model/0.weight" in load_file(tmp_path / "checkpoints" / "last.safetensors")


def test_what_no_checkpoint_can_hold_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"model/code is a function; a checkpoint holds tensors and plain values"):
        save_checkpoint(tmp_path / "last.safetensors", {"model": {"code": write}})
    with pytest.raises(ValueError, match=r"two tensors of a checkpoint have the name 'a/b/c'"):
        save_checkpoint(tmp_path / "last.safetensors", {"a/b": {"c": WEIGHT}, "a": {"b": {"c": WEIGHT}}})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("num_parts", [1, 2, 3, 9])
def test_what_was_written_in_parts_is_read_whole_or_by_any_number_of_processes(tmp_path: Path, num_parts: int) -> None:
    path = tmp_path / "last.safetensors"
    write(path, num_parts)
    state = load_checkpoint(path)
    assert (state["epoch"], state["optimizer"]["state"][0]["step"]) == (4, 3)
    assert torch.equal(state["model"]["weight"], WEIGHT) and torch.equal(state["model"]["bias"], torch.ones(2))
    assert torch.equal(state["optimizer"]["state"][0]["scores"], SCORES)
    for num_readers in (1, 2, 4, 8):

        def read(rows: checkpoints.Rows, reader: int) -> torch.Tensor:
            size = -(-rows.shape[0] // num_readers)  # noqa: B023
            return rows.read(*(min(rows.shape[0], number * size) for number in (reader, reader + 1)))

        stored = open_checkpoint(path)
        states = [stored.state(lambda rows, reader=reader: read(rows, reader)) for reader in range(num_readers)]
        assert torch.equal(torch.cat([state["model"]["weight"] for state in states]), WEIGHT)
        scores = [state["optimizer"]["state"][0]["scores"] for state in states]
        assert torch.equal(torch.cat(scores), SCORES) and all(part.dtype == SCORES.dtype for part in scores)


def test_a_new_checkpoint_replaces_the_parts_and_whole_ones_need_none(tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"
    (tmp_path / "last.safetensors.txt").touch()
    write(path)
    parts = write(path, 2, 1.0)
    assert {*tmp_path.iterdir()} == {path, *parts, tmp_path / "last.safetensors.txt"}
    assert torch.equal(load_checkpoint(path)["model"]["weight"], WEIGHT + 1.0)
    save_checkpoint(path, {"model": {}})
    assert {*tmp_path.iterdir()} == {path, tmp_path / "last.safetensors.txt"}
    assert load_checkpoint(path) == {"model": {}}


@pytest.mark.parametrize("keep", [0, 7, 100, 0.5, 0.99])
@pytest.mark.parametrize("which", ["file", "part"])
def test_a_truncated_file_is_refused(tmp_path: Path, keep: float, which: str) -> None:
    path = tmp_path / "last.safetensors"
    parts = write(path)
    file = path if which == "file" else parts[1]
    content = file.read_bytes()
    file.write_bytes(content[: int(keep if keep >= 1 else keep * len(content))])
    assert f"checkpoint {file} is damaged, or of another program: " in refused(path)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"
    assert refused(path) == f"there is no checkpoint {path}"
    part = write(path)[1]
    part.unlink()
    assert refused(path) == f"there is no checkpoint {part}"


def test_files_of_others_are_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"
    path.write_bytes(b"\x80\x02cos\nsystem\n.")
    refused(path)
    save_file({"weight": WEIGHT}, path)
    refused(path)
    good = {"state": {"weight": {"$tensor": "weight"}}, "parts": []}
    contents: list[Any] = [
        3, {}, {**good, "parts": 3}, {**good, "parts": ["../../etc/passwd"]}, {**good, "parts": ["/etc/passwd"]},
        {**good, "parts": ["last.safetensors.0123abcd.0of1/../../x"]}, {**good, "state": 3},
        {**good, "state": {"$tensor": "other"}}, {**good, "state": {"$items": 3}},
        {**good, "state": {"$rows": "weight"}}, {**good, "state": {"a": {"$items": [[[], 1]]}}},
    ]  # fmt: skip
    for content in contents:
        save_file({"weight": WEIGHT}, path, {"smoe": json.dumps(content)})
        refused(path)
    save_file({"weight": WEIGHT}, path, {"smoe": "[" * 100_000})
    refused(path)
    save_file({"weight": WEIGHT}, path, {"smoe": json.dumps(good)})
    assert torch.equal(load_checkpoint(path)["weight"], WEIGHT)


def test_hosts_that_share_no_file_system_are_told(tmp_path: Path) -> None:
    parts = part_names(tmp_path / "last.safetensors", 2)
    save_part(parts[0], {"weight": WEIGHT.as_subclass(Shard)})
    with pytest.raises(CheckpointError, match=r"process 1 has written .*1of2, which process 0 does not see: .* share"):
        save_checkpoint(tmp_path / "last.safetensors", {"weight": WEIGHT.as_subclass(Shard)}, parts)
    assert not (tmp_path / "last.safetensors").exists()


def test_a_checkpoint_that_is_replaced_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "last.safetensors"
    write(path)
    opened = open_checkpoint

    def open_and_replace(path: Path) -> object:
        monkeypatch.undo()
        found = opened(path)
        write(path, change=1.0)
        return found

    monkeypatch.setattr(checkpoints, "open_checkpoint", open_and_replace)
    assert torch.equal(load_checkpoint(path)["model"]["weight"], WEIGHT + 1.0)


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    """A limit on the size of files, as a full disk sets one; in a process of its own."""
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, {"weight": torch.ones(10)})
    program = (
        "import resource, signal, sys, torch; from pathlib import Path\n"
        "from smoe.training.checkpoints import CheckpointError, save_checkpoint\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try:\n"
        "    save_checkpoint(Path(sys.argv[1]), {'weight': torch.zeros(1_000_000)})\n"
        "except CheckpointError as error:\n"
        "    print(error)\n"
    )
    output = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    assert "could not be written: File too large; the file before it is intact" in output.stdout
    assert load_checkpoint(path)["weight"].tolist() == [1.0] * 10
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_has_vanished_is_not_made_again(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="could not be written: No such file or directory; there is no such file"):
        save_checkpoint(tmp_path / "gone" / "last.safetensors", {}, make_folder=False)
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("num_parts", [0, 3])
def test_a_kill_leaves_the_old_checkpoint_or_the_new_one(tmp_path: Path, num_parts: int) -> None:
    program = (
        "import sys, torch; from pathlib import Path; from smoe.training.checkpoints import *\n"
        "class Shard(torch.Tensor):\n"
        "    def to_local(self): return self.as_subclass(torch.Tensor)\n"
        "path, num_parts, number = Path(sys.argv[1]), int(sys.argv[2]), 0\n"
        "while True:\n"
        "    number += 1; weight = torch.full((300_000,), float(number)); parts = part_names(path, num_parts)\n"
        "    state = {'number': number, 'weight': weight.as_subclass(Shard) if parts else weight}\n"
        "    for part in parts: save_part(part, state)\n"
        "    save_checkpoint(path, state, parts)\n"
    )
    path, draw, numbers = tmp_path / "last.safetensors", random.Random(0), []
    process = subprocess.Popen([sys.executable, "-c", program, str(path), str(num_parts)])
    try:
        until = time.monotonic() + 60
        while not path.exists() and time.monotonic() < until:
            time.sleep(0.01)
        for _ in range(20):
            time.sleep(draw.uniform(0.0, 0.05))
            process.send_signal(signal.SIGSTOP)  # what a kill at this moment would leave
            state = load_checkpoint(path)
            assert (state["weight"] == state["number"]).all()
            numbers.append(state["number"])
            process.send_signal(signal.SIGCONT)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert numbers == sorted(numbers) and numbers[-1] > numbers[0]
    assert (load_checkpoint(path)["weight"] == load_checkpoint(path)["number"]).all()
