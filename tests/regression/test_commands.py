"""`smoe fit` and `smoe predict` on small files."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

import smoe
from gridded_files import regional, times
from smoe.cli.main import main
from smoe.errors import DataError, Interrupted
from smoe.regression._ladder_fit import LadderFit
from smoe.regression._nets import NetShape, make_net
from smoe.regression._options import RegressorOptions
from smoe.regression._preparation import prepare
from smoe.regression._regressor import write_predictions
from smoe.regression._scores import PLAIN, SMOE
from smoe.regression._training import BaseFields, GridObjective, NetSamples, train_net
from smoe.training.progress import Reporter
from smoe.training.run_directory import RunDirectory, RunError

FLAGS = ["--net", "layer", "--filters", "2", "--max-epochs", "2", "--device", "cpu", "--batch-size", "4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("commands")
    x, y = regional(30, 4, 6, seed=1), regional(30, 4, 6, seed=2)
    x.chunk(time=10).to_zarr(folder / "x.zarr", consolidated=False)
    y.to_netcdf(folder / "y.nc")
    periods = ["--train", "2001-01-01:2001-01-18", "--validate", "2001-01-19:2001-01-24", "--test", "2001-01-25:"]
    code = main(["fit", str(folder / "x.zarr"), str(folder / "y.nc"), *periods, "-o", str(folder / "run"), *FLAGS])
    assert code == 0
    return folder


def test_fit_leaves_a_model_its_scores_and_its_record(folder: Path) -> None:
    scores = json.loads((folder / "run" / "scores.json").read_text())
    assert scores["period"] == "test" and scores["num_samples"] == 6
    model = smoe.GridRegressor.load(folder / "run")
    table = model.score(folder / "x.zarr", folder / "y.nc", period=model.fitted.period_of("test"))
    assert table.rmse["model"] == pytest.approx(scores["rmse"]["model"])
    assert {"model", PLAIN if model.fitted.kept == "net" else SMOE, "raw input"} <= set(scores["rmse"])
    assert (folder / "run" / "training" / "metrics.jsonl").is_file()
    assert repr(smoe.load(folder / "run")) == repr(model)


def test_a_fit_prints_what_it_used_and_no_code_of_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = regional(30, 4, 6, seed=1), regional(30, 4, 6, seed=2, units="K\x1b]0;title\x07", name="t\x1b[2J")
    y["note\x1b[2J"] = ("time", np.arange(30.0))
    x.to_netcdf(tmp_path / "x.nc")
    y.to_zarr(tmp_path / "y.zarr", consolidated=False)
    assert main(["fit", str(tmp_path / "x.nc"), str(tmp_path / "y.zarr"), "-o", str(tmp_path / "run"), *FLAGS]) == 0
    out, err = capsys.readouterr()
    assert "\x1b" not in out and "\x1b" not in err and r"t\x1b[2J (K\x1b]0;title\x07), 6 times of" in out
    assert "samples: 24 train, 6 validation\n" in err
    assert r"variables of targets that are left out: note\x1b[2J (depends on time only)" in err
    # Noise against noise: simple models are as good, and the period was seen.
    assert "warning: the model is no better" not in err and "simple models: mean" in err
    assert "note: 6 of the 6 times are of the validation period, which stopped the training and chose the net" in out
    assert (tmp_path / "run" / "scores.txt").read_text().endswith(out.rpartition("model: ")[0])


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_predict_writes_what_the_model_predicts(folder: Path, tmp_path: Path, suffix: str) -> None:
    new = regional(8, 4, 6, seed=9).assign_coords(time=times(8, "2003-12-28")).assign_attrs(history="downloaded")
    new["t2m"].attrs["units"] = "kelvin"  # another spelling of the units of the fit
    new.to_netcdf(tmp_path / "new.nc")
    output = tmp_path / f"out{suffix}"
    assert main(["predict", str(folder / "run"), str(tmp_path / "new.nc"), "-o", str(output)]) == 0
    expected = smoe.GridRegressor.load(folder / "run").predict(new)
    with xr.open_dataset(output, engine="netcdf4" if suffix == ".nc" else "zarr", decode_timedelta=False) as written:
        np.testing.assert_allclose(written["t2m"], expected["t2m"], rtol=1e-6)
        np.testing.assert_array_equal(written["time"], new["time"])
        assert written.attrs["Conventions"] == "CF-1.11" and "smoe predict" in written.attrs["history"]
        assert written["t2m"].attrs["units"] == "K" and written.attrs["title"] == "small"


def test_a_warning_is_shown_once(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (regional(8, 4, 6, seed=9) + 1000.0).to_netcdf(tmp_path / "new.nc", encoding={"t2m": {"chunksizes": (1, 4, 6)}})
    assert main(["predict", str(folder / "run"), str(tmp_path / "new.nc"), "-o", str(tmp_path / "out.nc")]) == 0
    err = capsys.readouterr().err
    assert err.count("warning:") == err.count("standard deviations from its mean") == 1


def forecasts_and_analyses() -> tuple[xr.Dataset, xr.Dataset]:
    """Forecasts with two lead times, which the model takes as an input, and analyses with an offset."""
    y = regional(30, 4, 6, seed=4)
    y["t2m"][:, 1, 2] = np.nan
    valid = np.stack([y["t2m"].values[lead : 26 + lead] for lead in (1, 3)], axis=1) + 1.5
    x = xr.Dataset(
        {"t2m": (("init_time", "lead_time", "lat", "lon"), valid, {"units": "K"})},
        coords={
            "init_time": times(26),
            "lead_time": ("lead_time", [24, 72], {"units": "hours"}),
            "lat": y["lat"],
            "lon": y["lon"],
        },
    )
    return x, y


@pytest.mark.parametrize("objective", ["mse", "quantiles", "gaussian"])
@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_blocks_are_written_as_the_whole(tmp_path: Path, suffix: str, objective: Any) -> None:
    x, y = forecasts_and_analyses()
    x.chunk(init_time=3).to_zarr(tmp_path / "x.zarr", consolidated=False)
    options: dict[str, Any] = {"net": "layer", "filters": 1, "max_epochs": 1, "compare": "no", "progress": False}
    whole = smoe.GridRegressor(objective=objective, **options).fit(x, y).predict(x)
    # Room for a few fields: many blocks, of whole chunks and all lead times.
    model = smoe.GridRegressor(objective=objective, max_memory_gb=2e-5, **options).fit(tmp_path / "x.zarr", y)
    assert len(model.predict(tmp_path / "x.zarr", lazy=True)["t2m"].chunks[0]) > 3
    output = tmp_path / f"out{suffix}"
    write_predictions(model, str(tmp_path / "x.zarr"), output)
    engine = "netcdf4" if suffix == ".nc" else "zarr"
    with xr.open_dataset(output, engine=engine, decode_timedelta=False) as written:
        assert list(written.data_vars) == list(whole.data_vars) and set(written.coords) == set(whole.coords)
        for name in whole.variables:
            assert written[name].dims == whole[name].dims
            if whole[name].dtype.kind == "f":
                np.testing.assert_allclose(written[name], whole[name], rtol=1e-5)
            else:
                np.testing.assert_array_equal(written[name], whole[name])
        assert np.isnan(written["t2m"].values[..., 1, 2]).all()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"out{suffix}", "x.zarr"]


def test_a_fit_that_was_stopped_goes_on(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["fit", str(folder / "x.zarr"), str(folder / "y.nc"), "-o", str(tmp_path / "run"), *FLAGS]
    assert main(command) == 0
    first = smoe.GridRegressor.load(tmp_path / "run").predict(folder / "x.zarr")
    # As if it had been stopped after the training, before the model was written.
    (tmp_path / "run" / "config.json").unlink()
    capsys.readouterr()
    assert main(command) == 2
    assert "holds a fit that was begun; add --resume" in capsys.readouterr().err
    assert main([*command, "--resume", "--json"]) == 0
    # One line for scripts, the scores that are stored.
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["rmse"]["model"] and json.loads(line)["targets"] == ["t2m"]
    again = smoe.GridRegressor.load(tmp_path / "run").predict(folder / "x.zarr")
    np.testing.assert_allclose(again["t2m"], first["t2m"], rtol=1e-6)


def test_two_fits_in_one_folder_are_refused_and_fields_of_a_killed_one_go(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    command = ["fit", str(folder / "x.zarr"), str(folder / "y.nc"), "-o", str(run), *FLAGS]
    with RunDirectory(run).lock():
        assert main(command) == 1
        assert f"process {os.getpid()} trains in {run}; wait until it ends" in capsys.readouterr().err
        # Nothing was read, nor streamed.
        assert [path.name for path in run.iterdir()] == [".lock"]
    model = smoe.GridRegressor(net="layer", filters=2, max_epochs=1, device="cpu", progress=False)
    with RunDirectory(run / "training").lock(), pytest.raises(RunError, match="trains in"):
        model.fit(folder / "x.zarr", folder / "y.nc", run_dir=run)
    # As if a fit had been killed after it had saved its model.
    shutil.copytree(folder / "run", tmp_path / "done")
    (tmp_path / "done" / "fields").mkdir()
    assert main(["fit", str(folder / "x.zarr"), str(folder / "y.nc"), "-o", str(tmp_path / "done"), *FLAGS]) == 1
    assert "holds a model already" in capsys.readouterr().err and not (tmp_path / "done" / "fields").exists()


@pytest.mark.parametrize("num_files", [0, 1, 2])
def test_a_model_that_is_saved_over_another_is_one_of_them_after_a_kill(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_files: int
) -> None:
    old, new = (smoe.GridRegressor.load(folder / "run") for _ in range(2))
    with torch.no_grad():
        next(new.fitted.net.parameters()).add_(1.0)
    path = tmp_path / "model"
    old.save(path)
    replace, replaced = os.replace, []

    def killed(source: Path, target: Path) -> None:
        if len(replaced) == num_files:
            raise KeyboardInterrupt
        replaced.append(target)
        replace(source, target)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        new.save(path, overwrite=True)
    monkeypatch.undo()
    expected = new if num_files == 2 else old
    found = smoe.GridRegressor.load(path).net.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.net.state_dict().items())
    new.save(path, overwrite=True)
    assert sorted(file.name for file in path.iterdir()) == ["config.json", "model.safetensors"]


def test_a_signal_after_the_last_epoch_stops_the_fit_before_the_plain_net(folder: Path, tmp_path: Path) -> None:
    class StopAtTheEnd(Reporter):
        def notify(self, text: str) -> None:
            if text.startswith("stopped after epoch"):
                os.kill(os.getpid(), signal.SIGTERM)

    x, y = regional(30, 4, 6, seed=1), regional(30, 4, 6, seed=2)
    options = RegressorOptions(net="layer", filters=2, max_epochs=1, device="cpu", batch_size=4)
    prepared = prepare(x, y, options, {}, cache=tmp_path / "fields")
    shape = prepared.targets.grid.shape
    net = make_net(NetShape(1, 1, shape, closes_circle=False, num_targets=1), options)
    train, validation = prepared.splits["train"], prepared.splits["validation"]
    ladders = LadderFit(train, validation, prepared.targets.grid, np.ones(shape)).run()
    base = BaseFields.of(ladders, prepared, "climatology", options)
    splits = {
        name: NetSamples(prepared.splits[name], ladders.train, values, base.scale, is_own=True)
        for name, values in (("train", base.train), ("validation", base.validation))
    }
    objective = GridObjective(options, np.ones(shape))
    run = RunDirectory(tmp_path / "training")
    with pytest.raises(Interrupted):
        train_net(net, splits, objective, options, directory=run, reporter=StopAtTheEnd())
    assert run.read_history()[-1]["stopped"] == "1 epoch done"


_SMALL_DISK = """
import resource, sys
from smoe.cli.main import main
# Files that grow beyond a size fail as on a disk that is full.
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_a_disk_that_is_full_ends_a_prediction_in_one_line(folder: Path, tmp_path: Path, suffix: str) -> None:
    output = tmp_path / f"predicted{suffix}"
    command = ["predict", str(folder / "run"), str(folder / "x.zarr"), "-o", str(output)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", _SMALL_DISK, *command], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert f"smoe: error: {output} cannot be written: " in done.stderr
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("content", ["[" * 100_000, '{"format": "smoe-grid-regressor", "a": ' + "[" * 100_000, "3"])
def test_a_config_of_a_stranger_is_refused_in_one_line(
    folder: Path, tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(content)
    for command in (["report", str(model)], ["predict", str(model), "x.nc", "-o", "y.nc"]):
        assert main(command) == 1
        assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(DataError):
        smoe.load(model)
