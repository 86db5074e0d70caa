"""The walks that CONTRIBUTING.md describes are those that the code takes."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch

import smoe
from gridded_files import regional

ROOT = Path(smoe.__file__).parent
CONTRIBUTING = Path(__file__).parents[1] / "CONTRIBUTING.md"


def walk(work: Callable[[], object]) -> list[str]:
    """The file of each function of smoe that is called, in their order."""
    crossed: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        del argument
        path = Path(frame.f_code.co_filename)
        # Not the bodies of modules and classes, which an import runs.
        if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED and path.is_relative_to(ROOT):
            crossed.append(path.relative_to(ROOT).as_posix())

    previous = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(previous)
    return crossed


def listed(heading: str) -> set[str]:
    """The files that a part of CONTRIBUTING.md names in its steps."""
    steps = CONTRIBUTING.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"`((?:[a-z]+/)?\w+\.py)`", "\n".join(re.findall(r"^(?:\d\.|   ).*", steps, re.MULTILINE))))


def test_the_files_of_a_training_step() -> None:
    layer = smoe.SpatialMoE2d.from_experts(8, 16, 8, spatial_shape=(16, 16))
    x = torch.randn(8, 8, 16, 16, requires_grad=True)
    optimizer = torch.optim.SGD(layer.parameters(), 1e-3)
    for _ in range(2):
        layer(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    crossed = walk(lambda: layer(x).square().sum().backward())
    assert set(crossed) == listed("The walk of a batch")
    assert len(crossed) <= 60


def test_the_files_of_a_fit(tmp_path: Path) -> None:
    path = tmp_path / "small.nc"
    regional(60, 6, 6).to_netcdf(path)

    model = smoe.GridRegressor(lead="1D", max_epochs=1, device="cpu", progress=False)
    crossed = set(walk(lambda: model.fit(path, path)))
    # Of the rooms that are described with their files; the others count by their number.
    described = {file for file in crossed if file.partition("/")[0] in ("gridded", "training") or "/" not in file}
    assert described - {"rules.py"} == listed("The walk of a fit")
    assert len(crossed) <= 40, len(crossed)
