"""Makes the data and the training task of a heat recipe."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from smoe._plain import to_plain
from smoe.training.task import Task
from smoe_paper.experiments.assemble import assemble_task
from smoe_paper.experiments.dry_task import DryTask
from smoe_paper.experiments.experiment import SPLITS, Notify
from smoe_paper.experiments.gated_layers import Learning
from smoe_paper.heat.build_model import build_auxiliary_loss, build_model
from smoe_paper.heat.data import (
    HeatPairs,
    draw_initial_states,
    grow_region_map,
    load_frames,
    load_region_map,
    save_frames,
    simulate_heat,
)
from smoe_paper.heat.recipes import HeatDiffusion, HeatRecipe
from smoe_paper.metrics import MeanAbsoluteError, MeanSquaredError, PercentWithin


def build_task(recipe: HeatRecipe, splits: tuple[str, ...] = SPLITS, notify: Notify = print) -> Task:
    """Makes everything that the training loop needs.

    Args:
        recipe: Recipe to train.
        splits: Data to simulate.
        notify: Receives messages about what is being simulated.
    """
    region_map = make_region_map(recipe.data)
    data = {split: make_split(recipe.data, region_map, split, notify) for split in splits}
    torch.manual_seed(recipe.seed)
    model = build_model(recipe.model, Learning.of(recipe), region_map, recipe.data.diffusivities)
    options: dict[str, Any] = {"regions": torch.from_numpy(region_map)}
    balancing_loss = build_auxiliary_loss(recipe.model)
    if balancing_loss is not None:
        options["auxiliary_loss"] = balancing_loss
    within = PercentWithin(0.01, 1e-8 * recipe.data.unit, region_map)
    return assemble_task(
        recipe,
        model,
        F.mse_loss if recipe.loss == "mse" else F.l1_loss,
        [within, MeanSquaredError(), MeanAbsoluteError()],
        data,
        HeatPairs.collate,
        **options,
    )


def make_region_map(data: HeatDiffusion) -> np.ndarray:
    """Returns the map of region types `(H, W)`, loaded or generated."""
    if data.region_map is not None:
        return load_region_map(data.region_map)
    return grow_region_map(data.spatial_shape, len(data.diffusivities), data.region_seed)


def make_split(data: HeatDiffusion, region_map: np.ndarray, split: str, notify: Notify = print) -> HeatPairs:
    """Simulates a split, or opens the frames that an earlier run stored in `cache_dir`."""
    num_runs, seed = {
        "train": (data.num_train_runs, data.train_seed),
        "validation": (data.num_validation_runs, data.validation_seed),
        "test": (data.num_test_runs, data.test_seed),
    }[split]
    what_matters = {
        "diffusivities": to_plain(data.diffusivities),
        "num_steps": data.num_steps,
        "num_runs": num_runs,
        "seed": seed,
        "region_map": hashlib.sha256(region_map.tobytes()).hexdigest(),
    }
    path = None if data.cache_dir is None else data.cache_dir / f"heat-{split}-{_digest(what_matters)}.npy"
    if path is not None and path.exists():
        return _in_unit(load_frames(path, shape=(num_runs, data.num_steps + 1, *region_map.shape)), data.unit)
    notify(f"simulating {num_runs} runs of {data.num_steps} steps ({split})")
    initial_states = draw_initial_states(region_map, num_runs, seed)
    frames = simulate_heat(initial_states, region_map, data.diffusivities, data.num_steps)
    if path is not None:
        save_frames(path, frames)
    return _in_unit(frames, data.unit)


def _in_unit(frames: np.ndarray, unit: float) -> HeatPairs:
    return HeatPairs(frames if unit == 1.0 else frames * np.float32(unit))


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def build_dry_task(recipe: HeatRecipe) -> DryTask:
    """Makes the task without simulating or reading fields."""
    rows, columns = make_region_map(recipe.data).shape
    field = (1, int(rows), int(columns))
    return DryTask(build_task(recipe, ()), field, field)
