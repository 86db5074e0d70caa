from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from memory_source import MemorySource, Silent
from smoe.errors import DataError
from smoe_paper.weather.data.prepare import prepare
from smoe_paper.weather.data.prepare_plan import Preparation
from smoe_paper.weather.data.store import WeatherStore, checksum

SOURCE = MemorySource()
WANTED = Preparation((2000, 2002), (2000, 2001), SOURCE.names)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "whole"
    prepare(SOURCE, path, WANTED, Silent())
    return path


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def transformed(channel: str, years: tuple[int, ...]) -> np.ndarray:
    values = np.concatenate([SOURCE.read(channel, year) for year in years]).astype(np.float64)
    return np.log(values + 0.001) - np.log(0.001) if channel == "tp" else values


def test_statistics_are_of_the_training_years_alone(whole: Path) -> None:
    store = WeatherStore.open(whole)
    assert store.statistics_years == (2000, 2001)
    for index, channel in enumerate(store.channels):
        values = transformed(channel, (2000, 2001))
        expected = 0.0 if channel == "tp" else values.mean()
        assert store.mean[index] == pytest.approx(expected, rel=1e-12, abs=1e-12)
        assert store.std[index] == pytest.approx(values.std(), rel=1e-10)


def test_fields_are_normalised_and_go_back_to_physical_units(whole: Path) -> None:
    store = WeatherStore.open(whole)
    assert store.fields.shape == (len(store.times), 5, 4, 5) and store.fields.dtype == np.float32
    np.testing.assert_array_equal(store.times, np.concatenate([SOURCE.times(year) for year in (2000, 2001, 2002)]))
    for index, channel in enumerate(store.channels):
        normalised = (transformed(channel, (2000, 2001, 2002)) - store.mean[index]) / store.std[index]
        np.testing.assert_array_equal(store.fields[:, index], normalised.astype(np.float32))
        physical = np.concatenate([SOURCE.read(channel, year) for year in (2000, 2001, 2002)])
        scale = np.abs(physical).max()
        np.testing.assert_allclose(store.to_physical(channel, store.fields[:, index]), physical, atol=1e-6 * scale)
        tensor = store.to_physical(channel, torch.tensor(store.fields[:9, index]))
        np.testing.assert_allclose(tensor.numpy(), physical[:9], atol=1e-6 * scale)
        back = store.to_normalised(channel, physical[:9])
        assert back.dtype == np.float32
        np.testing.assert_allclose(back, store.fields[:9, index], atol=1e-6)
        assert torch.allclose(store.to_normalised(channel, torch.from_numpy(physical[:9])), torch.from_numpy(back))
    # No rain is 0, in both units.
    index = store.channels.index("tp")
    assert (store.fields[:, index].min() == 0) and store.to_physical("tp", np.zeros(1, np.float32))[0] == 0


def test_preparing_needs_no_torch() -> None:
    program = (
        "import sys, smoe_paper.weather.data.prepare; assert 'torch' not in sys.modules and 'xarray' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_constants(whole: Path) -> None:
    store = WeatherStore.open(whole)
    assert store.constant_names == ("lsm", "orography", "lat2d")
    for index, name in enumerate(store.constant_names):
        raw = SOURCE.read_constant(name)
        np.testing.assert_array_equal(store.raw_constant(name), raw)
        expected = (raw.astype(np.float64) - raw.mean(dtype=np.float64)) / raw.astype(np.float64).std()
        np.testing.assert_allclose(store.constants[index], expected, rtol=1e-5)


def test_a_store_is_sent_as_a_path(whole: Path) -> None:
    store = WeatherStore.open(whole)
    assert store.fields.any()
    content = pickle.dumps(store)
    assert len(content) < store.metadata.num_bytes / 20
    np.testing.assert_array_equal(pickle.loads(content).fields[7], store.fields[7])


def test_a_flipped_byte_is_found(copy: Path) -> None:
    assert list(WeatherStore.open(copy).verify()) == [2000, 2001, 2002]
    fields = copy / "fields.f32"
    content = bytearray(fields.read_bytes())
    row = 5 * 4 * 5 * 4
    content[row * len(SOURCE.times(2000)) + 11] ^= 1
    fields.write_bytes(content)
    with pytest.raises(DataError, match=r"the year 2001 is not as it was written"):
        list(WeatherStore.open(copy).verify())


def edit(change: Callable[[dict[str, Any]], object], *, with_checksum: bool) -> Callable[[Path], object]:
    def apply(path: Path) -> None:
        whole = json.loads((path / "store.json").read_text())
        change(whole)
        if with_checksum:
            whole["checksum"] = checksum(whole["content"])
        (path / "store.json").write_text(json.dumps(whole))

    return apply


def cut(name: str, num_bytes: int) -> Callable[[Path], object]:
    return lambda path: (path / name).write_bytes((path / name).read_bytes()[:num_bytes])


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (shutil.rmtree, "there is no weather store in"),
        (cut("fields.f32", -1), "1,185,599 bytes, but 1,185,600 are needed for 2,964 steps of 5 channels"),
        (cut("fields.f32", 0), "has 0 bytes, but"),
        (lambda path: (path / "fields.f32").unlink(), "fields.f32 is missing, but 1,185,600 are needed"),
        (lambda path: os.truncate(path / "fields.f32", 1_185_604), "has 1,185,604 bytes"),
        (cut("constants.f32", 10), "constants.f32 is missing or damaged"),
        (lambda path: (path / "constants.f32").write_bytes(b"\0" * 240), "constants.f32 is missing or damaged"),
        (lambda path: (path / "constants.f32").unlink(), "constants.f32 is missing or damaged"),
        (cut("store.json", 100), "store.json is damaged"),
        (cut("store.json", 0), "store.json is damaged"),
        (lambda path: (path / "store.json").write_bytes(b"\xff\xfe"), "store.json is damaged"),
        (lambda path: (path / "store.json").write_text("[1]"), "was not written by smoe data prepare"),
        (lambda path: (path / "store.json").write_text("{}"), "was not written by smoe data prepare"),
        (
            edit(lambda whole: whole.update(version=0), with_checksum=False),
            "has version 0 of the format, this smoe reads version 1: delete ",
        ),
        (
            edit(lambda whole: whole["content"]["mean"].reverse(), with_checksum=False),
            "was edited or damaged: its checksum does not fit",
        ),
        (edit(lambda whole: whole.pop("content"), with_checksum=False), "its checksum does not fit"),
        (
            edit(lambda whole: whole["content"].pop("mean"), with_checksum=True),
            "does not hold what version 1 holds (Metadata lacks the field 'mean')",
        ),
        (
            edit(lambda whole: whole["content"].update(mean="abc"), with_checksum=True),
            "does not hold what version 1 holds (mean must be a list, got 'abc')",
        ),
        (
            edit(lambda whole: whole["content"]["years"][0].update(num_filled={"t": "x"}), with_checksum=True),
            "years[0].num_filled must be dict[str, int], got {'t': 'x'}",
        ),
        # Without channels, any number of steps fits into an empty file.
        (
            edit(
                lambda whole: (
                    whole["content"].update(channels=[], mean=[], std=[]),
                    whole["content"]["years"][0].update(num_steps=10**12),
                ),
                with_checksum=True,
            ),
            "the shape of the fields is (1000000",
        ),
        (
            edit(lambda whole: whole["content"]["years"][0].update(first_time="noon"), with_checksum=True),
            "does not hold what version 1 holds (Error parsing datetime string",
        ),
        (
            edit(lambda whole: whole["content"]["years"].pop(1), with_checksum=True),
            "has 1,185,600 bytes, but 601,600 are needed for 1,504 steps",
        ),
    ],
)
def test_a_store_that_is_not_whole_is_refused(copy: Path, damage: Callable[[Path], object], text: str) -> None:
    WeatherStore.open(copy)
    damage(copy)
    with pytest.raises(DataError) as caught:
        WeatherStore.open(copy)
    assert text in str(caught.value) and "\n" not in str(caught.value)


def test_unknown_names_are_refused_with_the_nearest(whole: Path) -> None:
    store = WeatherStore.open(whole)
    with pytest.raises(DataError, match=r"has no channel 't_580'; did you mean 't_850'\?"):
        store.to_physical("t_580", np.zeros(3))
    with pytest.raises(DataError, match=r"has no constant 'soil'; it has lsm, orography, lat2d"):
        store.raw_constant("soil")
