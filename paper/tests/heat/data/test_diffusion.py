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
    save_frames,
    simulate_heat,
)

DIFFUSIVITIES = (0.0025, 0.025, 0.25)


def simulate_by_definition(
    state: np.ndarray, region_map: np.ndarray, diffusivities: tuple[float, ...], num_steps: int
) -> list[np.ndarray]:
    height, width = state.shape
    states = [state]
    for _ in range(num_steps):
        old, new = states[-1], np.zeros_like(state)
        for row in range(height):
            for column in range(width):
                stencil = diffusion_stencil(diffusivities[region_map[row, column]])
                for down in (-1, 0, 1):
                    for right in (-1, 0, 1):
                        r, c = row + down, column + right
                        if 0 <= r < height and 0 <= c < width:
                            new[row, column] += stencil[1 + down, 1 + right] * old[r, c]
        states.append(new)
    return states


def make_frames(num_runs: int = 3, num_steps: int = 4, shape: tuple[int, int] = (3, 5)) -> np.ndarray:
    frames = np.arange(num_runs * (num_steps + 1) * shape[0] * shape[1], dtype=np.float32)
    return frames.reshape(num_runs, num_steps + 1, *shape)


def test_stencil() -> None:
    expected = [[0, 0.025, 0], [0.025, 0.9, 0.025], [0, 0.025, 0]]
    np.testing.assert_allclose(diffusion_stencil(0.025), expected, rtol=0, atol=1e-16)
    assert diffusion_stencil(0.25)[1, 1] == 0.0


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


def test_initial_states_have_drops_in_every_region() -> None:
    region_map = grow_region_map((16, 16), 3)
    states = draw_initial_states(region_map, 50, seed=0)
    is_drop = states == 1.0
    assert states[~is_drop].max() < 0.1 and states.min() >= 0.0
    counts = np.stack([is_drop[:, region_map == kind].sum(axis=1) for kind in range(3)])
    assert np.unique(counts).tolist() == [1, 2, 3]
    # A run has the same number of drops in every region, but for the rare ones that coincide.
    assert (counts == counts.max(axis=0)).all(axis=0).mean() > 0.9


def test_more_runs_begin_with_the_same_runs() -> None:
    region_map = grow_region_map((6, 6), 3)
    np.testing.assert_array_equal(
        draw_initial_states(region_map, 9, seed=3)[:4], draw_initial_states(region_map, 4, seed=3)
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_runs": 0}, "num_runs must be at least 1, got 0"),
        ({"max_drops": 0}, "max_drops must be at least 1, got 0"),
        ({"background": -0.5}, "background must be finite and not negative, got -0.5"),
        ({"background": float("nan")}, "got nan"),
    ],
)
def test_initial_states_refuse(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw_initial_states(np.zeros((4, 4), dtype=int), **({"num_runs": 1, "seed": 0} | arguments))  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (6, 1), (7, 5)])
def test_simulation_follows_the_definition(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    region_map = np.arange(shape[0] * shape[1]).reshape(shape) % min(3, shape[0] * shape[1])
    diffusivities = (0.0025, 0.025, 0.25)[: region_map.max() + 1]
    initial_states = rng.normal(size=(3, *shape))
    frames = simulate_heat(initial_states, region_map, diffusivities, num_steps=6)
    assert frames.shape == (3, 7, *shape) and frames.dtype == np.float32
    for run in range(3):
        expected = np.stack(simulate_by_definition(initial_states[run], region_map, diffusivities, 6))
        # Half a unit in the last place of float32 is 6e-8 relative; sums in float32 would be off by more.
        np.testing.assert_allclose(frames[run], expected, rtol=6.1e-8, atol=1e-15)


def test_simulation_carries_float64_between_steps() -> None:
    region_map = grow_region_map((9, 9), 3)
    initial_states = draw_initial_states(region_map, 1, seed=0)
    frames = simulate_heat(initial_states, region_map, DIFFUSIVITIES, num_steps=60)
    exact = simulate_by_definition(initial_states[0], region_map, DIFFUSIVITIES, 60)[-1].astype(np.float32)
    # A different order of sums in float64 may move a rounding to float32 only in the rarest case.
    assert (frames[0, -1] != exact).mean() < 0.02


def test_one_step_by_hand() -> None:
    # One drop in the middle of a 3x3 grid with d = 0.25: the drop leaves, a quarter goes to each neighbour.
    state = np.zeros((1, 3, 3))
    state[0, 1, 1] = 1.0
    frames = simulate_heat(state, np.zeros((3, 3), dtype=int), [0.25], num_steps=2)
    np.testing.assert_array_equal(frames[0, 1], [[0, 0.25, 0], [0.25, 0, 0.25], [0, 0.25, 0]])
    # Then the centre gets 4 * 0.25 * 0.25, a corner 2 * 0.25 * 0.25, and the rest crosses the border and is lost.
    np.testing.assert_array_equal(frames[0, 2], [[0.125, 0, 0.125], [0, 0.25, 0], [0.125, 0, 0.125]])


@pytest.mark.parametrize("runs_per_block", [1, 2, 3, 5, 100])
def test_block_size_does_not_change_a_bit(runs_per_block: int) -> None:
    region_map = grow_region_map((9, 11), 3)
    initial_states = draw_initial_states(region_map, 5, seed=0)
    done: list[int] = []
    frames = simulate_heat(
        initial_states, region_map, DIFFUSIVITIES, 20, runs_per_block=runs_per_block, progress=done.append
    )
    one_by_one = [simulate_heat(state[None], region_map, DIFFUSIVITIES, 20)[0] for state in initial_states]
    np.testing.assert_array_equal(frames, one_by_one)
    assert done == [*range(runs_per_block, 5, runs_per_block), 5]


def test_simulation_leaves_its_input_alone() -> None:
    states = np.ones((2, 3, 3))
    simulate_heat(states, np.zeros((3, 3), dtype=int), [0.1], 3)
    assert (states == 1).all()


@pytest.mark.parametrize("diffusivity", [0.2501, -0.001, float("nan"), float("inf")])
def test_unstable_diffusivity_is_refused(diffusivity: float) -> None:
    region_map = np.array([[0, 1], [1, 0]])
    message = rf"diffusivity of region type 1 must be in \[0, 0\.25\] for a stable step, got {diffusivity}"
    with pytest.raises(ValueError, match=message):
        simulate_heat(np.zeros((1, 2, 2)), region_map, [0.1, diffusivity], 1)


def test_extreme_stable_diffusivities_are_accepted() -> None:
    frames = simulate_heat(np.ones((1, 1, 2)), np.array([[0, 1]]), [0.0, 0.25], 1)
    np.testing.assert_array_equal(frames[0, 1], [[1.0, 0.25]])


@pytest.mark.parametrize(
    ("states", "region_map", "diffusivities", "num_steps", "message"),
    [
        (np.zeros((1, 2, 2)), np.array([[0, 1], [1, 0]]), [0.1], 1, "has 2 types, got 1 diffusivities"),
        (np.zeros((1, 2, 3)), np.zeros((2, 2), dtype=int), [0.1], 1, r"\(2, 3\) pixels.*\(2, 2\)"),
        (np.zeros((2, 2)), np.zeros((2, 2), dtype=int), [0.1], 1, r"shape \(R, H, W\).*got \(2, 2\)"),
        (np.zeros((0, 2, 2)), np.zeros((2, 2), dtype=int), [0.1], 1, "R at least 1"),
        (np.full((1, 2, 2), np.nan), np.zeros((2, 2), dtype=int), [0.1], 1, "must be finite"),
        (np.full((1, 2, 2), 1e300), np.zeros((2, 2), dtype=int), [0.1], 1, "range of float32"),
        (np.zeros((1, 2, 2)), np.zeros((2, 2), dtype=int), [0.1], 0, "num_steps must be at least 1, got 0"),
        (np.zeros((1, 2, 2)), np.zeros((2, 2)), [0.1], 1, "must hold integers"),
    ],
)
def test_simulation_refuses(
    states: np.ndarray, region_map: np.ndarray, diffusivities: list[float], num_steps: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        simulate_heat(states, region_map, diffusivities, num_steps)


def test_pairs_are_consecutive_frames_of_one_run() -> None:
    frames = make_frames(num_runs=3, num_steps=4)
    pairs = HeatPairs(frames)
    assert len(pairs) == 12
    for index in range(12):
        run, step = divmod(index, 4)
        before, after = pairs[index]
        assert before.shape == after.shape == (1, 3, 5) and before.dtype == torch.float32
        np.testing.assert_array_equal(before[0].numpy(), frames[run, step])
        np.testing.assert_array_equal(after[0].numpy(), frames[run, step + 1])


def test_batches_equal_stacked_pairs() -> None:
    pairs = HeatPairs(make_frames())
    indices = [11, 0, 3, 4, 3]
    inputs, targets = pairs.__getitems__(indices)
    assert inputs.shape == targets.shape == (5, 1, 3, 5)
    assert torch.equal(inputs, torch.stack([pairs[index][0] for index in indices]))
    assert torch.equal(targets, torch.stack([pairs[index][1] for index in indices]))


def test_loader_serves_whole_batches() -> None:
    pairs = HeatPairs(make_frames())
    batches = list(DataLoader(pairs, batch_size=5, collate_fn=HeatPairs.collate))
    assert [tuple(inputs.shape) for inputs, _ in batches] == [(5, 1, 3, 5), (5, 1, 3, 5), (2, 1, 3, 5)]
    assert torch.equal(torch.cat([targets for _, targets in batches]), pairs.__getitems__(range(12))[1])


@pytest.mark.parametrize("index", [-1, 12])
def test_pairs_outside_the_data_are_refused(index: int) -> None:
    pairs = HeatPairs(make_frames())
    with pytest.raises(IndexError, match=rf"\[0, 11\], got {index}"):
        pairs[index]
    with pytest.raises(IndexError, match=rf"\[0, 11\], got {index}"):
        pairs.__getitems__([0, index])


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        (make_frames()[0], r"shape \(R, T \+ 1, H, W\)"),
        (make_frames().astype(np.float64), "float32.*got float64"),
        (make_frames().transpose(0, 1, 3, 2), "contiguous"),
        (make_frames(num_steps=0), "at least 2 steps"),
    ],
)
def test_pairs_refuse_frames(frames: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HeatPairs(frames)


def test_pairs_refuse_read_only_frames() -> None:
    frames = make_frames()
    frames.flags.writeable = False
    with pytest.raises(ValueError, match="mode='c'"):
        HeatPairs(frames)


def test_frames_round_trip(tmp_path: Path) -> None:
    frames = make_frames()
    path = tmp_path / "new folder" / "frames.npy"
    save_frames(path, frames)
    loaded = load_frames(path, shape=(3, 5, 3, 5))
    np.testing.assert_array_equal(loaded, frames)
    assert [file.name for file in path.parent.iterdir()] == ["frames.npy"]

    loaded[:] = 0
    np.testing.assert_array_equal(load_frames(path, shape=(3, 5, 3, 5)), frames)
    assert len(HeatPairs(loaded)) == 12


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "frames.npy"
    save_frames(path, make_frames())
    before = path.read_bytes()

    def fail(file: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        save_frames(path, 2 * make_frames())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kept", [0, 5, 60, -1, -64])
def test_truncated_frames_are_refused(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "frames.npy"
    save_frames(path, make_frames())
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"frames\.npy: truncated or not a \.npy file .*; delete the file"):
        load_frames(path, shape=(3, 5, 3, 5))


def test_wrong_frames_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "frames.npy"
    shape = (3, 5, 3, 5)
    with pytest.raises(FileNotFoundError, match=r"frames\.npy is not a file; simulate"):
        load_frames(path, shape=shape)
    save_frames(path, make_frames())
    with pytest.raises(ValueError, match=r"shape must be \(4, 5, 3, 5\), got \(3, 5, 3, 5\)"):
        load_frames(path, shape=(4, 5, 3, 5))
    np.save(path, make_frames().astype(">f4"))
    with pytest.raises(ValueError, match="native byte order, got >f4"):
        load_frames(path, shape=shape)
    np.save(path, np.asfortranarray(make_frames()))
    with pytest.raises(ValueError, match="contiguous"):
        load_frames(path, shape=shape)
    frames = make_frames()
    frames[2, 4, 2, 4] = np.inf
    np.save(path, frames)
    with pytest.raises(ValueError, match="run 2 hold values that are not finite"):
        load_frames(path, shape=shape)


def test_saving_refuses_what_loading_would(tmp_path: Path) -> None:
    frames = make_frames()
    frames[1, 0, 0, 0] = np.nan
    with pytest.raises(ValueError, match="run 1"):
        save_frames(tmp_path / "frames.npy", frames)
    with pytest.raises(ValueError, match="float32"):
        save_frames(tmp_path / "frames.npy", make_frames().astype(np.float64))
    with pytest.raises(ValueError, match=r"stored as \.npy"):
        save_frames(tmp_path / "frames.npz", make_frames())
    assert list(tmp_path.iterdir()) == []
