"""A description says what is there, what hinders, and is right about whether the recipes can use it."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import xarray as xr

from smoe_paper.weather.check import describe
from smoe_paper.weather.commands import run_check
from weather_files import times_of_year, write_netcdf, write_weatherbench


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    return write_weatherbench(tmp_path_factory.mktemp("intact"), years=(2015, 2016, 2017), steps=6).parent


@pytest.fixture
def whole(intact, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    return shutil.copytree(intact, tmp_path / "whole")


def change(path, apply):
    with xr.open_dataset(path) as dataset:
        dataset.load()
    write_netcdf(apply(dataset).drop_encoding(), path)


def test_a_whole_archive_can_be_used(whole, monkeypatch, capsys):
    steps = []
    found = describe(whole, progress=lambda *step: steps.append(step))
    assert found.is_usable
    assert [row[1] for row in found.variables] == ["z", "t", "u", "v", "q", "tisr", "t2m", "tp"]
    assert {row[4] for row in found.variables} == {"0 %"}
    assert steps[0] == (0, 8, "geopotential") and steps[-1][:2] == (8, 8)
    assert run_check([str(whole)]) == 0
    out = capsys.readouterr().out
    for text in (
        "weatherbench, 5.625deg (32 x 64), every 6 h",
        "years 2015-2017, 18 times",
        "50 250 500 600 700 850 925",
        "2m_temperature",
        "lsm, orography, lat2d, lon2d",
        "remark: 2015 has 6 of its 1,460 times",
        "remark: gap in time: 2016-01-02T06 to 2017-01-01T00",
        "1979-2014, 2018 are not there",
        "can be used for the weather recipes",
    ):
        assert text in out
    assert "cannot" not in out
    # Headers only.
    monkeypatch.setattr("smoe_paper.weather.series.FieldSeries.read", None)
    assert run_check([str(whole), "--quick"]) == 0
    out = capsys.readouterr().out
    assert "not read" in out and "as far as the headers tell" in out


def test_every_problem_is_named_not_only_the_first(whole, capsys):
    folder = whole / "5.625deg"
    (folder / "temperature" / "temperature_2016_5.625deg.nc").unlink()
    damaged = folder / "u_component_of_wind" / "u_component_of_wind_2017_5.625deg.nc"
    damaged.write_bytes(damaged.read_bytes()[:1000])
    for path in (folder / "specific_humidity").iterdir():
        change(path, lambda ds: ds.sel(level=[500, 850]))
    for path in (folder / "constants").iterdir():
        change(path, lambda ds: ds.drop_vars("lsm"))

    def with_nans(dataset):
        dataset["t2m"][2, :3] = np.nan
        return dataset

    change(folder / "2m_temperature" / "2m_temperature_2016_5.625deg.nc", with_nans)
    assert run_check([str(whole)]) == 1
    out = capsys.readouterr().out
    for text in (
        "problem: temperature lacks 2016",
        "u_component_of_wind_2017_5.625deg.nc: it cannot be read",
        f"problem: t2m: {3 * 64} values are NaN, the first at 2016-01-01T12",
        "0.52 %",
        "missing for the weather recipes: q_50, q_250, q_600, q_700, q_925, lsm",
        "cannot be used for the weather recipes",
    ):
        assert text in out


def test_a_damaged_first_file_does_not_hide_the_next(whole):
    folder = whole / "5.625deg"
    damaged = [folder / name / f"{name}_2015_5.625deg.nc" for name in ("geopotential", "temperature")]
    for path in damaged:
        path.write_bytes(path.read_bytes()[:1000])
    problems = " | ".join(describe(whole, quick=True).problems)
    for path in damaged:
        assert f"{path}: it cannot be read" in problems


def test_nans_of_solar_radiation_have_a_rule(whole):
    def with_nans(dataset):
        dataset["tisr"][5, 0, :7] = np.nan
        return dataset

    name = "toa_incident_solar_radiation"
    change(whole / "5.625deg" / name / f"{name}_2017_5.625deg.nc", with_nans)
    found = describe(whole)
    assert found.is_usable
    said = "tisr: 7 values are NaN, the first at 2017-01-02T06; to prepare them, choose --on-nan zero-tisr"
    assert said in found.remarks


def test_what_the_recipes_do_not_read_hinders_nobody(whole):
    write_weatherbench(whole, years=(2015,), steps=6, variables=("vo",), constants=False)
    found = describe(whole, quick=True)
    assert found.is_usable
    assert "vorticity lacks 2016-2017" in found.remarks


def test_nans_at_the_start_of_accumulated_fields_are_expected(tmp_path):
    times = {year: times_of_year(year, 30, 1) for year in (2015, 2016, 2017)}
    write_weatherbench(tmp_path, years=(2015, 2016, 2017), step_hours=1, times=times, levels=(500,))
    found = describe(tmp_path)
    (tp,) = (row for row in found.variables if row[1] == "tp")
    assert (tp[0], tp[4]) == ("total_precipitation", "17 %")
    assert found.problems == []
