"""Makes the data and the training task of a recipe of heat diffusion on meshes."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset

from smoe.training.task import Task
from smoe_paper.experiments.assemble import assemble_task
from smoe_paper.experiments.dry_task import DryTask
from smoe_paper.experiments.experiment import SPLITS, Notify
from smoe_paper.experiments.gated_layers import Learning
from smoe_paper.heat.data import load_frames, save_frames
from smoe_paper.heat_mesh.build_model import build_model
from smoe_paper.heat_mesh.data.diffusion import draw_states, grow_regions, simulate
from smoe_paper.heat_mesh.data.domains import DOMAINS, Domain
from smoe_paper.heat_mesh.recipes import MeshDiffusion, MeshRecipe
from smoe_paper.metrics import MeanAbsoluteError, MeanSquaredError, PercentWithin

_SEEDS = {"train": 42, "validation": 546981, "test": 865124}


class MeshPairs(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Pairs of consecutive frames, `(1, *grid)`; whole batches come stacked from `__getitems__`.

    Args:
        frames: `(R, T + 1, N)`, float32.
        spatial_shape: Grid of the nodes.
    """

    def __init__(self, frames: torch.Tensor, spatial_shape: tuple[int, ...]) -> None:
        self.num_steps = frames.shape[1] - 1
        self._num_pairs = len(frames) * self.num_steps
        self._frames = frames.reshape(-1, 1, *spatial_shape)

    def __len__(self) -> int:
        """The number of pairs."""
        return self._num_pairs

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The input and the target of a pair."""
        if not 0 <= index < self._num_pairs:
            raise IndexError(f"index must be in [0, {self._num_pairs - 1}], got {index}")
        frame = index + index // self.num_steps
        return self._frames[frame], self._frames[frame + 1]

    def __getitems__(self, indices: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """The inputs and targets of a batch."""
        numbers = torch.tensor(indices, dtype=torch.int64)
        frame = numbers + numbers // self.num_steps
        return self._frames[frame], self._frames[frame + 1]

    @staticmethod
    def collate(batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The batch as it is."""
        return batch


@functools.lru_cache(maxsize=2)
def make_domain(name: str) -> Domain:
    """The domain of that name."""
    return DOMAINS[name]()


def make_regions(data: MeshDiffusion) -> np.ndarray:
    """The region type of each node, `(N,)`."""
    return grow_regions(make_domain(data.domain), len(data.rates), data.region_seed)


def make_split(data: MeshDiffusion, regions: np.ndarray, split: str, notify: Notify = print) -> MeshPairs:
    """Simulates a split, or opens what an earlier run kept in `cache_dir`."""
    num_runs = {
        "train": data.num_train_runs,
        "validation": data.num_validation_runs,
        "test": data.num_test_runs,
    }[split]
    domain = make_domain(data.domain)
    path = None
    if data.cache_dir is not None:
        content = [
            data.domain,
            list(data.rates),
            data.num_steps,
            num_runs,
            hashlib.sha256(regions.tobytes()).hexdigest(),
        ]
        digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]
        path = data.cache_dir / f"heat-mesh-{split}-{digest}.npy"
    if path is not None and path.exists():
        frames = load_frames(path, shape=(num_runs, data.num_steps + 1, domain.num_nodes, 1))
        return MeshPairs(torch.from_numpy(frames).squeeze(-1), domain.spatial_shape)
    notify(f"simulating {num_runs} runs of {data.num_steps} steps on {domain.name} ({split})")
    states = draw_states(regions, num_runs, _SEEDS[split])
    simulated = simulate(domain, regions, data.rates, states, data.num_steps)
    if path is not None:
        save_frames(path, simulated.unsqueeze(-1).numpy())
    return MeshPairs(simulated, domain.spatial_shape)


def build_task(recipe: MeshRecipe, splits: tuple[str, ...] = SPLITS, notify: Notify = print) -> Task:
    """Makes everything that the training loop needs.

    Args:
        recipe: Recipe to train.
        splits: Data to simulate.
        notify: Receives messages about what is being simulated.
    """
    regions = make_regions(recipe.data)
    data = {split: make_split(recipe.data, regions, split, notify) for split in splits}
    domain = make_domain(recipe.data.domain)
    torch.manual_seed(recipe.seed)
    model = build_model(recipe.model, Learning.of(recipe), domain)
    return assemble_task(
        recipe,
        model,
        F.mse_loss,
        [PercentWithin(0.01, 1e-8), MeanSquaredError(), MeanAbsoluteError()],
        data,
        MeshPairs.collate,
    )


def build_dry_task(recipe: MeshRecipe) -> DryTask:
    """Makes the task without simulating."""
    field = (1, *make_domain(recipe.data.domain).spatial_shape)
    return DryTask(build_task(recipe, ()), field, field)
