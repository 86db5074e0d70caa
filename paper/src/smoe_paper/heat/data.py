"""Heat diffusion on maps of regions that conduct differently: the maps, the simulation, pairs of frames."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from smoe.training import to_plain, write_atomically
from smoe_paper.experiments.experiment import Notify
from smoe_paper.heat.recipes import HeatDiffusion

# Of the 8 neighbours of a pixel a raster scan has visited 4: one to the left and three above.
_VISITED_NEIGHBOURS = ((0, -1), (-1, -1), (-1, 0), (-1, 1))


def grow_region_map(shape: tuple[int, int], num_types: int, seed: int = 42) -> np.ndarray:
    """Grow a random map of regions by preferential attachment, in one raster scan.

    A pixel starts with probability 1/n for each of the n types. Each neighbour already assigned, of the eight around
    it, raises the probability of its own type by `(1 - 1/n) / 5` and lowers the others equally. At most four
    neighbours are assigned before a pixel, so no probability falls below 1/(5n) and they always sum to 1.

    Returns:
        Types in [0, n), int64, `(H, W)`. A small map may miss some of the types.
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


def count_region_types(region_map: np.ndarray) -> int:
    """Check a map of regions and count its types.

    Args:
        region_map: Types of region, integers, `(H, W)`.
    """
    if region_map.ndim != 2:
        raise ValueError(f"a region map must have 2 dimensions (H, W), got shape {region_map.shape}")
    if region_map.dtype.kind not in "iu":
        raise ValueError(f"a region map must hold integers, got {region_map.dtype}; convert it with astype(np.int64)")
    if region_map.size == 0:
        raise ValueError(f"a region map needs at least one pixel, got shape {region_map.shape}")
    types = np.unique(region_map)
    if types[0] < 0:
        raise ValueError(f"region types must be 0, 1, ..., got {types[0]}; number the regions from 0")
    gaps = np.flatnonzero(types != np.arange(len(types)))
    if gaps.size:
        raise ValueError(
            f"region types must be 0, 1, ... without a gap, but type {gaps[0]} is missing while {types[-1]} occurs; "
            "renumber the regions"
        )
    return len(types)


def load_region_map(path: Path) -> np.ndarray:
    """A map of regions from a `.npy` file: types 0, ..., n - 1, each of them present, int64, `(H, W)`."""
    if not path.is_file():
        raise FileNotFoundError(f"region map {path} is not a file; make one with grow_region_map and numpy.save")
    try:
        region_map = np.array(_open_npy(path, "r"))
        count_region_types(region_map)
    except ValueError as error:
        raise ValueError(f"region map {path}: {error}; write it with numpy.save from an array of integers") from error
    return region_map.astype(np.int64)


def _open_npy(path: Path, mode: Literal["r", "c"]) -> np.ndarray:
    try:
        # A file shorter than its header claims is refused, and takes no memory for the claim.
        return np.lib.format.open_memmap(path, mode=mode)
    except Exception as error:  # a damaged header can make the parser of numpy fail in any way
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ValueError(f"truncated or not a .npy file ({reason})") from error


MAX_DIFFUSIVITY = 0.25


def diffusion_stencil(diffusivity: float) -> np.ndarray:
    """The 3x3 stencil of one explicit step: centre 1 - 4d, the four nearest neighbours d, corners 0.

    Returns:
        Weights, float64, `(3, 3)`.
    """
    d = float(diffusivity)
    return np.array([[0.0, d, 0.0], [d, 1.0 - 4.0 * d, d], [0.0, d, 0.0]])


def draw_initial_states(
    region_map: np.ndarray, num_runs: int, seed: int, *, max_drops: int = 3, background: float = 0.1
) -> np.ndarray:
    """Draw the states from which runs start: a faint random background with drops of heat.

    Each run has its own number of drops per region type, the same for all types. Drops have heat 1 and may coincide.
    All runs share one random generator, so the first runs of a longer set are those of a shorter one.

    Args:
        region_map: Types 0, ..., n - 1, `(H, W)`.

    Returns:
        States, float64, `(R, H, W)`.
    """
    num_types = count_region_types(region_map)
    cells_of_type = [np.argwhere(region_map == kind) for kind in range(num_types)]
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
    initial_states: np.ndarray,
    region_map: np.ndarray,
    diffusivities: Sequence[float],
    num_steps: int,
    *,
    runs_per_block: int = 8,
) -> np.ndarray:
    """Simulate heat diffusion: every pixel steps with the stencil of its own region type, beyond the border is 0.

    The simulation runs in float64 from start to end; only the stored frames are rounded to float32.

    Args:
        initial_states: Finite states, `(R, H, W)`.
        region_map: Types 0, ..., n - 1, `(H, W)`.

    Returns:
        Frames, frame 0 being the initial state, float32, `(R, T + 1, H, W)`.
    """
    _check_simulation(initial_states, region_map, diffusivities)
    num_runs, height, width = initial_states.shape

    # A row of zeros above and below each run and one column of zeros between rows make all four neighbours plain
    # shifts of one flat array, so that numpy runs long inner loops. These cells have weight 0 and stay 0.
    pitch = width + 1
    cells_per_run = (height + 2) * pitch
    neighbour_weight = np.zeros((height + 2, pitch))
    neighbour_weight[1:-1, :width] = np.asarray(diffusivities, dtype=np.float64)[region_map]
    centre_weight = np.zeros((height + 2, pitch))
    centre_weight[1:-1, :width] = 1.0 - 4.0 * neighbour_weight[1:-1, :width]
    neighbour_weight, centre_weight = neighbour_weight.reshape(-1), centre_weight.reshape(-1)

    frames = np.empty((num_runs, num_steps + 1, height, width), dtype=np.float32)
    for start in range(0, num_runs, runs_per_block):
        stop = min(start + runs_per_block, num_runs)
        num_cells = (stop - start) * cells_per_run
        flat = np.zeros(num_cells + 2 * pitch)
        here = flat[pitch : pitch + num_cells]
        above, below = flat[:num_cells], flat[2 * pitch :]
        left, right = flat[pitch - 1 : pitch - 1 + num_cells], flat[pitch + 1 : pitch + 1 + num_cells]
        cells = here.reshape(stop - start, cells_per_run)
        state = here.reshape(stop - start, height + 2, pitch)[:, 1:-1, :width]
        inflow = np.empty_like(here)
        inflow_cells = inflow.reshape(stop - start, cells_per_run)

        state[:] = initial_states[start:stop]
        frames[start:stop, 0] = state
        for step in range(1, num_steps + 1):
            np.add(above, below, out=inflow)
            inflow += left
            inflow += right
            inflow_cells *= neighbour_weight
            cells *= centre_weight
            here += inflow
            frames[start:stop, step] = state
    return frames


def _check_simulation(initial_states: np.ndarray, region_map: np.ndarray, diffusivities: Sequence[float]) -> None:
    num_types = count_region_types(region_map)
    if len(diffusivities) != num_types:
        raise ValueError(f"the region map has {num_types} types, got {len(diffusivities)} diffusivities")
    for kind, diffusivity in enumerate(diffusivities):
        # This form of the comparison also refuses NaN.
        if not 0.0 <= diffusivity <= MAX_DIFFUSIVITY:
            raise ValueError(
                f"diffusivity of region type {kind} must be in [0, {MAX_DIFFUSIVITY}] for a stable step, "
                f"got {diffusivity}"
            )
    # Heat never grows, so states within the range of float32 stay within it; the comparison also refuses NaN.
    if not np.abs(initial_states).max() <= np.finfo(np.float32).max:
        raise ValueError("initial_states must be finite and within the range of float32")


class HeatPairs(Dataset[tuple[Tensor, Tensor]]):
    """Pairs of consecutive frames: pair i is step `i % T` of run `i // T` and the step after it, not normalised.

    Whole batches come from `__getitems__` already stacked, so a loader must leave them alone:
    `DataLoader(pairs, batch_size=32, collate_fn=HeatPairs.collate)`.

    Args:
        frames: What `simulate_heat` or `load_frames` returned, float32, `(R, T + 1, *grid)`; not copied.
    """

    def __init__(self, frames: np.ndarray) -> None:
        self.num_steps = frames.shape[1] - 1
        self._num_pairs = len(frames) * self.num_steps
        self._frames = torch.from_numpy(frames).flatten(0, 1).unsqueeze(1)

    def __len__(self) -> int:
        return self._num_pairs

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        input, target = self.__getitems__([index])
        return input[0], target[0]

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The inputs and the targets of a batch, `(B, 1, *grid)` each, copies of the frames."""
        if len(indices) and not 0 <= min(indices) <= max(indices) < self._num_pairs:
            wrong = min(indices) if min(indices) < 0 else max(indices)
            raise IndexError(f"index must be in [0, {self._num_pairs - 1}], got {wrong}")
        # Each run holds one frame more than pairs.
        frame = torch.tensor([index + index // self.num_steps for index in indices], dtype=torch.int64)
        return self._frames.index_select(0, frame), self._frames.index_select(0, frame + 1)

    @staticmethod
    def collate(batch: Any) -> tuple[Tensor, Tensor]:
        # `__getitems__` has stacked it, and torch's default would stack it again.
        return batch


def save_frames(path: str | Path, frames: np.ndarray) -> None:
    """Write frames to a `.npy` file atomically; missing folders are created.

    Args:
        frames: Finite frames, float32, `(R, T + 1, H, W)`.
    """
    path = Path(path)
    if path.suffix != ".npy":
        raise ValueError(f"frames are stored as .npy, got {path}")
    _check_layout(frames)
    _check_finite(frames)
    write_atomically(path, lambda file: np.lib.format.write_array(file, frames, allow_pickle=False))


def load_frames(path: str | Path, *, shape: tuple[int, ...]) -> np.ndarray:
    """Open frames written by `save_frames` as a memory map, after reading them once to check every value.

    Args:
        shape: The shape it must have, `(R, T + 1, H, W)`.

    Returns:
        Frames, float32, `(R, T + 1, H, W)`; writing to them never reaches the file.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"frames {path} is not a file; simulate them and call save_frames")
    try:
        frames = _open_npy(path, "c")
        _check_layout(frames)
        if frames.shape != tuple(shape):
            raise ValueError(f"shape must be {tuple(shape)}, got {frames.shape}")
        _check_finite(frames)
    except ValueError as error:
        raise ValueError(f"frames {path}: {error}; delete the file and simulate again") from error
    return frames


def _check_layout(frames: np.ndarray) -> None:
    if frames.ndim < 3 or frames.size == 0:
        raise ValueError(f"frames must have shape (R, T + 1, *grid), none of them 0, got {frames.shape}")
    if frames.dtype != np.float32 or not frames.flags.c_contiguous:
        raise ValueError(f"frames must be contiguous float32 in native byte order, got {frames.dtype}")


def _check_finite(frames: np.ndarray) -> None:
    # Run by run, so that the mask of a large memory map is never held whole.
    for run, run_frames in enumerate(frames):
        if not np.isfinite(run_frames).all():
            raise ValueError(f"frames of run {run} hold values that are not finite")


def make_region_map(data: HeatDiffusion) -> np.ndarray:
    """The map of region types `(H, W)`, loaded or generated."""
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
    content = {
        "diffusivities": to_plain(data.diffusivities),
        "num_steps": data.num_steps,
        "num_runs": num_runs,
        "seed": seed,
        "region_map": hashlib.sha256(region_map.tobytes()).hexdigest(),
    }

    def simulate() -> np.ndarray:
        notify(f"simulating {num_runs} runs of {data.num_steps} steps ({split})")
        initial_states = draw_initial_states(region_map, num_runs, seed)
        return simulate_heat(initial_states, region_map, data.diffusivities, data.num_steps)

    shape = (num_runs, data.num_steps + 1, *region_map.shape)
    frames = keep_frames(data.cache_dir, f"heat-{split}", content, shape, simulate)
    return HeatPairs(frames if data.unit == 1.0 else frames * np.float32(data.unit))


def keep_frames(
    folder: Path | None, name: str, content: Any, shape: tuple[int, ...], simulate: Callable[[], np.ndarray]
) -> np.ndarray:
    """The frames that an earlier run stored in a folder for the same content, or else simulated and stored there."""
    if folder is None:
        return simulate()
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
    path = folder / f"{name}-{digest}.npy"
    if path.exists():
        return load_frames(path, shape=shape)
    frames = simulate()
    save_frames(path, frames)
    return frames
