"""Heat diffusion on a grid whose regions conduct differently (paper, section on heat diffusion)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from smoe._files import write_atomically
from smoe_paper.heat.data.region_maps import count_region_types

MAX_DIFFUSIVITY = 0.25


def diffusion_stencil(diffusivity: float) -> np.ndarray:
    """Return the 3x3 stencil of one explicit step: centre 1 - 4d, the four nearest neighbours d, corners 0.

    Args:
        diffusivity: D, in cells squared per step.

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
        num_runs: Number of states, R.
        seed: Seed of the random generator.
        max_drops: Largest number of drops per region type; the smallest is 1.
        background: Upper end of the uniform background.

    Returns:
        States, float64, `(R, H, W)`.
    """
    num_types = count_region_types(region_map)
    if num_runs < 1:
        raise ValueError(f"num_runs must be at least 1, got {num_runs}")
    if max_drops < 1:
        raise ValueError(f"max_drops must be at least 1, got {max_drops}")
    if not 0.0 <= background < np.inf:
        raise ValueError(f"background must be finite and not negative, got {background}")

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
    progress: Callable[[int], None] | None = None,
) -> np.ndarray:
    """Simulate heat diffusion: every pixel steps with the stencil of its own region type, beyond the border is 0.

    The simulation runs in float64 from start to end; only the stored frames are rounded to float32.

    Args:
        initial_states: Finite states, `(R, H, W)`.
        region_map: Types 0, ..., n - 1, `(H, W)`.
        diffusivities: Diffusivity of each type, in [0, 0.25]: above, the centre weight 1 - 4d is negative and the
            explicit step oscillates.
        num_steps: Number of steps after the initial state, T.
        runs_per_block: Runs simulated together. It decides the speed (a block should fit the cache), never the result.
        progress: Called with the number of runs done so far, after each block.

    Returns:
        Frames, frame 0 being the initial state, float32, `(R, T + 1, H, W)`.
    """
    _check_simulation(initial_states, region_map, diffusivities, num_steps, runs_per_block)
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
        if progress is not None:
            progress(stop)
    return frames


def _check_simulation(
    initial_states: np.ndarray,
    region_map: np.ndarray,
    diffusivities: Sequence[float],
    num_steps: int,
    runs_per_block: int,
) -> None:
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
    if initial_states.ndim != 3 or initial_states.shape[0] < 1:
        raise ValueError(f"initial_states must have shape (R, H, W) with R at least 1, got {initial_states.shape}")
    if initial_states.shape[1:] != region_map.shape:
        raise ValueError(
            f"initial_states are {initial_states.shape[1:]} pixels large, but the region map is {region_map.shape}"
        )
    # Heat never grows, so states within the range of float32 stay within it; the comparison also refuses NaN.
    if not np.abs(initial_states).max() <= np.finfo(np.float32).max:
        raise ValueError("initial_states must be finite and within the range of float32")
    if num_steps < 1:
        raise ValueError(f"num_steps must be at least 1, got {num_steps}")
    if runs_per_block < 1:
        raise ValueError(f"runs_per_block must be at least 1, got {runs_per_block}")


class HeatPairs(Dataset[tuple[Tensor, Tensor]]):
    """Pairs of consecutive frames: pair i is step `i % T` of run `i // T` and the step after it, not normalised.

    Whole batches come from `__getitems__` already stacked, so a loader must leave them alone:
    `DataLoader(pairs, batch_size=32, collate_fn=HeatPairs.collate)`.
    """

    def __init__(self, frames: np.ndarray) -> None:
        """Wrap frames without copying them.

        Args:
            frames: What `simulate_heat` or `load_frames` returned, float32, `(R, T + 1, H, W)`.
        """
        _check_layout(frames)
        if frames.shape[1] < 2:
            raise ValueError(f"frames must hold at least 2 steps per run, got shape {frames.shape}")
        # torch cannot mark a tensor read-only, and would warn.
        if not frames.flags.writeable:
            raise ValueError("frames must be writable; open a memory map with mode='c', as load_frames does")
        num_runs, num_frames, height, width = frames.shape
        self.num_steps = num_frames - 1
        self._num_pairs = num_runs * self.num_steps
        self._frames = torch.from_numpy(frames).view(num_runs * num_frames, 1, height, width)

    def __len__(self) -> int:
        """Return the number of pairs, R * T."""
        return self._num_pairs

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return the input `(1, H, W)` and the target `(1, H, W)`, views of the frames."""
        self._check_range(index, index)
        frame = index + index // self.num_steps
        return self._frames[frame], self._frames[frame + 1]

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the inputs `(B, 1, H, W)` and the targets `(B, 1, H, W)` of a batch, copies of the frames."""
        if len(indices):
            self._check_range(min(indices), max(indices))
        # Each run holds one frame more than pairs.
        frame = torch.tensor([index + index // self.num_steps for index in indices], dtype=torch.int64)
        return self._frames.index_select(0, frame), self._frames.index_select(0, frame + 1)

    @staticmethod
    def collate(batch: Any) -> tuple[Tensor, Tensor]:
        """Return the batch as it is: `__getitems__` has stacked it, and torch's default would stack it again."""
        return batch

    def _check_range(self, smallest: int, largest: int) -> None:
        if smallest < 0 or largest >= self._num_pairs:
            wrong = smallest if smallest < 0 else largest
            raise IndexError(f"index must be in [0, {self._num_pairs - 1}], got {wrong}")


def save_frames(path: str | Path, frames: np.ndarray) -> None:
    """Write frames to a `.npy` file atomically; missing folders are created.

    Args:
        path: File to write; an older one is replaced once the new one is complete on disk.
        frames: Finite frames, float32, `(R, T + 1, H, W)`.
    """
    path = Path(path)
    if path.suffix != ".npy":
        raise ValueError(f"frames are stored as .npy, got {path}")
    _check_layout(frames)
    _check_finite(frames)
    write_atomically(path, lambda file: np.lib.format.write_array(file, frames, allow_pickle=False))


def load_frames(path: str | Path, *, shape: tuple[int, int, int, int]) -> np.ndarray:
    """Open frames written by `save_frames` as a memory map, after reading them once to check every value.

    Args:
        path: The `.npy` file.
        shape: The shape it must have, `(R, T + 1, H, W)`.

    Returns:
        Frames, float32, `(R, T + 1, H, W)`; writing to them never reaches the file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is truncated, or of another shape or type, or holds values that are not finite.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"frames {path} is not a file; simulate them and call save_frames")
    try:
        try:
            frames = np.lib.format.open_memmap(path, mode="c")
        except Exception as error:  # a damaged header can make the parser of numpy fail in any way
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise ValueError(f"truncated or not a .npy file ({reason})") from error
        _check_layout(frames)
        if frames.shape != tuple(shape):
            raise ValueError(f"shape must be {tuple(shape)}, got {frames.shape}")
        _check_finite(frames)
    except ValueError as error:
        raise ValueError(f"frames {path}: {error}; delete the file and simulate again") from error
    return frames


def _check_layout(frames: np.ndarray) -> None:
    if frames.ndim != 4 or frames.size == 0:
        raise ValueError(f"frames must have shape (R, T + 1, H, W), none of them 0, got {frames.shape}")
    if frames.dtype != np.float32 or not frames.flags.c_contiguous:
        raise ValueError(f"frames must be contiguous float32 in native byte order, got {frames.dtype}")


def _check_finite(frames: np.ndarray) -> None:
    # Run by run, so that the mask of a large memory map is never held whole.
    for run, run_frames in enumerate(frames):
        if not np.isfinite(run_frames).all():
            raise ValueError(f"frames of run {run} hold values that are not finite")
