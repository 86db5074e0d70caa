"""Heat diffusion on maps of regions that conduct differently: the maps, the simulation, pairs of frames."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from smoe_paper.experiments.experiment import Notify
from smoe_paper.experiments.task import BatchedSamples
from smoe_paper.heat.recipes import HeatDiffusion

# Of the 8 neighbours of a pixel a raster scan has visited 4: one to the left and three above.
_VISITED_NEIGHBOURS = ((0, -1), (-1, -1), (-1, 0), (-1, 1))


def grow_region_map(shape: tuple[int, int], num_types: int, seed: int = 42) -> np.ndarray:
    """Grow a random map of regions by preferential attachment, in one raster scan.

    A pixel starts with probability 1/n for each of the n types. Each neighbour already assigned, of the eight around
    it, raises the probability of its own type by `(1 - 1/n) / 5` and lowers the others equally. At most four
    neighbours are assigned before a pixel, so no probability falls below 1/(5n) and they always sum to 1.
    """
    height, width = shape
    if height < 1 or width < 1:
        raise ValueError(f"shape must be at least (1, 1), got {tuple(shape)}")
    if num_types < 1:
        raise ValueError(f"num_types must be at least 1, got {num_types}")
    if num_types == 1:
        return np.zeros((height, width), dtype=np.int64)

    rng = np.random.default_rng(seed)
    gain = (1 - 1 / num_types) / 5
    loss = gain / (num_types - 1)
    region_map = np.zeros((height, width), dtype=np.int64)
    for row in range(height):
        for column in range(width):
            neighbours = sorted(
                int(region_map[row + down, column + right])
                for down, right in _VISITED_NEIGHBOURS
                if row + down >= 0 and 0 <= column + right < width
            )
            probabilities = np.full(num_types, 1 / num_types - loss * len(neighbours))
            for kind in neighbours:
                probabilities[kind] += gain + loss
            # choice() itself refuses probabilities that are negative or do not sum to 1.
            region_map[row, column] = rng.choice(num_types, p=probabilities)
    return region_map


MAX_DIFFUSIVITY = 0.25


def diffusion_stencil(diffusivity: float) -> np.ndarray:
    """The 3x3 stencil of one explicit step, float64: centre 1 - 4d, the four nearest neighbours d, corners 0."""
    d = float(diffusivity)
    return np.array([[0.0, d, 0.0], [d, 1.0 - 4.0 * d, d], [0.0, d, 0.0]])


def draw_initial_states(
    region_map: np.ndarray, num_runs: int, seed: int, *, max_drops: int = 3, background: float = 0.1
) -> np.ndarray:
    """Draw the states from which runs start: a faint random background with drops of heat.

    Each run has its own number of drops per region type, the same for all types. Drops have heat 1 and may coincide.
    All runs share one random generator, so the first runs of a longer set are those of a shorter one. Returns states,
    float64, `(R, H, W)`.
    """
    cells_of_type = [np.argwhere(region_map == kind) for kind in range(int(region_map.max()) + 1)]
    rng = np.random.default_rng(seed)
    states = np.empty((num_runs, *region_map.shape))
    for run in range(num_runs):
        states[run] = rng.uniform(0.0, background, size=region_map.shape)
        num_drops = rng.integers(1, max_drops, endpoint=True)
        for cells in cells_of_type:
            drops = rng.choice(cells, size=num_drops)
            states[run, drops[:, 0], drops[:, 1]] = 1.0
    return states


def simulate_heat(
    initial_states: np.ndarray, region_map: np.ndarray, diffusivities: Sequence[float], num_steps: int
) -> np.ndarray:
    """Simulate heat diffusion: every pixel steps with the stencil of its own region type, beyond the border is 0.

    The simulation of states `(R, H, W)` runs in float64 from start to end; only the stored frames, frame 0 being the
    initial state, are rounded to float32, `(R, T + 1, H, W)`.
    """
    if len(diffusivities) != region_map.max() + 1 or not all(0.0 <= d <= MAX_DIFFUSIVITY for d in diffusivities):
        raise ValueError(
            f"diffusivities must be one for each of {region_map.max() + 1} region types, in [0, {MAX_DIFFUSIVITY}] for "
            f"a stable step, got {tuple(diffusivities)}"
        )
    height, width = region_map.shape
    weight = np.asarray(diffusivities, dtype=np.float64)[region_map]
    centre = 1.0 - 4.0 * weight
    frames = np.empty((len(initial_states), num_steps + 1, height, width), dtype=np.float32)
    padded = np.zeros((height + 2, width + 2))
    state, inflow = padded[1:-1, 1:-1], np.empty((height, width))
    for run, initial_state in enumerate(initial_states):
        state[:] = initial_state
        frames[run, 0] = state
        for step in range(1, num_steps + 1):
            np.add(padded[:-2, 1:-1], padded[2:, 1:-1], out=inflow)
            inflow += padded[1:-1, :-2]
            inflow += padded[1:-1, 2:]
            inflow *= weight
            state *= centre
            state += inflow
            frames[run, step] = state
    return frames


class HeatPairs(BatchedSamples):
    """Pairs of consecutive frames `(R, T + 1, *grid)`: pair i is step `i % T` of run `i // T` and the step after it."""

    def __init__(self, frames: np.ndarray) -> None:
        self.num_steps = frames.shape[1] - 1
        self._num_pairs = len(frames) * self.num_steps
        self._frames = torch.from_numpy(frames).flatten(0, 1).unsqueeze(1)

    def __len__(self) -> int:
        return self._num_pairs

    @property
    def num_in_time(self) -> int:
        return self.num_steps

    def shown(self, index: int) -> tuple[str, str, Tensor]:
        return f"run {index // self.num_steps}, step {index % self.num_steps}", "the step before", self[index][0][0]

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        if len(indices) and not 0 <= min(indices) <= max(indices) < self._num_pairs:
            wrong = min(indices) if min(indices) < 0 else max(indices)
            raise IndexError(f"index must be in [0, {self._num_pairs - 1}], got {wrong}")
        # Each run holds one frame more than pairs.
        frame = torch.tensor([index + index // self.num_steps for index in indices], dtype=torch.int64)
        return self._frames.index_select(0, frame), self._frames.index_select(0, frame + 1)


def make_region_map(data: HeatDiffusion) -> np.ndarray:
    return grow_region_map(data.spatial_shape, len(data.diffusivities), data.region_seed)


def make_split(data: HeatDiffusion, region_map: np.ndarray, split: str, notify: Notify = print) -> HeatPairs:
    num_runs = getattr(data, f"num_{split}_runs")
    notify(f"simulating {num_runs} runs of {data.num_steps} steps ({split})")
    states = draw_initial_states(region_map, num_runs, getattr(data, f"{split}_seed"))
    frames = simulate_heat(states, region_map, data.diffusivities, data.num_steps)
    return HeatPairs(frames if data.unit == 1.0 else frames * np.float32(data.unit))
