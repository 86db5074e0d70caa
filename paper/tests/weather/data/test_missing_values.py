from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from memory_source import MemorySource, Silent, contents
from smoe.errors import DataError
from smoe_paper.weather.data.prepare import prepare
from smoe_paper.weather.data.prepare_plan import Preparation
from smoe_paper.weather.data.store import NaNPolicy

SOURCE = MemorySource()
WANTED = Preparation((2000, 2002), (2000, 2001), SOURCE.names)


def test_only_the_beginning_of_a_record_is_left_out(tmp_path: Path) -> None:
    source = MemorySource(all_years=(2000, 2001))
    source.changes["tp", 2001] = np.full((1, 4, 5), np.nan)
    wanted = Preparation((2001, 2001), (2001, 2001), source.names)
    with pytest.raises(DataError, match=r"tp holds 20 NaN in 2001, 2\.50% of its values, the first at 2001-01-01T00 h"):
        prepare(source, tmp_path / "later", wanted, Silent())
    # More than a day is no beginning any more.
    long = MemorySource(all_years=(2000,))
    long.changes["tp", 2000] = np.full((6, 4, 5), np.nan)
    with pytest.raises(DataError, match="tp holds 120 NaN in 2000"):
        prepare(long, tmp_path / "long", replace(WANTED, years=(2000, 2000), statistics_years=(2000, 2000)), Silent())


def with_nans() -> MemorySource:
    source = MemorySource()
    for channel, year in (("tisr", 2001), ("t_850", 2002)):
        values = SOURCE.read(channel, year)[:30].copy()
        values[20, 1, 2] = np.nan
        values[21, 3] = np.nan
        source.changes[channel, year] = values
    return source


def test_nans_are_refused_with_channel_time_and_count(tmp_path: Path) -> None:
    where = r"tisr holds 6 NaN in 2001, 0\.02% of its values, the first at 2001-01-06T00 h, latitude -20, longitude 144"
    with pytest.raises(DataError, match=where):
        prepare(with_nans(), tmp_path / "refuse", WANTED, Silent())
    with pytest.raises(
        DataError, match=r"t_850 holds 6 NaN in 2002, 0\.75% .* choose what replaces them with --on-nan"
    ):
        prepare(with_nans(), tmp_path / "tisr", replace(WANTED, on_nan="zero-tisr"), Silent())


def test_zero_replaces_nans_before_the_statistics(tmp_path: Path) -> None:
    store = prepare(with_nans(), tmp_path, replace(WANTED, on_nan="zero"), Silent())
    values = np.concatenate([np.nan_to_num(with_nans().read("tisr", year), nan=0.0) for year in (2000, 2001)])
    index = store.channels.index("tisr")
    assert store.mean[index] == pytest.approx(values.mean(dtype=np.float64), rel=1e-9)
    assert store.metadata.on_nan == "zero"
    assert [year.num_filled for year in store.metadata.years] == [{}, {"tisr": 6}, {"t_850": 6}]
    row = len(SOURCE.times(2000)) + 20
    physical = store.to_physical("tisr", store.fields[row, index, 1, 2].astype(np.float64)[None])
    assert abs(physical[0]) < 1.0


def test_after_a_refusal_a_policy_can_be_chosen(tmp_path: Path) -> None:
    policies: tuple[NaNPolicy, ...] = ("refuse", "zero-tisr", "zero")
    for policy, name in zip(policies[:2], ("tisr", "t_850"), strict=True):
        with pytest.raises(DataError, match=f"{name} holds 6 NaN"):
            prepare(with_nans(), tmp_path / "one", replace(WANTED, on_nan=policy), Silent())
    reporter = Silent()
    prepare(with_nans(), tmp_path / "one", replace(WANTED, on_nan="zero"), reporter)
    assert "resuming: 2 of 3 years are written" in reporter.lines
    prepare(with_nans(), tmp_path / "two", replace(WANTED, on_nan="zero"), Silent())
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_what_was_filled_with_zeros_is_not_taken_for_the_mean(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="t_850 holds 6 NaN"):
        prepare(with_nans(), tmp_path, replace(WANTED, on_nan="zero-tisr"), Silent())
    with pytest.raises(DataError, match="differs in on_nan"):
        prepare(with_nans(), tmp_path, replace(WANTED, on_nan="mean"), Silent())


def test_a_preparation_that_did_nothing_binds_nobody(tmp_path: Path) -> None:
    source = MemorySource()
    source.changes["z_500", 2000] = np.full((1, 4, 5), np.nan)
    with pytest.raises(DataError, match="z_500 holds 20 NaN"):
        prepare(source, tmp_path, WANTED, Silent())
    prepare(source, tmp_path, replace(WANTED, channels=("t2m", "tp")), Silent())


def test_mean_replaces_nans_after_the_statistics(tmp_path: Path) -> None:
    store = prepare(with_nans(), tmp_path, replace(WANTED, on_nan="mean"), Silent())
    values = np.concatenate([with_nans().read("tisr", year).astype(np.float64) for year in (2000, 2001)])
    index = store.channels.index("tisr")
    assert store.mean[index] == pytest.approx(np.nanmean(values), rel=1e-12)
    assert store.std[index] == pytest.approx(np.nanstd(values), rel=1e-10)
    assert store.fields[len(SOURCE.times(2000)) + 20, index, 1, 2] == 0
    assert store.metadata.years[1].num_filled == {"tisr": 6}


@pytest.mark.parametrize(
    ("channel", "value", "text"),
    [
        ("t2m", np.inf, "t2m is inf at 2000-01-01T00 h, latitude -60, longitude 0, which no policy covers"),
        ("tp", -0.0011, "tp is -0.0011 at 2000-01-01T00 h"),
    ],
)
def test_what_no_policy_covers_is_refused(tmp_path: Path, channel: str, value: float, text: str) -> None:
    source = MemorySource()
    source.changes[channel, 2000] = np.full((1, 4, 5), value)
    with pytest.raises(DataError) as caught:
        prepare(source, tmp_path, replace(WANTED, on_nan="mean"), Silent())
    assert text in str(caught.value)
