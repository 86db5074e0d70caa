from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from smoe.cli.main import main

RESULTS = Path(__file__).parents[2] / "results"

SMALL = [
    *("--data.spatial-shape", "8", "8", "--data.num-steps", "10", "--data.num-train-runs", "10"),
    *("--data.num-validation-runs", "1", "--data.num-test-runs", "1", "--training.device", "cpu"),
]


def complaint(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    code = main(args)
    output = capsys.readouterr()
    assert output.err.count("\n") == 1 and output.err.startswith("smoe: error: "), output.err
    assert "Traceback" not in output.err
    return code, output.err


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("trian",), "no command named 'trian'; did you mean 'train'?"),
        (("train", "heat/smo"), "no recipe named 'heat/smo'; did you mean 'heat/smoe'?"),
        (("train",), "name a recipe first: smoe train heat/smoe"),
        (("train", "heat/smoe", "--sed", "3"), "did you mean --seed?"),
        (("train", "heat/smoe", "--data.num-train-run", "3"), "did you mean --data.num-train-runs?"),
        (("train", "heat/smoe", "--model.gate", "tenso"), "did you mean tensor?"),
        (("train", "heat/smoe", "--seed", "three"), "--seed: invalid literal for int() with base 10: 'three'"),
        (("train", "heat/smoe", "--damping", "3"), "factor must be in [0, 1]"),
        (("evaluate", "nowhere"), "nowhere is not a run directory"),
        (("evaluate", "--split", "test"), "give a run directory first"),
        (("reproduce", "heat", "weather", "--output-dir", "x"), "--output-dir is the folder of one experiment"),
        (("recipes", "heat"), "takes no argument, got 'heat'"),
        # A name from others does not write to the terminal what it wants.
        (("evaluate", "a\x1b[2Jb\x9bc\nd"), "a\\x1b[2Jb\\x9bc d is not a run directory"),
    ],
)
def test_a_mistake_gets_one_clear_line(
    capsys: pytest.CaptureFixture[str], args: tuple[str, ...], expected: str
) -> None:
    code, text = complaint(capsys, *args)
    assert code in (1, 2)
    assert expected in text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_with_a_checkpoint(tmp_path: Path, number: int) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "smoe", "train", "heat/smoe", "--output-dir", str(run), *SMALL]
    command += ["--training.max-epochs", "100000", "--training.early-stop-patience", "100000"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (run / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    os.kill(process.pid, number)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 128 + number, error
    assert "the state is saved" in error and "Traceback" not in error
    assert (run / "checkpoints" / "last.safetensors").exists()


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(folder.rglob("*"))}


def test_a_dry_run_prints_the_table_and_what_is_missing_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = ["--output-dir", "results", "--runs-dir", "runs"]
    assert main(["reproduce", "heat/weighted", "--seeds", "2", "--dry-run", *folders]) == 0
    output = capsys.readouterr().out
    assert "0 of 4 runs are stored" in output
    assert "missing: heat/weighted: yes, paper, seed 1" in output
    assert "| yes |  | 100.0 ± 0 | not run | not run | 0 |" in output
    assert list(tmp_path.iterdir()) == []
    assert main(["reproduce", "heat/weighted", "--dry-run", *folders]) == 0
    assert "0 of 20 runs are stored" in capsys.readouterr().out, "ten seeds, as in the paper"
    # Nor beside results that are there, of several experiments at once.
    shutil.copytree(RESULTS, "paper/results")
    before = listing(tmp_path)
    assert main(["reproduce", "weather", "images", "--dry-run"]) == 0
    assert listing(tmp_path) == before
    output = capsys.readouterr().out
    assert (RESULTS / "images" / "mnist.md").read_text() in output


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["reproduce"], "name a table first"),
        (["reproduce", "imags"], "no table named 'imags'; did you mean 'images'?"),
        (["reproduce", "clouds"], "no table named 'clouds'; there are heat, weather, ens10, images"),
        (
            ["reproduce", "heat/gates", "--rows", "tensr"],
            "--rows: no row that can be trained is 'tensr'; there are Fully-connected; 3 x 3 convolution; ",
        ),
        (["reproduce", "heat/gate"], "no table named 'heat/gate'; there are heat (all of them), heat/main"),
        (["reproduce", "heat", "--scale", "large"], "no scale named 'large'; there are paper, small"),
        (["reproduce", "heat", "--seeds", "0"], "--seeds must be at least 1, got 0"),
        (["reproduce", "heat", "--job", "2"], "--job"),
    ],
)
def test_reproduce_refuses_what_it_cannot_do(args: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, error = complaint(capsys, *args)
    assert code == 2 and text in error


def test_every_recipe_lists_the_fields_of_its_own_model(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "heat/vit", "--help"])
    output = capsys.readouterr().out
    assert "--model.patch-size" in output and "--model.num-selected" not in output
