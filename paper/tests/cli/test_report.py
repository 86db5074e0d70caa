"""`smoe report` as typed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gridded_files import regional
from opened_files import opened_files
from smoe.cli.main import main
from smoe_paper.experiments.runs import train
from smoe_paper.heat.recipes import HEAT_TRAINING, HeatDiffusion, HeatRecipe

DATA = HeatDiffusion(spatial_shape=(9, 7), num_steps=10, num_train_runs=8, num_validation_runs=2, num_test_runs=2)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plan = replace(HEAT_TRAINING, max_epochs=1, stop_at=None, device="cpu")
    path = tmp_path_factory.mktemp("runs") / "first"
    train("heat/smoe", HeatRecipe(data=DATA, training=plan), path, notify=lambda _: None)
    return path


def test_writes_a_page_and_names_it(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "pages" / "report.html"
    assert main(["report", str(run), "-o", str(output)]) == 0
    assert capsys.readouterr().out == f"{output} ({output.stat().st_size / 1e6:.2f} MB)\n"
    assert output.read_text().startswith("<!doctype html>")
    # Without a name the page of a single run is in its directory.
    assert main(["report", str(run), "--without-data"]) == 0
    assert (run / "report.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing"], "smoe: error: missing is not a directory: give the directory of a run\n"),
        (["{run}", "missing", "-o", "{out}"], "smoe: error: missing is not a directory: give the directory of a run\n"),
        ([], "smoe: error: give a run directory (see smoe report --help)\n"),
        (["-o", "{out}"], "smoe: error: give a run directory (see smoe report --help)\n"),
        (["{run}", "{run}/."], "smoe: error: name the file of a report of several runs: -o report.html\n"),
        (["{run}", "--spilt", "test"], "smoe: error: Unrecognized options: --spilt; did you mean --split?"),
        (["{run}", "--data.inputs", "x.nc"], "smoe: error: give --data.inputs and --data.targets together\n"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    output = tmp_path / "report.html"
    typed = [word.format(run=run, out=output) for word in arguments]
    assert main(["report", *typed]) in (1, 2)
    captured = capsys.readouterr()
    assert captured.err.startswith(message) and captured.err.count("\n") == 1
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_run_is_one_line_and_leaves_the_old_page(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, output = tmp_path / "run", tmp_path / "report.html"
    shutil.copytree(run, copy)
    (copy / "metrics.jsonl").write_text("{")
    output.write_text("old")
    assert main(["report", str(copy), "-o", str(output)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"smoe: error: {copy / 'metrics.jsonl'} is damaged in line 1") and error.count("\n") == 1
    assert output.read_text() == "old"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["report.html", "run"]


def test_the_data_of_a_fit_are_those_of_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    regional(20, 4, 6, seed=1).to_netcdf(tmp_path / "x.nc")
    regional(20, 4, 6, seed=2).to_netcdf(tmp_path / "y.nc")
    monkeypatch.chdir(tmp_path)
    flags = ["--net", "layer", "--filters", "2", "--max-epochs", "1", "--device", "cpu", "--batch-size", "4"]
    command = ["fit", "x.nc", "y.nc", "--validate", "2001-01-15:", "-o", "model", *flags]
    monkeypatch.setattr("sys.argv", ["smoe", *command])
    assert main(command) == 0
    assert main(["report", "model"]) == 0
    page = (tmp_path / "model" / "report.html").read_text()
    assert "smoe fit x.nc y.nc --validate 2001-01-15: -o model" in page
    assert ">Errors</h2>" in page and "SHA-256 of the validation targets" in page
    # The recorded command chooses no files outside the working directory, also not by a link.
    (tmp_path / "work").mkdir()
    for name in ("x.nc", "y.nc"):
        (tmp_path / "work" / name).symlink_to(tmp_path / name)
    monkeypatch.chdir(tmp_path / "work")
    with opened_files() as opened:
        assert main(["report", "../model"]) == 0
    assert not {path for path in opened if path.endswith(("x.nc", "y.nc"))}
    assert "no error maps: name the data of the fit by --data.inputs FILE" in capsys.readouterr().err
    assert ">Errors</h2>" not in (tmp_path / "model" / "report.html").read_text()
    monkeypatch.chdir(tmp_path)
    # Where the data are no more, the page says less, and the command says why.
    (tmp_path / "x.nc").rename(tmp_path / "moved.nc")
    capsys.readouterr()
    assert main(["report", "model"]) == 0
    assert "model: no error maps: name the data of the fit by --data.inputs FILE" in capsys.readouterr().err
    assert ">Errors</h2>" not in (tmp_path / "model" / "report.html").read_text()
    assert main(["report", "model", "--data.inputs", "moved.nc", "--data.targets", "y.nc"]) == 0
    assert ">Errors</h2>" in (tmp_path / "model" / "report.html").read_text()
