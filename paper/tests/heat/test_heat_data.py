"""Maps of regions, the simulation of heat by its definition in loops, pairs of frames, and their files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from smoe_paper.heat.data import (
    HeatPairs,
    diffusion_stencil,
    draw_initial_states,
    grow_region_map,
    load_frames,
    load_region_map,
    save_frames,
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


def test_maps_in_files(tmp_path: Path) -> None:
    region_map = grow_region_map((5, 7), 3)
    np.save(tmp_path / "map.npy", region_map.astype(np.uint8))
    loaded = load_region_map(tmp_path / "map.npy")
    assert loaded.dtype == np.int64
    np.testing.assert_array_equal(loaded, region_map)
    with pytest.raises(FileNotFoundError, match=r"absent\.npy is not a file; make one with grow_region_map"):
        load_region_map(tmp_path / "absent.npy")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 2, 2), dtype=int), r"2 dimensions \(H, W\), got shape \(2, 2, 2\)"),
        (np.zeros((2, 2)), "must hold integers, got float64"),
        (np.zeros((0, 2), dtype=int), "at least one pixel"),
        (np.array([[{}]], dtype=object), "not a .npy file"),
        (np.array([[0, 2]]), "type 1 is missing while 2 occurs"),
        (np.array([[0, -1]]), "got -1"),
    ],
)
def test_bad_arrays_are_refused(tmp_path: Path, array: np.ndarray, message: str) -> None:
    np.save(tmp_path / "bad.npy", array, allow_pickle=True)
    with pytest.raises(ValueError, match=message) as refusal:
        load_region_map(tmp_path / "bad.npy")
    assert "bad.npy" in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize("shape", ["(2000000, 2000000)", "(4611686018427387904, 16)", "(-1, 8)", "((8, 8)"])
def test_headers_that_claim_what_the_file_does_not_hold(tmp_path: Path, shape: str) -> None:
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}"
    text = header.ljust(117).encode() + b"\n"
    (tmp_path / "claims.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(512))
    with pytest.raises(ValueError, match=r"region map .*claims.npy: truncated .*; write it with") as refusal:
        load_region_map(tmp_path / "claims.npy")
    assert "\n" not in str(refusal.value)


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


def test_simulation_carries_float64_between_steps() -> None:
    region_map = grow_region_map((9, 9), 3)
    initial_states = draw_initial_states(region_map, 1, seed=0)
    frames = simulate_heat(initial_states, region_map, DIFFUSIVITIES, num_steps=60)
    exact = simulate_by_definition(initial_states[0], region_map, 60)[-1].astype(np.float32)
    # A different order of sums in float64 may move a rounding to float32 only in the rarest case.
    assert (frames[0, -1] != exact).mean() < 0.02


@pytest.mark.parametrize("runs_per_block", [1, 3, 100])
def test_block_size_does_not_change_a_bit(runs_per_block: int) -> None:
    region_map = grow_region_map((9, 11), 3)
    initial_states = draw_initial_states(region_map, 5, seed=0)
    frames = simulate_heat(initial_states, region_map, DIFFUSIVITIES, 20, runs_per_block=runs_per_block)
    one_by_one = [simulate_heat(state[None], region_map, DIFFUSIVITIES, 20)[0] for state in initial_states]
    np.testing.assert_array_equal(frames, one_by_one)


@pytest.mark.parametrize(
    ("states", "region_map", "diffusivities", "num_steps", "message"),
    [
        (np.zeros((1, 2, 2)), np.array([[0, 1], [1, 0]]), [0.1], 1, "has 2 types, got 1 diffusivities"),
        (np.full((1, 2, 2), np.nan), ZEROS, [0.1], 1, "must be finite"),
        (np.full((1, 2, 2), 1e300), ZEROS, [0.1], 1, "range of float32"),
        (np.zeros((1, 2, 2)), ZEROS, [0.2501], 1, r"type 0 must be in \[0, 0\.25\] for a stable step, got 0.2501"),
        (np.zeros((1, 2, 2)), ZEROS, [float("nan")], 1, "for a stable step, got nan"),
    ],
)
def test_simulation_refuses(
    states: np.ndarray, region_map: np.ndarray, diffusivities: list[float], num_steps: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        simulate_heat(states, region_map, diffusivities, num_steps)


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


def test_frames_in_files(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "frames.npy"
    save_frames(path, make_frames())
    loaded = load_frames(path, shape=SHAPE)
    np.testing.assert_array_equal(loaded, make_frames())
    loaded[:] = 0
    np.testing.assert_array_equal(load_frames(path, shape=SHAPE), make_frames())
    assert len(HeatPairs(loaded)) == 12 and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("kept", [0, 60, -1])
def test_truncated_frames_are_refused(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "frames.npy"
    save_frames(path, make_frames())
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"frames\.npy: truncated or not a \.npy file .*; delete the file"):
        load_frames(path, shape=SHAPE)


def test_wrong_frames_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "frames.npy"
    with pytest.raises(FileNotFoundError, match=r"frames\.npy is not a file; simulate"):
        load_frames(path, shape=SHAPE)
    save_frames(path, make_frames())
    with pytest.raises(ValueError, match=r"shape must be \(4, 5, 3, 5\), got \(3, 5, 3, 5\)"):
        load_frames(path, shape=(4, 5, 3, 5))
    np.save(path, make_frames().astype(">f4"))
    with pytest.raises(ValueError, match="native byte order, got >f4"):
        load_frames(path, shape=SHAPE)
    frames = make_frames()
    frames[2, 4, 2, 4] = np.inf
    np.save(path, frames)
    with pytest.raises(ValueError, match="run 2 hold values that are not finite"):
        load_frames(path, shape=SHAPE)
    with pytest.raises(ValueError, match="run 2"):
        save_frames(path, frames)
    with pytest.raises(ValueError, match=r"stored as \.npy"):
        save_frames(tmp_path / "frames.npz", make_frames())
