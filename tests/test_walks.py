"""The walks that CONTRIBUTING.md describes are those that the code takes."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType

import torch

import smoe

ROOT = Path(smoe.__file__).parent
CONTRIBUTING = Path(__file__).parents[1] / "CONTRIBUTING.md"


def test_the_files_of_a_training_step() -> None:
    layer = smoe.SpatialMoE2d.from_experts(8, 16, 8, spatial_shape=(16, 16))
    x = torch.randn(8, 8, 16, 16, requires_grad=True)
    optimizer = torch.optim.SGD(layer.parameters(), 1e-3)
    for _ in range(2):
        layer(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    crossed: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        del argument
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT):
            crossed.append(path.relative_to(ROOT).as_posix())

    previous = sys.getprofile()
    sys.setprofile(note)
    try:
        layer(x).square().sum().backward()
    finally:
        sys.setprofile(previous)
    text = (
        CONTRIBUTING.read_text()
        .partition("## The walk of a batch")[2]
        .partition("\n## ")[0]
        .partition("\n\nA routing is")[0]
    )
    assert set(crossed) == set(re.findall(r"`((?:nn|ops)/\w+\.py|rules\.py)`", text))
    assert len(crossed) <= 85
