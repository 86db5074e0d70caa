"""Reports of models that are made in a moment, for tests of the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from smoe import SpatialMoE2d
from smoe._maps import Axis, Places
from smoe.diagnostics import RoutingGain, fixed_choices
from smoe.nn import TensorGate
from smoe.reports.gate_maps import GateMap, read_gates
from smoe.reports.run_report import Breakdown, ErrorMap, Example, Monitor, RunReport, ScoreRow, ScoreSheet

GRID = (5, 7)
GAINS = [
    RoutingGain("first", 1.0, 1.5, 0.1, 8, is_alone=True).as_record(),
    RoutingGain("second", 1.0, 1.01, 0.1, 8, is_alone=True).as_record(),
    RoutingGain("all 2 layers", 1.0, 1.6, 0.1, 8).as_record(),
]


class TwoLayers(nn.Module):
    """Two SMoE layers with gates of their own; random scores."""

    def __init__(self, seed: int, grid: tuple[int, int] = GRID) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.first = SpatialMoE2d.from_experts(1, 4, 2, spatial_shape=grid, order="score", rule="rc")
        self.second = SpatialMoE2d.from_experts(2, 3, 1, spatial_shape=grid, order="score", rule="rc")
        for layer in (self.first, self.second):
            assert isinstance(layer.gate, TensorGate)
            with torch.no_grad():
                layer.gate.scores.copy_(torch.rand(layer.gate.scores.shape, generator=generator))


def sample_report(label: str = "first", seed: int = 0, **changes: Any) -> RunReport:
    """A run with two gates, three epochs, an error map with a plain net beside it, and known regions."""
    model = TwoLayers(seed)
    errors = np.random.default_rng(seed).uniform(0.5, 1.5, GRID)
    history = [
        {"epoch": 1, "train/loss": 3.0, "validation/loss": 2.5 + seed, "routing/changed": 0.5},
        {"epoch": 2, "train/loss": 2.0, "validation/loss": None, "routing/changed": 0.25},
        {"epoch": 3, "train/loss": 1.0, "validation/loss": 1.5 + seed, "routing/changed": 0.125},
        {"epoch": 3, "test/mse": 1.0 + seed, "stopped": "3 epochs done", "total_seconds": 12.5, "routing_gains": GAINS},
    ]
    rows = (
        ScoreRow("heat/smoe", "this run", {"mse": 1.0 + seed, "mse/part": 0.5}, is_own=True),
        ScoreRow("input unchanged", "here, same data", {"mse": 4.0}),
        ScoreRow(
            "heat/smoe (this recipe)",
            "published, Table 1",
            {"mse": 0.75},
            {"mse": 0.1},
            is_published=True,
            is_same_recipe=True,
        ),
        ScoreRow("heat/conv", "published, Table 1", {"mse": 1.25}, is_published=True),
    )
    report = RunReport(
        label=label,
        title="heat/smoe",
        path=Path(label),
        seed=seed,
        num_parameters=123 + seed,
        is_plain=False,
        checkpoint="best weights",
        scores=ScoreSheet("test", rows),
        history=history,
        monitor=Monitor("validation/loss"),
        places=Places("grid", GRID),
        gates=read_gates(
            model, Places("grid", GRID), film={0: fixed_choices(TwoLayers(seed + 1)), 4: fixed_choices(model)}
        ),
        regions=np.arange(GRID[0] * GRID[1]) % 3,
        error_maps=(ErrorMap("temperature, RMSE", "K", errors, {"conv": 2.0 * errors, "persistence": 4.0 * errors}),),
        filters={"diffusivity 0.1": np.eye(3)},
        examples=(
            Example("temperature, day 1", "K", ("temperature", "K", errors), 2.0 * errors, 3.0 * errors),
            Example("temperature, day 2", "K", ("wind", "m/s", errors), errors, errors),
        ),
        breakdowns=(
            Breakdown(
                "temperature, RMSE by month", "month", (1, 7), {"this run": (1.0, 2.0), "conv": (2.0, 3.0)}, " K"
            ),
        ),
        reliability=(Breakdown("truths below", "quantile, %", (10.0, 90.0), {"this run": (12.0, 88.0)}, " %"),),
        command="smoe train heat/smoe --seed 0",
        recipe={"data": {"num_steps": 3}, "seed": seed},
        facts={"torch": "2.13", "SHA-256 of the test split": "abc"},
    )
    # The examples lie on the grid of the sample.
    return replace(report, **({"examples": ()} if "places" in changes else {}), **changes)


def random_gate(places: Places, num_experts: int = 5, num_selected: int = 2, seed: int = 0) -> GateMap:
    """A gate with random choices at any places."""
    generator = np.random.default_rng(seed)
    scores = generator.random((num_experts, places.num_pixels)).astype(np.float32)
    choices = np.argsort(-scores, axis=0, kind="stable")[:num_selected].astype(np.int32)
    best = np.take_along_axis(scores, choices, axis=0)
    use = np.bincount(choices.ravel(), minlength=num_experts) / places.num_pixels
    return GateMap(("layer",), "TensorGate", "rc", num_experts, places, choices, best, use, None, False)


def place_samples() -> dict[str, Places]:
    """One of each kind of places."""
    latitude, longitude = np.arange(-82.5, 90.0, 15.0), np.arange(0.0, 360.0, 15.0)
    rows, columns = np.meshgrid(np.linspace(40.0, 50.0, 6), np.linspace(5.0, 20.0, 8), indexing="ij")
    corners = np.array(
        [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0], [0, 0, -1]]
    )
    square = np.stack(np.meshgrid(np.arange(4.0), np.arange(3.0), indexing="ij"), axis=-1).reshape(-1, 2)
    return {
        "globe": Places.globe(latitude, longitude),
        "region": Places(
            "grid",
            (6, 8),
            Axis("latitude", np.linspace(40.0, 50.0, 6), "degrees_north"),
            Axis("longitude", np.linspace(-5.0, 20.0, 8), "degrees_east"),
            goes_up=True,
            is_geographic=True,
        ),
        "pixels": Places("grid", (6, 8), Axis("latitude", rows), Axis("longitude", columns), True, True),
        "projected": Places("grid", (4, 6), Axis("y", np.arange(4.0), "km"), Axis("x", np.arange(6.0), "km"), True),
        "line": Places("grid", (100,)),
        "volume": Places("grid", (3, 4, 5)),
        "mesh": Places("mesh", (6,), coordinates=corners),
        "flat mesh": Places("mesh", (12,), coordinates=square),
    }
