"""What dask reads by threads, processes and a cluster is bit-equal to what one reader reads."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import dask
import numpy as np
import pytest
import xarray as xr

from gridded_files import regional
from smoe.errors import DataError
from smoe.gridded.schedulers import Readers, check_scheduler, reading_by
from smoe.regression.options import RegressorOptions
from smoe.regression.preparation import Prepared, prepare
from smoe.regression.statistics import Statistics


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    x = xr.merge([regional(60, 4, 6, seed=1), regional(60, 4, 6, name="u", seed=2)])
    x.chunk(time=7).to_zarr(folder / "x.zarr", consolidated=False)
    regional(60, 4, 6, seed=3).to_netcdf(folder / "y.nc", encoding={"t2m": {"chunksizes": (5, 4, 6), "zlib": True}})
    return folder


def prepared_by(scheduler: str | None, files: Path, cache: Path) -> Prepared:
    # A few kilobytes of memory: the fields are streamed in several blocks.
    options = RegressorOptions(lead="1D", max_memory_gb=1e-5)
    with reading_by(scheduler):
        return prepare(str(files / "x.zarr"), str(files / "y.nc"), options, {}, cache=cache)


def assert_same(one: Prepared, other: Prepared) -> None:
    for name in Statistics.names():
        np.testing.assert_array_equal(getattr(one.statistics, name), getattr(other.statistics, name), err_msg=name)
    for name, split in one.splits.items():
        np.testing.assert_array_equal(split.inputs.values, other.splits[name].inputs.values)
        np.testing.assert_array_equal(split.targets.values, other.splits[name].targets.values)


@pytest.fixture
def cluster() -> Iterator[str]:
    deploy = pytest.importorskip("distributed.deploy")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with deploy.LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, protocol="tcp://", dashboard_address=None
        ) as running:
            yield running.scheduler_address


@pytest.mark.parametrize("scheduler", ["threads", "processes", "cluster"])
def test_prepared_data_are_bit_equal(
    scheduler: str, files: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    expected = prepared_by("serial", files, tmp_path / "serial")
    address = request.getfixturevalue("cluster") if scheduler == "cluster" else scheduler
    assert_same(prepared_by(address, files, tmp_path / "other"), expected)
    for name in ("inputs", "targets"):
        serial, other = (tmp_path / each / name / "fields.f32" for each in ("serial", "other"))
        assert serial.read_bytes() == other.read_bytes()


def test_damage_is_named_whoever_reads(files: Path, tmp_path: Path) -> None:
    chunk = files / "x.zarr" / "u" / "c" / "3" / "0" / "0"
    content = chunk.read_bytes()
    try:
        chunk.write_bytes(content[:-9])
        for scheduler in (None, "serial", "threads"):
            with pytest.raises(DataError, match="u of inputs cannot be read, the file is damaged") as caught:
                prepared_by(scheduler, files, tmp_path / str(scheduler))
            assert "\n" not in str(caught.value) and "Traceback" not in str(caught.value)
    finally:
        chunk.write_bytes(content)


def test_readers_keep_the_order_and_read_side_by_side() -> None:
    both = threading.Barrier(2, timeout=60.0)

    def read(item: int) -> int:
        # Passed by two readers at once only.
        both.wait()
        return item + 1

    with dask.config.set(scheduler="threads", num_workers=2):
        assert list(Readers(2).in_order(read, range(6))) == [(item, item + 1) for item in range(6)]
    assert list(Readers().in_order(str, range(3))) == [(0, "0"), (1, "1"), (2, "2")]


def test_what_a_reader_raises_is_raised() -> None:
    def read(item: int) -> int:
        if item == 3:
            raise DataError("file 3 is damaged")
        return item

    found = []
    with reading_by("threads"), pytest.raises(DataError, match=r"^file 3 is damaged$"):
        found.extend(item for item, _ in Readers(2).in_order(read, range(6)))
    assert found == [0, 1]


def test_schedulers_that_are_none() -> None:
    for text in ("thread", "localhost:8786", ""):
        with pytest.raises(ValueError, match="scheduler must be one of serial, threads, processes, or an address"):
            check_scheduler(text)
    with pytest.raises(ValueError, match="scheduler must be one of"):
        RegressorOptions(scheduler="cluster")


def test_a_cluster_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed.deploy")
    monkeypatch.setattr("smoe.gridded.schedulers._TIMEOUT", 1)
    with pytest.raises(DataError, match="no cluster answers at tcp:"), reading_by("tcp://127.0.0.1:9"):
        pass
