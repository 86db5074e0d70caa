from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from smoe_paper.heat.data import count_region_types, grow_region_map, load_region_map


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


def test_paper_map_has_the_shipped_counts() -> None:
    region_map = grow_region_map((64, 64), 3, seed=42)
    assert region_map.dtype == np.int64
    assert np.bincount(region_map.ravel()).tolist() == [1449, 1212, 1435]


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (7, 5), (64, 64)])
@pytest.mark.parametrize("num_types", [2, 3, 7, 300])
def test_growth_follows_the_definition(shape: tuple[int, int], num_types: int) -> None:
    if num_types == 300 and shape == (64, 64):
        shape = (9, 11)
    np.testing.assert_array_equal(
        grow_region_map(shape, num_types, seed=7), grow_by_definition(shape, num_types, seed=7)
    )


def test_one_type_is_everywhere() -> None:
    np.testing.assert_array_equal(grow_region_map((3, 5), 1), np.zeros((3, 5)))


def test_attachment_makes_neighbours_alike() -> None:
    region_map = grow_region_map((64, 64), 3)
    # A third of independent neighbours would be of the same type.
    assert (region_map[:, 1:] == region_map[:, :-1]).mean() > 0.5


def test_seed_decides_the_map() -> None:
    assert not np.array_equal(grow_region_map((8, 8), 3, seed=1), grow_region_map((8, 8), 3, seed=2))


@pytest.mark.parametrize(
    ("shape", "num_types", "message"),
    [((0, 4), 3, r"at least \(1, 1\), got \(0, 4\)"), ((4, 4), 0, "num_types must be at least 1, got 0")],
)
def test_growth_refuses(shape: tuple[int, int], num_types: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        grow_region_map(shape, num_types)


def test_files_round_trip(tmp_path: Path) -> None:
    region_map = grow_region_map((5, 7), 3)
    np.save(tmp_path / "map.npy", region_map.astype(np.uint8))
    np.savetxt(tmp_path / "map.csv", region_map, fmt="%d", delimiter=",")
    np.savetxt(tmp_path / "map.txt", region_map, fmt="%d")
    for name in ("map.npy", "map.csv", "map.txt"):
        loaded = load_region_map(tmp_path / name)
        assert loaded.dtype == np.int64
        np.testing.assert_array_equal(loaded, region_map)


def test_one_row_and_one_column_stay_two_dimensional(tmp_path: Path) -> None:
    (tmp_path / "row.csv").write_text("0,1,0\n")
    (tmp_path / "column.txt").write_text("0\n1\n\n")
    assert load_region_map(tmp_path / "row.csv").shape == (1, 3)
    assert load_region_map(tmp_path / "column.txt").shape == (2, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,1\n1,1.5\n", r"bad\.csv: line 2 holds '1\.5'; write only integers"),
        ("0,1\n1\n", "line 2 has 1 values, the lines above have 2"),
        ("0,1\n1,\n", "line 2 holds ''"),
        ("0,1\n1,3\n", "type 2 is missing while 3 occurs"),
        ("1,1\n", "type 0 is missing"),
        ("0,-1\n", "got -1"),
        ("\n", "the file is empty"),
        ("0,99999999999999999999\n", "beyond 64 bits"),
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_region_map(path)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 2, 2), dtype=int), r"2 dimensions \(H, W\), got shape \(2, 2, 2\)"),
        (np.zeros((2, 2)), "must hold integers, got float64"),
        (np.zeros((2, 2), dtype=bool), "must hold integers, got bool"),
        (np.zeros((0, 2), dtype=int), "at least one pixel"),
        (np.array([[0, 2**64 - 1]], dtype=np.uint64), "type 1 is missing while 18446744073709551615 occurs"),
    ],
)
def test_bad_arrays_are_refused(tmp_path: Path, array: np.ndarray, message: str) -> None:
    np.save(tmp_path / "bad.npy", array)
    with pytest.raises(ValueError, match=message) as refusal:
        load_region_map(tmp_path / "bad.npy")
    assert "bad.npy" in str(refusal.value) and "\n" not in str(refusal.value)


def test_pickles_truncated_files_and_unknown_endings_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "pickle.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    np.save(tmp_path / "cut.npy", grow_region_map((8, 8), 3))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "cut.npy").read_bytes()[:-9])
    (tmp_path / "empty.npy").touch()
    for name in ("pickle.npy", "cut.npy", "empty.npy"):
        with pytest.raises(ValueError, match=rf"{name}: cannot be read"):
            load_region_map(tmp_path / name)
    (tmp_path / "map.png").touch()
    with pytest.raises(ValueError, match=r"must end in \.npy, \.csv or \.txt, got '\.png'"):
        load_region_map(tmp_path / "map.png")
    with pytest.raises(FileNotFoundError, match=r"absent\.npy is not a file; make one with grow_region_map"):
        load_region_map(tmp_path / "absent.npy")


def test_types_are_counted() -> None:
    assert count_region_types(np.array([[0, 2], [1, 0]])) == 3


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<i8', 'fortran_order': False, 'shape': (2000000, 2000000), }",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (4611686018427387904, 16), }",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (-1, 8), }",
        "{'descr': '<i8', 'fortran_order': False, 'shape': ((8, 8), }",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (8, 8",
        "{'descr': 8, 'fortran_order': False, 'shape': (8, 8), }",
    ],
    ids=range(6),
)
def test_headers_that_claim_what_the_file_does_not_hold(tmp_path: Path, header: str) -> None:
    text = header.ljust(117).encode() + b"\n"
    content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(512)
    (tmp_path / "claims.npy").write_bytes(content)
    with pytest.raises(ValueError, match=r"region map .*claims.npy: cannot be read .*; write it again") as refusal:
        load_region_map(tmp_path / "claims.npy")
    assert "\n" not in str(refusal.value)
