import json
import subprocess
import sys

import numpy as np
import pytest
import xarray as xr

from simulated_model import Killed, SimulatedModel
from simulation import layout
from simulation.run_folder import RunFolder
from simulation.years import run_years

START = "2001-12-17"


@pytest.fixture(autouse=True, scope="module")
def short_years():
    """2001 is its last twelve days and 2002 its first twelve: as whole years, only quicker."""
    first, last = layout.year_times(2001)[-48:], layout.year_times(2002)[:48]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "year_times", {2001: first, 2002: last}.__getitem__)
        yield


def run(root, *, kill_at=None, killed_after_saving=False, years=range(2001, 2002)):
    """One process: restores what there is, runs, and perhaps dies at a stretch."""
    folder = RunFolder(root / ".run")
    folder.path.mkdir(exist_ok=True, parents=True)
    model = SimulatedModel(START)
    if folder.state.exists():
        model.restore(folder.state)
    model.stretches_until_killed, model.killed_after_saving = kill_at, killed_after_saving
    finished = []
    run_years(model, folder, root, years, {}, finished.extend)
    return finished


def read(root, name, year=2001):
    with xr.open_dataset(layout.year_file(root, name, year)) as data:
        return data[name].values


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    root = tmp_path_factory.mktemp("whole")
    assert run(root) == [2001]
    return root


def test_spin_up_is_dropped_and_the_year_is_whole(whole):
    model = SimulatedModel(START)
    frames = model.advance(20)
    inside = np.isin(frames.times, layout.year_times(2001))
    assert inside.sum() == 48
    np.testing.assert_allclose(read(whole, "t2m"), frames.near_surface_temperature[inside], rtol=1e-6)
    np.testing.assert_allclose(read(whole, "tisr"), frames.solar_flux[inside] * 3600, rtol=1e-6)
    np.testing.assert_allclose(read(whole, "v")[:, 0, 5], frames.northward_wind[inside][:, 0, 5], rtol=1e-6)


@pytest.mark.parametrize(("stretches", "killed_after_saving"), [((1, 2), False), ((1, 1), True)])
def test_a_run_that_is_killed_goes_on_to_the_same_fields(whole, tmp_path, stretches, killed_after_saving):
    for kill_at in stretches:
        with pytest.raises(Killed):
            run(tmp_path, kill_at=kill_at, killed_after_saving=killed_after_saving)
    assert not layout.has_year(tmp_path, 2001)
    run(tmp_path)
    for name in layout.VARIABLES:
        np.testing.assert_array_equal(read(tmp_path, name), read(whole, name))


def test_a_run_that_is_killed_while_it_writes_a_year_writes_it_again(whole, tmp_path, monkeypatch):
    real = layout.write_file

    def dying(data, path, encoding):
        if "temperature" in path.name:
            raise Killed
        real(data, path, encoding)

    with monkeypatch.context() as patch:
        patch.setattr(layout, "write_file", dying)
        with pytest.raises(Killed):
            run(tmp_path)
    assert not layout.has_year(tmp_path, 2001)
    run(tmp_path)
    for name in layout.VARIABLES:
        np.testing.assert_array_equal(read(tmp_path, name), read(whole, name))


def test_more_years_go_on_from_the_last(tmp_path):
    chunks = RunFolder(tmp_path / ".run").chunks
    assert run(tmp_path) == [2001]
    # The stretch that reaches into the next year is kept, the one before is not needed any more.
    assert [path.name for path in chunks.iterdir()] == ["2001-12-27T06.npz"]
    assert run(tmp_path, years=range(2001, 2003)) == [2002]
    assert not list(chunks.iterdir())


def test_a_damaged_stretch_is_an_error(tmp_path):
    with pytest.raises(Killed):
        run(tmp_path, kill_at=1, killed_after_saving=True)
    stretch = next((tmp_path / ".run" / "chunks").glob("*.npz"))
    stretch.write_bytes(stretch.read_bytes()[:1000])
    with pytest.raises(ValueError, match="is damaged"):
        run(tmp_path)


def test_other_settings_are_refused(tmp_path):
    folder = RunFolder(tmp_path)
    folder.check_settings({"truncation": 21, "start": "2000-07-05"})
    folder.check_settings({"truncation": 21, "start": "2000-07-05"})
    with pytest.raises(ValueError, match="truncation was 21, is 31"):
        folder.check_settings({"truncation": 31, "start": "2000-07-05"})
    assert json.loads((tmp_path / "settings.json").read_text())["truncation"] == 21


def test_a_second_run_is_kept_away(tmp_path):
    code = f"import fcntl, time; f = open({str(tmp_path / 'lock')!r}, 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); time.sleep(60)"  # noqa: E501
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        try:
            with pytest.raises(ValueError, match="another simulation"), RunFolder(tmp_path).locked():
                pass
        finally:
            other.kill()
    with RunFolder(tmp_path).locked():
        pass


def test_a_model_that_breaks_down_is_an_error():
    frames = SimulatedModel(START).advance(1)
    frames.check_finite()
    frames.temperature.flags.writeable = True
    frames.temperature[2, 0, 0, 0] = np.nan
    with pytest.raises(FloatingPointError, match="temperature is not finite at 2001-12-17T18"):
        frames.check_finite()
