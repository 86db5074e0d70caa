"""From files of ENS-10 to a store and samples; the command."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from ens10_files import GRID, STARTS, member_fields, truth_field, write_ens10, write_grib, write_index
from memory_source import Silent, contents
from smoe.cli.main import main
from smoe.errors import DataError
from smoe_paper.ens10.prepare import prepare
from smoe_paper.ens10.source import TASKS, open_ens10
from smoe_paper.ens10.store import EnsembleSamples, EnsembleStore

TRAIN = (1998, 1999)
LEAD = np.timedelta64(2, "D")
# Forecasts that have an index.
INDEXED = slice(-6, -1)


def make_store(
    root: Path,
    output: Path,
    task: str,
    members: int,
    listener: Silent | None = None,
    train_years: tuple[int, int] = TRAIN,
) -> EnsembleStore:
    source = open_ens10(root, TASKS[task], members)  # pyright: ignore[reportArgumentType]
    return prepare(source, root, output, train_years, listener or Silent())


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_ens10(tmp_path_factory.mktemp("ens10"), "z500")
    write_index(root / "efi_z500.nc", STARTS[INDEXED])
    return root


@pytest.fixture(scope="module")
def store(root: Path, tmp_path_factory: pytest.TempPathFactory) -> EnsembleStore:
    return make_store(root, tmp_path_factory.mktemp("store"), "z500", 10)


def inputs_of(store: EnsembleStore) -> np.ndarray:
    return np.stack([store.inputs[row] for row in range(len(store.dates))])


def channel_fields(task: str, num_members: int, starts: np.ndarray = STARTS) -> np.ndarray:
    """Mean and population standard deviation of each variable side by side, float64, `(T, C, H, W)`."""
    chosen = TASKS[task]  # pyright: ignore[reportArgumentType]
    fields = []
    for variable in chosen.variables:
        members = np.stack([member_fields(variable.name, chosen.level, start)[:num_members] for start in starts])
        fields += [members.mean(axis=1, dtype=np.float64), members.astype(np.float64).std(axis=1)]
    return np.stack(fields, axis=1)


def assert_equals_definition(store: EnsembleStore, task: str, num_members: int, starts: np.ndarray = STARTS) -> None:
    chosen = TASKS[task]  # pyright: ignore[reportArgumentType]
    fields = channel_fields(task, num_members, starts)
    np.testing.assert_array_equal(store.dates, starts)
    np.testing.assert_allclose(store.target_mean, fields[:, 2 * chosen.target_index], rtol=1e-6)
    np.testing.assert_allclose(store.target_std, fields[:, 2 * chosen.target_index + 1], rtol=2e-3)
    is_training = [int(str(start + LEAD)[:4]) in TRAIN for start in starts]
    training = fields[is_training]
    expected = (fields - training.mean(axis=0)) / (training.std(axis=0) + 0.1)
    np.testing.assert_allclose(inputs_of(store), np.nan_to_num(expected), atol=2e-3)
    truth = np.stack([truth_field(chosen.target, chosen.level, start) for start in starts])
    np.testing.assert_allclose(store.truth, truth, rtol=1e-6)
    members = np.stack([member_fields(chosen.target, chosen.level, start)[:num_members] for start in starts])
    assert store.members is not None and store.members.shape == (len(starts), num_members, *GRID.shape)
    np.testing.assert_allclose(store.members, members, rtol=1e-6)


def test_members(store: EnsembleStore) -> None:
    assert_equals_definition(store, "z500", 10)
    assert store.grid == GRID and store.grid.latitude[0] == 90.0
    assert store.channels[:4] == ("Z_mean", "Z_std", "T_mean", "T_std") and len(store.channels) == 14


def test_the_first_five_members(root: Path, tmp_path: Path) -> None:
    five = make_store(root, tmp_path, "z500", 5)
    assert five.num_members == 5
    assert_equals_definition(five, "z500", 5)


def test_surface_fields_without_sea_over_land(tmp_path: Path) -> None:
    root = write_ens10(tmp_path / "root", "t2m")
    store = make_store(root, tmp_path / "store", "t2m", 10)
    assert len(store.channels) == 22 and np.isnan(channel_fields("t2m", 10)).any()
    assert_equals_definition(store, "t2m", 10)


def test_grib_as_downloaded(root: Path, tmp_path: Path) -> None:
    days = ("01-01", "01-04", "01-08", "01-11", "01-15")
    starts = np.array([f"{year}-{day}" for year in (1999, 2000) for day in days], "datetime64[D]")
    for day in days:
        of_day = np.array([start for start in starts if str(start).endswith(day)])
        # One file has all of what is to be left aside.
        leads, levels = ((0, 48), (500, 850)) if day == "01-08" else ((48,), (500,))
        write_grib(tmp_path / "raw" / f"output.pl.2018{day.replace('-', '')}", "pl", of_day, leads=leads, levels=levels)
    shutil.copy(root / "ERA5_z500.nc", tmp_path / "raw")
    store = make_store(tmp_path / "raw", tmp_path / "store", "z500", 5)
    assert_equals_definition(store, "z500", 5, starts)
    assert store.efi is None


def test_grib_of_one_date_at_the_surface(tmp_path: Path) -> None:
    starts = STARTS[:4]
    root = write_ens10(tmp_path / "root", "t2m", starts=starts, members=False)
    for start in starts:
        write_grib(root / "ensemble" / f"output.sfc.{str(start).replace('-', '')}.grib", "sfc", starts[starts == start])
    store = make_store(root, tmp_path / "store", "t2m", 10)
    assert_equals_definition(store, "t2m", 10, starts)


def test_the_index_of_the_release(tmp_path: Path) -> None:
    root = write_ens10(tmp_path / "root", "t850", starts=STARTS[:4])
    values = write_index(root / "efi_t850.nc", STARTS[1:3])
    store = make_store(root, tmp_path / "store", "t850", 10)
    np.testing.assert_array_equal(np.asarray(store.efi)[1:3], values)
    assert np.isnan(np.asarray(store.efi)[[0, 3]]).all()


def test_a_stopped_preparation_goes_on_to_the_same_bytes(root: Path, store: EnsembleStore, tmp_path: Path) -> None:
    class Stopping(Silent):
        def advance(self, text: str | None = None) -> None:
            super().advance(text)
            if len(self.steps) == 7:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_store(root, tmp_path, "z500", 10, Stopping())
    with pytest.raises(DataError, match="is not finished"):
        EnsembleStore.open(tmp_path)
    with pytest.raises(DataError, match="holds another store, which differs in num_members"):
        make_store(root, tmp_path, "z500", 5)
    listener = Silent()
    make_store(root, tmp_path, "z500", 10, listener)
    assert sum(step.startswith("reading") for step in listener.steps) == 11
    assert contents(tmp_path) == contents(store.path)
    make_store(root, tmp_path, "z500", 10, listener)
    assert "nothing to do" in listener.lines[-1]


def test_samples(store: EnsembleStore) -> None:
    samples = EnsembleSamples(store, TRAIN)
    # The forecast of 31 December 1999 is for 2000.
    assert len(samples) == 11
    input, target = samples[3]
    np.testing.assert_array_equal(input, store.inputs[3])
    assert store.efi is not None
    for number, fields in enumerate((store.truth, store.target_mean, store.target_std, store.efi)):
        np.testing.assert_array_equal(target[number], fields[3])
    batches = list(DataLoader(samples, batch_size=4, collate_fn=EnsembleSamples.collate))
    assert [len(batch[0]) for batch in batches] == [4, 4, 3] and batches[0][1].shape == (4, 4, *GRID.shape)
    torch.testing.assert_close(batches[0][0][3], input)
    # A worker gets no fields along.
    assert len(pickle.dumps(samples)) < 20_000
    members, _ = EnsembleSamples(store, TRAIN, inputs="members")[0]
    assert store.members is not None
    np.testing.assert_array_equal(members, store.members[0])
    with_efi = EnsembleSamples(store, (2000, 2001))
    known = [not target[3].isnan().any() for _, target in (with_efi[index] for index in range(len(with_efi)))]
    assert sum(known) == 5 == len(known) - with_efi.num_without_efi


@pytest.fixture(scope="module")
def small_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ens10(tmp_path_factory.mktemp("ens10"), "t850", starts=STARTS[:9])


def test_prepare(small_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--task", "t850", "--members", "5", "--train-years", "1998", "1998"]
    command = ["data", "prepare", "ens10", "--root", str(small_root), "--output", str(tmp_path), *options]
    assert main(command) == 0
    output = capsys.readouterr()
    assert "t850, 9 forecasts, started 1998-01-01 to 1999-01-08; 14 channels, 9 x 16" in output.out
    assert (
        "population standard deviation of 5 members, normalised by statistics of the training years 1998" in output.out
    )
    assert "extreme forecast index: none" in output.out and "so no EECRPS: no efi_t850.nc" in output.err
    assert "the store takes" in output.err
    assert EnsembleStore.open(tmp_path).task == "t850"
    assert main(command) == 0
    again = capsys.readouterr()
    assert "nothing to do" in again.err


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--task", "t80"], 2, "did you mean"),
        (["--task", "t850", "--members", "9"], 2, "9"),
        (["--task", "t2m"], 1, "has no members of t2m"),
    ],
)
def test_a_mistake_gets_one_clear_line(
    small_root: Path, tmp_path: Path, options: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "prepare", "ens10", "--root", str(small_root), "--output", str(tmp_path), *options]) == code
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and text in error
