"""The plain files of the simulated ensemble, made of small files in its layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from simulation import ens10_layout

from smoe.benchmarks.own_bias import fit_command, write_plain_files
from smoe.gridded.field_source import FieldSource
from smoe.gridded.open_fields import open_fields
from smoe.regression.options import RegressorOptions
from smoe.regression.preparation import open_sources, pair_sources

STARTS = [np.datetime64(f"{year}-{month:02d}-05") for year in (2001, 2002) for month in (1, 7)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Members of four starts, and the truth of the first three: the last one is not known yet."""
    generator = np.random.default_rng(0)
    for start in STARTS:
        fields = {name: generator.normal(size=(3, 32, 64)) for name in ens10_layout.VARIABLES["sfc"]}
        ens10_layout.write_members(tmp_path, "sfc", start, fields, {})
    truth = {name: generator.normal(size=(3, 32, 64)).astype(np.float32) for name in ("z500", "t850", "t2m")}
    ens10_layout.write_truth(tmp_path, STARTS[:3], truth)
    return tmp_path


def test_forecasts_are_means_of_members_paired_with_the_truth_two_days_later(root: Path) -> None:
    count, years = write_plain_files(root, root)
    assert (count, years) == (3, [2001, 2002])
    inputs, targets = open_sources(root / "forecasts.nc", root / "analyses.nc", RegressorOptions())
    pairs = pair_sources(inputs, targets, RegressorOptions())
    assert len(pairs) == 3 and set(pairs.valid - pairs.starts) == {48 * 3600}
    assert inputs.channels[0].name == "t2m" and targets.channels[0].units == "K"
    with xr.open_dataset(root / "ensemble" / "output.sfc.20010705.nc") as members:
        expected = members["t2m"].mean("number").values[::-1]
    np.testing.assert_allclose(inputs.read(np.array([1]))[0, 0], expected, atol=1e-6)
    with open_fields(root / "analyses.nc") as truth:
        np.testing.assert_array_equal(FieldSource(truth).read(np.array([0]))[0, 0], truth["t2m"].values[0, ::-1])


@pytest.mark.parametrize(
    ("years", "periods"),
    [
        ([2001, 2002], ("2001:2001-09", "2001-10:2001-12", "2002")),
        ([2001, 2002, 2003], ("2001:2002-06", "2002-07:2002-12", "2003")),
    ],
)
def test_the_last_year_is_kept_for_the_test(years: list[int], periods: tuple[str, str, str]) -> None:
    command = fit_command(Path("plain"), years, 1, ["--net", "layer"])
    found = tuple(command[command.index(flag) + 1] for flag in ("--train", "--validate", "--test"))
    assert found == periods and command[-2:] == ["--net", "layer"]
