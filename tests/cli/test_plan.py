from __future__ import annotations

import subprocess
import sys

import pytest

from smoe.cli.main import main
from smoe.cli.plan import duration, size

SMALL = ["--data.spatial-shape", "8", "7", "--data.num-train-runs", "4", "--training.device", "cpu"]


def test_what_a_person_reads(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "heat/smoe", *SMALL]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "heat/smoe"
    assert "195: experts 27, gates 168, rest 0" in lines[2]
    assert [line.split("  ")[1] for line in lines[1:]] == [
        *("data", "parameters", "memory", "a step", "an epoch", "the run")
    ]
    # 400 pairs in batches of 32.
    assert "12 steps of 400 samples" in lines[5]


def test_a_plan_of_the_weather_needs_no_data(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model.filters", "2", "--model.num-blocks", "1", "--training.batch-size", "2"]
    assert main(["plan", "weather/smoe-prior", *arguments]) == 0
    assert "117 x 32 x 64 to 3 x 32 x 64" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], "name a recipe first"),
        (["weather/smeo"], "did you mean 'weather/smoe'?"),
        (["weather/smoe", "--model.filter", "3"], "did you mean --model.filters?"),
    ],
)
def test_mistakes_are_answered_in_a_line(args: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *args]) != 0
    assert expected in capsys.readouterr().err


def test_training_without_data_names_the_remedy(capsys: pytest.CaptureFixture[str], tmp_path: object) -> None:
    assert main(["train", "weather/smoe", "--output-dir", f"{tmp_path}/run"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "smoe data prepare weather" in error


def test_help_needs_no_torch() -> None:
    code = "import sys; from smoe.cli.main import main; main(['plan', '--help']); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_numbers_for_people() -> None:
    assert [size(number) for number in (12, 1_500, 8_100_000_000)] == ["12 B", "1.5 kB", "8.1 GB"]
    assert [duration(seconds) for seconds in (0.002, 3.14159, 600.0, 86400.0, 1e6)] == [
        *("2 ms", "3.14 s", "10 min", "24 h", "11.6 days")
    ]
