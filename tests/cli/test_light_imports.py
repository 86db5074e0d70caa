"""What answers before anything is computed imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

HEAVY = {"torch", "numpy", "xarray", "matplotlib", "accelerate"}


def run(arguments: list[str], heavy: set[str], code: int = 0) -> str:
    program = (
        f"import sys; from smoe.cli import main\n"
        f"try:\n    code = main({arguments!r})\n"
        f"except SystemExit as stop:\n    code = stop.code or 0\n"
        f"assert code == {code}, code\n"
        f"found = {sorted(heavy)!r}; found = set(found) & set(sys.modules)\n"
        "assert not found, found"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_help_is_answered_within_a_second() -> None:
    # The best of three: other processes may have the cores.
    seconds: list[float] = []
    for _ in range(3):
        started = time.perf_counter()
        assert "smoe train heat/smoe --seed 0" in run(["--help"], HEAVY | {"tyro", "rich"})
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 1.0


@pytest.mark.parametrize(
    "arguments",
    [
        ["recipes"],
        ["train", "--help"],
        ["train", "heat/smoe", "--help"],
        ["plan", "--help"],
        ["evaluate", "--help"],
        ["show", "--help"],
        ["reproduce", "--help"],
        ["data", "--help"],
        ["data", "prepare", "weather", "--help"],
        ["bench", "--help"],
    ],
)
def test_lists_and_help_texts_need_no_torch(arguments: list[str]) -> None:
    assert run(arguments, HEAVY)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["train", "heat/smeo"], 1), (["train", "heat/smoe", "--sed", "1"], 2), (["reproduce", "haet"], 2)],
)
def test_a_typo_is_answered_without_torch(arguments: list[str], code: int) -> None:
    run(arguments, HEAVY, code)
