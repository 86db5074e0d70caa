"""What answers before anything is computed imports nothing heavy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from smoe.errors import EXTRAS

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


def without(packages: set[str], program: str) -> subprocess.CompletedProcess[str]:
    """Runs a program where packages cannot be imported."""
    blocked = f"import sys; sys.modules.update(dict.fromkeys({sorted(packages)!r}))\n"
    return subprocess.run([sys.executable, "-c", blocked + program], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "package"),
    [
        *(([command, "--help"], "tyro") for command in ("fit", "predict", "train", "evaluate", "report")),
        *(([command, "--help"], "tyro") for command in ("show", "reproduce")),
        (["train", "heat/smoe", "--training.max-epochs", "1"], "accelerate"),
        (["report", "."], "accelerate"),
        (["fit", "x.nc", "y.nc", "-o", "runs/mine"], "accelerate"),
        (["fit", "x.nc", "y.nc", "-o", "runs/mine"], "xarray"),
    ],
)
def test_a_command_names_the_extra_that_it_lacks(arguments: list[str], package: str, tmp_path: Path) -> None:
    program = f"from smoe.cli import main; import os; os.chdir({str(tmp_path)!r}); sys.exit(main({arguments!r}))"
    result = without({package}, program)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert f"needs {package}, which the extra 'fit' installs: pip install \".[fit]\" in a checkout" in line


def test_pictures_of_a_run_name_the_extra_that_they_lack(tmp_path: Path) -> None:
    data = "--data.spatial-shape 8 8 --data.num-steps 5 --data.num-train-runs 8 --data.num-validation-runs 1"
    options = (
        f"{data} --data.num-test-runs 1 --training.max-epochs 1 --training.device cpu --output-dir {tmp_path / 'r'}"
    )
    train, show = ["train", "heat/smoe", *options.split()], ["show", str(tmp_path / "r")]
    result = without({"matplotlib"}, f"from smoe.cli import main; main({train!r}); sys.exit(main({show!r}))")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("smoe: error: smoe show needs matplotlib, which the extra 'fit'")


@pytest.mark.parametrize(("name", "package"), [("GridRegressor", "accelerate"), ("plot_routing", "matplotlib")])
def test_a_name_of_the_package_names_the_extra_that_it_lacks(name: str, package: str) -> None:
    result = without({package}, f"import smoe; smoe.{name}")
    line = result.stderr.splitlines()[-1]
    assert f"smoe.{name} needs {package}, which the extra 'fit' installs" in line


def test_without_extras_there_are_layers_help_and_recipes() -> None:
    program = (
        "from smoe.cli import main; import smoe; smoe.SpatialMoE2d; sys.exit(main(['recipes']) + main(['--help']))"
    )
    result = without(set(EXTRAS), program)
    assert result.returncode == 0, result.stderr


def test_the_extras_hold_the_packages_that_name_them() -> None:
    extras = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]

    def packages(extra: str) -> set[str]:
        found = set()
        for requirement in extras[extra]:
            if own := re.match(r"smoe\[(.*)\]", requirement):
                found |= {name for part in own[1].split(",") for name in packages(part)}
            else:
                found |= set(re.match(r"[\w-]+", requirement).group().lower().split())  # type: ignore[union-attr]
        return found

    distributions = {"PIL": "pillow"}
    lacking = {name for name, extra in EXTRAS.items() if distributions.get(name, name).lower() not in packages(extra)}
    assert lacking == set()


def test_smoe_alone_says_what_to_do_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "smoe fit inputs.nc targets.nc" in run([], HEAVY | {"tyro", "rich"})
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "recipe.json").touch()
    monkeypatch.chdir(tmp_path)
    assert "smoe report runs/mine\n" in run([], HEAVY)


def test_bash_completes_commands_and_flags(tmp_path: Path) -> None:
    (tmp_path / "script").write_text(run(["completion", "bash"], HEAVY | {"tyro", "rich"}))
    for words, expected in (("smoe fi", "fit"), ("smoe fit --validat", "--validate --validation-share")):
        number = len(words.split()) - 1
        ask = f'source {tmp_path}/script; COMP_WORDS=({words}); COMP_CWORD={number}; _smoe; echo "${{COMPREPLY[@]}}"'
        found = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        result = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True, env=found)
        assert result.stdout.strip() == expected
    assert "__fish_use_subcommand" in run(["completion", "fish"], HEAVY) and "bashcompinit" in run(
        ["completion", "zsh"], HEAVY
    )
    run(["completion"], HEAVY, 2)
