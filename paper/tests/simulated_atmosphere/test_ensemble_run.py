import shutil

import numpy as np
import pytest
import xarray as xr

from memory_source import Silent
from simulated_ensemble_model import BIAS, SimulatedEnsembleModel
from simulated_model import Killed
from simulation import ens10_layout
from simulation.ensemble_report import describe
from simulation.ensemble_run import EnsembleFolder, is_complete, run_ensemble, write_summaries
from simulation.perturbations import Perturbations
from simulation.run_folder import RunFolder
from simulation.start_dates import start_dates
from smoe_paper.ens10.prepare import prepare
from smoe_paper.ens10.source import TASKS, open_ens10

FIRST = np.datetime64("2001-12-20")
STARTS = start_dates(np.datetime64("2001-11-20"), np.datetime64("2002-01-12"))


def run(root, *, kill_at=None):
    """One process: restores what there is, runs, and perhaps dies at a forecast."""
    folder = RunFolder(root / ".run")
    folder.path.mkdir(exist_ok=True, parents=True)
    model = SimulatedEnsembleModel("2001-11-18")
    if folder.state.exists():
        model.restore(folder.state)
    model.forecasts_until_killed = kill_at
    done = []
    run_ensemble(model, folder, root, STARTS, FIRST, Perturbations(), lambda: done.append(model.time))
    return model, done


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    root = tmp_path_factory.mktemp("whole")
    model, done = run(root)
    assert len(done) == len(STARTS)
    assert model.num_forecasts == sum(start >= FIRST for start in STARTS)
    return root


def test_starts_are_those_of_ens10_in_every_year():
    starts = start_dates(np.datetime64("2001-01-01"), np.datetime64("2004-12-31"))
    assert len(starts) == 4 * 105
    days = {str(start)[5:] for start in starts}
    assert len(days) == 105
    assert {"01-01", "01-04", "01-08", "12-31"} <= days
    assert starts == sorted(starts)
    fewer = start_dates(np.datetime64("2001-01-01"), np.datetime64("2004-12-31"), every=2)
    assert len(fewer) == 4 * 53
    assert {str(start)[5:] for start in fewer} < days


def test_a_forecast_is_for_two_days_later_and_lies_beside_its_truth(whole):
    start = np.datetime64("2001-12-20")
    with (
        xr.open_dataset(ens10_layout.members_file(whole, "pl", start)) as members,
        xr.open_dataset(whole / "ERA5_t850.nc") as truth,
        xr.open_dataset(ens10_layout.members_file(whole, "sfc", start)) as surface,
    ):
        assert str(truth["time"].values[0])[:10] == str(members["valid_time"].values)[:10] == "2001-12-22"
        # The made-up model is too warm, by the same amount at every start, besides the mean of ten perturbations.
        error = members["t"].sel(isobaricInhPa=850).mean("number").values - truth["T"].values[0, 0]
        assert error.mean() == pytest.approx(BIAS, abs=0.1)
        assert members["latitude"].values[0] == 87.1875
        assert "neither ENS-10 nor ERA5" in truth.attrs["source"]
        # No sea surface on land: the first twenty of 64 longitudes.
        missing = np.isnan(surface["sst"].values)
        assert missing[..., :20].all() and not missing[..., 20:].any()


@pytest.mark.parametrize("kill_at", [0, 2, 4])
def test_a_run_that_is_killed_goes_on_to_the_same_files(whole, tmp_path, kill_at):
    with pytest.raises(Killed):
        run(tmp_path, kill_at=kill_at)
    assert not (tmp_path / "ERA5_z500.nc").exists()
    model, _ = run(tmp_path)
    assert model.num_forecasts == sum(start >= FIRST for start in STARTS) - kill_at
    for name in ("ERA5_z500.nc", "ensemble/output.pl.20011224.nc", "ensemble/output.sfc.20011231.nc"):
        with xr.open_dataset(tmp_path / name) as again, xr.open_dataset(whole / name) as expected:
            xr.testing.assert_identical(again, expected)


def test_what_is_complete_needs_no_model_for_its_summaries(whole, tmp_path):
    root = tmp_path / "copy"
    shutil.copytree(whole, root)
    folder, some = RunFolder(root / ".run"), [start for start in STARTS if start >= FIRST][:3]
    assert is_complete(folder, root, some)
    write_summaries(folder, root, some)
    with xr.open_dataset(root / "ERA5_z500.nc") as truth, xr.open_dataset(whole / "ERA5_z500.nc") as expected:
        xr.testing.assert_identical(truth, expected.isel(time=slice(0, 3)))
    ens10_layout.members_file(root, "sfc", some[1]).unlink()
    assert not is_complete(folder, root, some)


def test_old_states_are_dropped(whole):
    # The last start looks back ten weeks, to before the first start here; a run of a year would keep no more.
    folder = EnsembleFolder(RunFolder(whole / ".run"))
    assert len(folder.read_bank(STARTS[-1])) == len(STARTS) - 1
    folder.drop_states(STARTS[-1] + 60)
    assert len(list((whole / ".run" / "states").glob("*.npz"))) == sum(start >= STARTS[-1] - 10 for start in STARTS)


@pytest.mark.parametrize(("task", "members"), [("z500", 10), ("t850", 5), ("t2m", 10)])
def test_the_library_reads_it(whole, tmp_path, task, members):
    source = open_ens10(whole, TASKS[task], members)
    store = prepare(source, whole, tmp_path / "store", (2001, 2001), Silent())
    assert store.num_members == members
    assert len(store.dates) == sum(start >= FIRST for start in STARTS)


def test_the_report_finds_the_bias_and_what_its_removal_gains(whole):
    text = describe(whole)
    assert "grows from" in text
    assert "in 100% of the forecasts" in text
    row = next(line for line in text.splitlines() if line.startswith("| T850"))
    _, _, _, bias, _, score, corrected = [cell.strip() for cell in row.strip("|").split("|")]
    assert float(bias) == pytest.approx(BIAS, abs=0.15)
    assert float(corrected) < float(score)


def test_a_report_of_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match="run `make simulate-ensemble` first"):
        describe(tmp_path)
