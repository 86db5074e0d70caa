"""Checkpoints as directories of torch.distributed.checkpoint, and back."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from smoe.training.checkpoints import CheckpointError, load_checkpoint, save_checkpoint

dcp = pytest.importorskip("torch.distributed.checkpoint", exc_type=ImportError)
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def make_state() -> dict[str, Any]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(4, 2)).square().sum().backward()
    optimizer.step()
    states = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "average": None, "empty": {}}
    return {**states, "history": [{"loss": 1.0}], "pair": (1, 2.0), "processes": [{"torch_rng": torch.get_rng_state()}]}


def assert_equal(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, torch.Tensor):
        assert torch.equal(ours, theirs) and ours.dtype == theirs.dtype
    elif isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            assert_equal(ours[key], value)
    elif isinstance(theirs, (list, tuple)):
        assert type(ours) is type(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            assert_equal(mine, other)
    else:
        assert ours == theirs and type(ours) is type(theirs)


def refused(folder: Path) -> str:
    from smoe.training.dcp import from_dcp

    target = folder.with_name("refused.pt")
    with pytest.raises(CheckpointError) as raised:
        from_dcp(folder, target)
    assert not target.exists() and "\n" not in str(raised.value)
    return str(raised.value)


def test_a_checkpoint_survives_the_way_there_and_back(tmp_path: Path) -> None:
    from smoe.training.dcp import from_dcp, to_dcp

    save_checkpoint(tmp_path / "last.pt", make_state())
    to_dcp(tmp_path / "last.pt", tmp_path / "dcp")
    from_dcp(tmp_path / "dcp", tmp_path / "again.pt")
    assert_equal(load_checkpoint(tmp_path / "again.pt"), load_checkpoint(tmp_path / "last.pt"))
    with pytest.raises(CheckpointError, match="dcp exists already"):
        to_dcp(tmp_path / "last.pt", tmp_path / "dcp")
    # Programs of others load the weights by their names.
    model = {name: torch.zeros_like(value) for name, value in make_state()["model"].items()}
    dcp.load({"model": model}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert_equal(model, dict(make_state()["model"]))


def test_directories_of_other_programs_are_read(tmp_path: Path) -> None:
    from smoe.training.dcp import from_dcp

    state = {"model": make_state()["model"], "step": 3, "inner": {"rate": 0.1}}
    dcp.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    from_dcp(tmp_path / "dcp", tmp_path / "again.pt")
    assert_equal(load_checkpoint(tmp_path / "again.pt"), {**state, "model": dict(state["model"])})


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


@pytest.mark.parametrize("place", ["metadata", "value", "size", "file", "missing"])
def test_hostile_directories_are_refused_and_run_nothing(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "dcp"
    value: Any = Hostile() if place == "value" else 1
    dcp.save({"weight": torch.ones(3), "value": value}, checkpoint_id=folder, no_dist=True)
    file = folder / ".metadata"
    metadata: Any = pickle.loads(file.read_bytes())
    if place == "metadata":
        metadata.planner_data = Hostile()
    elif place == "size":
        metadata.state_dict_metadata["weight"].size = torch.Size([10**15])
    elif place == "file":
        for stored in metadata.storage_data.values():
            stored.relative_path = "../dcp/__0_0.distcp"
    file.write_bytes(pickle.dumps(metadata))
    if place == "missing":
        file.unlink()
    message = refused(folder)
    expected = {"metadata": "posix.mkdir", "size": "fewer bytes", "file": "name the file", "missing": "No such file"}
    assert expected.get(place, "") in message
    assert not (tmp_path / "ran").exists()
    if place == "value":
        # What torch's own reader does.
        dcp.load({"value": 0}, checkpoint_id=folder, no_dist=True)
        assert (tmp_path / "ran").exists()
