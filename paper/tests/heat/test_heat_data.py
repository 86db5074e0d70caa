"""Maps of regions, the simulation of heat by its definition in loops, pairs of frames, and their files."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from smoe_paper.heat.data import (
    HeatPairs,
    diffusion_stencil,
    draw_initial_states,
    grow_region_map,
    simulate_heat,
)

DIFFUSIVITIES = (0.0025, 0.025, 0.25)
SHAPE = (3, 5, 3, 5)
ZEROS = np.zeros((2, 2), dtype=int)


def grow_by_definition(shape: tuple[int, int], num_types: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    increment = (1 - 1 / num_types) / 5
    region_map = np.full(shape, -1)
    for row in range(shape[0]):
        for column in range(shape[1]):
            probabilities = [1 / num_types] * num_types
            for r in range(max(row - 1, 0), min(row + 2, shape[0])):
                for c in range(max(column - 1, 0), min(column + 2, shape[1])):
                    for kind in range(num_types):
                        if region_map[r, c] == -1:
                            continue
                        if region_map[r, c] == kind:
                            probabilities[kind] += increment
                        else:
                            probabilities[kind] -= increment / (num_types - 1)
            region_map[row, column] = rng.choice(num_types, p=probabilities)
    return region_map


def simulate_by_definition(state: np.ndarray, region_map: np.ndarray, num_steps: int) -> list[np.ndarray]:
    height, width = state.shape
    states = [state]
    for _ in range(num_steps):
        old, new = states[-1], np.zeros_like(state)
        for row in range(height):
            for column in range(width):
                stencil = diffusion_stencil(DIFFUSIVITIES[region_map[row, column]])
                for down in (-1, 0, 1):
                    for right in (-1, 0, 1):
                        r, c = row + down, column + right
                        if 0 <= r < height and 0 <= c < width:
                            new[row, column] += stencil[1 + down, 1 + right] * old[r, c]
        states.append(new)
    return states


def make_frames(num_steps: int = 4) -> np.ndarray:
    return np.arange(3 * (num_steps + 1) * 15, dtype=np.float32).reshape(3, num_steps + 1, 3, 5)


def test_the_papers_map_has_the_released_counts() -> None:
    region_map = grow_region_map((64, 64), 3, seed=42)
    assert region_map.dtype == np.int64
    assert np.bincount(region_map.ravel()).tolist() == [1449, 1212, 1435]


@pytest.mark.parametrize(("shape", "num_types"), [((1, 1), 2), ((1, 9), 3), ((9, 1), 7), ((7, 5), 3), ((9, 11), 300)])
def test_growth_follows_the_definition(shape: tuple[int, int], num_types: int) -> None:
    np.testing.assert_array_equal(
        grow_region_map(shape, num_types, seed=7), grow_by_definition(shape, num_types, seed=7)
    )


def test_growth_refuses() -> None:
    assert not grow_region_map((3, 5), 1).any()
    with pytest.raises(ValueError, match=r"at least \(1, 1\), got \(0, 4\)"):
        grow_region_map((0, 4), 3)
    with pytest.raises(ValueError, match="num_types must be at least 1, got 0"):
        grow_region_map((4, 4), 0)


def test_initial_states_follow_the_definition() -> None:
    region_map = grow_region_map((7, 5), 3)
    rng = np.random.default_rng(5)
    expected = []
    for _ in range(6):
        state = rng.uniform(0, 0.1, size=(7, 5))
        num_drops = rng.integers(1, 3, endpoint=True)
        for kind in range(3):
            for row, column in rng.choice(np.argwhere(region_map == kind), size=num_drops):
                state[row, column] = 1.0
        expected.append(state)
    states = draw_initial_states(region_map, 6, seed=5)
    assert states.dtype == np.float64
    np.testing.assert_array_equal(states, expected)
    np.testing.assert_array_equal(draw_initial_states(region_map, 4, seed=5), states[:4])


@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (6, 1), (7, 5)])
def test_simulation_follows_the_definition(shape: tuple[int, int]) -> None:
    region_map = np.arange(shape[0] * shape[1]).reshape(shape) % min(3, shape[0] * shape[1])
    initial_states = np.random.default_rng(1).normal(size=(3, *shape))
    before = initial_states.copy()
    frames = simulate_heat(initial_states, region_map, DIFFUSIVITIES[: region_map.max() + 1], num_steps=6)
    assert frames.shape == (3, 7, *shape) and frames.dtype == np.float32
    assert (initial_states == before).all()
    for run in range(3):
        expected = np.stack(simulate_by_definition(initial_states[run], region_map, 6))
        # Half a unit in the last place of float32 is 6e-8 relative; sums in float32 would be off by more.
        np.testing.assert_allclose(frames[run], expected, rtol=6.1e-8, atol=1e-15)


@pytest.mark.parametrize("diffusivities", [[0.1], [0.1, 0.2501], [0.1, float("nan")]])
def test_simulation_refuses(diffusivities: list[float]) -> None:
    with pytest.raises(ValueError, match="must be one for each of 2 region types"):
        simulate_heat(np.zeros((1, 2, 2)), np.array([[0, 1], [1, 0]]), diffusivities, 1)


def test_pairs_are_consecutive_frames_of_one_run() -> None:
    frames = make_frames()
    pairs = HeatPairs(frames)
    for index in range(12):
        run, step = divmod(index, 4)
        before, after = pairs[index]
        assert before.shape == after.shape == (1, 3, 5) and before.dtype == torch.float32
        np.testing.assert_array_equal(before[0].numpy(), frames[run, step])
        np.testing.assert_array_equal(after[0].numpy(), frames[run, step + 1])
    batches = list(DataLoader(pairs, batch_size=5, collate_fn=HeatPairs.collate))
    assert [tuple(inputs.shape) for inputs, _ in batches] == [(5, 1, 3, 5), (5, 1, 3, 5), (2, 1, 3, 5)]
    assert torch.equal(torch.cat([targets for _, targets in batches]), torch.stack([pairs[i][1] for i in range(12)]))
    for index in (-1, 12):
        with pytest.raises(IndexError, match=rf"\[0, 11\], got {index}"):
            pairs.__getitems__([0, index])
