"""Checkpoints: whole or not at all; damaged ones are refused in one line."""

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

from smoe.training.run_directory import CheckpointError, load_checkpoint, save_checkpoint

WEIGHT = torch.arange(21.0).reshape(7, 3)


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
        save_checkpoint(tmp_path / "last.safetensors", {"model": {"code": refused}})
    with pytest.raises(ValueError, match=r"two tensors of a checkpoint have the name 'a/b/c'"):
        save_checkpoint(tmp_path / "last.safetensors", {"a/b": {"c": WEIGHT}, "a": {"b": {"c": WEIGHT}}})
    assert list(tmp_path.iterdir()) == []


def test_a_missing_or_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"
    assert refused(path) == f"there is no checkpoint {path}"
    save_checkpoint(path, {"model": {"weight": WEIGHT, "bias": torch.ones(2)}, "epoch": 4})
    content = path.read_bytes()
    for kept in (0, 7, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:kept])
        assert f"checkpoint {path} is damaged, or of another program: " in refused(path)


def test_files_of_others_are_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"
    path.write_bytes(b"\x80\x02cos\nsystem\n.")
    refused(path)
    save_file({"weight": WEIGHT}, path)
    refused(path)
    contents: list[Any] = [3, "x", {"$tensor": "other"}, {"$items": 3}, {"a": {"$items": [[[], 1]]}}]
    for content in contents:
        save_file({"weight": WEIGHT}, path, {"smoe": json.dumps(content)})
        refused(path)
    save_file({"weight": WEIGHT}, path, {"smoe": "[" * 100_000})
    refused(path)
    save_file({"weight": WEIGHT}, path, {"smoe": json.dumps({"weight": {"$tensor": "weight"}})})
    assert torch.equal(load_checkpoint(path)["weight"], WEIGHT)


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    """A limit on the size of files, as a full disk sets one; in a process of its own."""
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, {"weight": torch.ones(10)})
    program = (
        "import resource, signal, sys, torch; from pathlib import Path\n"
        "from smoe.training.run_directory import CheckpointError, save_checkpoint\n"
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


def test_a_kill_leaves_the_old_checkpoint_or_the_new_one(tmp_path: Path) -> None:
    program = (
        "import sys, torch; from pathlib import Path; from smoe.training.run_directory import *\n"
        "number = 0\n"
        "while True:\n"
        "    number += 1\n"
        "    save_checkpoint(Path(sys.argv[1]), {'number': number, 'weight': torch.full((300_000,), float(number))})\n"
    )
    path, draw, numbers = tmp_path / "last.safetensors", random.Random(0), []
    process = subprocess.Popen([sys.executable, "-c", program, str(path)])
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
