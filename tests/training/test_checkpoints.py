from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from smoe.training.checkpoints import CheckpointError, load_checkpoint, save_checkpoint


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    state = {"model": {"weight": torch.randn(3, 4)}, "epoch": 7, "best": None, "history": [{"epoch": 1, "loss": 0.5}]}
    save_checkpoint(tmp_path / "checkpoints" / "last.pt", state)
    loaded = load_checkpoint(tmp_path / "checkpoints" / "last.pt")
    assert torch.equal(loaded["model"].pop("weight"), state["model"].pop("weight"))  # type: ignore[union-attr]
    assert loaded == state
    assert [file.name for file in (tmp_path / "checkpoints").iterdir()] == ["last.pt"]


def test_a_flipped_byte_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "last.pt"
    save_checkpoint(file, {"weight": torch.arange(1000.0)})
    content = bytearray(file.read_bytes())
    position = content.find(torch.arange(1000.0).numpy().tobytes()[2000:2040])
    content[position] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="is damaged: the checksum"):
        load_checkpoint(file)


@pytest.mark.parametrize("keep", [0, 100, 0.5, 0.99])
def test_a_truncated_file_is_noticed(tmp_path: Path, keep: float) -> None:
    file = tmp_path / "last.pt"
    save_checkpoint(file, {"weight": torch.arange(1000.0)})
    content = file.read_bytes()
    file.write_bytes(content[: int(keep if keep >= 1 else keep * len(content))])
    with pytest.raises(CheckpointError, match="is damaged"):
        load_checkpoint(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no checkpoint .*last\.pt"):
        load_checkpoint(tmp_path / "last.pt")


def test_a_kill_while_saving_leaves_a_loadable_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "last.pt"
    # 40 MB take long enough to write that most kills fall into a write.
    program = (
        "import sys, torch; from pathlib import Path; from smoe.training.checkpoints import save_checkpoint\n"
        "weight, number = torch.zeros(10_000_000), 0\n"
        "while True:\n"
        "    number += 1; weight.fill_(number); save_checkpoint(Path(sys.argv[1]), {'n': number, 'weight': weight})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(file)])
    try:
        deadline = time.monotonic() + 60
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    loaded = load_checkpoint(file)
    assert bool((loaded["weight"] == loaded["n"]).all())
