"""`smoe data prepare ens10` on a folder of ENS-10."""

from __future__ import annotations

from pathlib import Path

import pytest

from ens10_files import STARTS, write_ens10
from smoe.cli.main import main
from smoe_paper.ens10.store import EnsembleStore


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ens10(tmp_path_factory.mktemp("ens10"), "t850", starts=STARTS[:9])


def test_prepare(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--task", "t850", "--members", "5", "--train-years", "1998", "1998"]
    command = ["data", "prepare", "ens10", "--root", str(root), "--output", str(tmp_path), *options]
    assert main(command) == 0
    output = capsys.readouterr()
    assert "t850, 9 forecasts, started 1998-01-01 to 1999-01-08; 14 channels, 9 x 16" in output.out
    assert (
        "population standard deviation of 5 members, normalised by statistics of the training years 1998" in output.out
    )
    assert "extreme forecast index: computed for the years after 1998" in output.out
    assert "the store takes" in output.err
    assert EnsembleStore.open(tmp_path).task == "t850"
    assert main(command) == 0
    again = capsys.readouterr()
    assert "nothing to do" in again.err


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--task", "t80"], 2, "did you mean"),
        (["--task", "t850", "--members", "9"], 2, "9"),
        (["--task", "t2m"], 1, "has no members of t2m"),
    ],
)
def test_a_mistake_gets_one_clear_line(
    root: Path, tmp_path: Path, options: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "prepare", "ens10", "--root", str(root), "--output", str(tmp_path), *options]) == code
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and text in error
