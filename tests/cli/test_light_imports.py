"""What answers before anything is computed imports nothing heavy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from smoe.errors import EXTRAS

HEAVY = {"torch", "numpy", "xarray", "matplotlib", "accelerate"}
FIT = ["fit", "x.nc", "y.nc", "-o", "runs/mine"]


def answer(*commands: list[str], code: int = 0, heavy: set[str] = HEAVY) -> str:
    """What commands print that all end with this code, in one process that imports nothing heavy."""
    program = f"""import sys; from smoe.cli import main
for arguments in {commands!r}:
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = stop.code or 0
    found = set({sorted(heavy)!r}) & set(sys.modules)
    assert code == {code} and not found, (arguments, code, found)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_lists_help_texts_and_typos_need_no_torch() -> None:
    assert "smoe train heat/smoe --seed 0" in answer(["--help"], heavy=HEAVY | {"tyro", "rich"})
    helped = ("train", "train heat/smoe", "evaluate", "reproduce", "data", "data prepare weather", "bench")
    assert answer(["recipes"], *([*words.split(), "--help"] for words in helped))
    answer(["train", "heat/smeo"], code=1)
    answer(["train", "heat/smoe", "--sed", "1"], ["reproduce", "haet"], code=2)


def without(packages: set[str], program: str) -> subprocess.CompletedProcess[str]:
    """Runs a program where packages cannot be imported."""
    blocked = f"import sys; sys.modules.update(dict.fromkeys({sorted(packages)!r}))\n"
    return subprocess.run([sys.executable, "-c", blocked + program], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("package", "commands"),
    [
        ("tyro", [[name, "--help"] for name in ("fit", "predict", "train", "evaluate", "report", "reproduce")]),
        ("accelerate", [["train", "heat/smoe", "--training.max-epochs", "1"], ["report", "."], FIT]),
        ("xarray", [FIT]),
    ],
)
def test_a_command_names_the_extra_that_it_lacks(package: str, commands: list[list[str]], tmp_path: Path) -> None:
    program = f"import os; from smoe.cli import main; os.chdir({str(tmp_path)!r})\n"
    result = without({package}, f"{program}for words in {commands!r}:\n    assert main(words) == 1, words")
    assert result.returncode == 0, result.stderr
    expected = f"needs {package}, which the extra 'fit' installs: pip install \".[fit]\" in a checkout"
    assert len(result.stderr.splitlines()) == len(commands)
    assert all(expected in line for line in result.stderr.splitlines()), result.stderr


def test_pictures_name_the_extra_that_they_lack() -> None:
    lines = without({"matplotlib"}, "import smoe; smoe.plot_routing").stderr.splitlines()
    assert "smoe.plot_routing needs matplotlib, which the extra 'fit' installs" in lines[-1]


def test_without_extras_there_are_layers_help_and_recipes() -> None:
    program = "from smoe.cli import main; import smoe; smoe.SpatialMoE2d; main(['recipes']) + main(['--help']) and 1/0"
    result = without(set(EXTRAS), f"{program}\nsmoe.GridRegressor")
    assert "smoe.GridRegressor needs" in result.stderr.splitlines()[-1], result.stderr


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
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "recipe.json").touch()
    monkeypatch.chdir(tmp_path)
    said = answer([], heavy=HEAVY | {"tyro", "rich"})
    assert "smoe fit inputs.nc targets.nc" in said and "smoe report runs/mine\n" in said


def test_bash_completes_commands_and_flags(tmp_path: Path) -> None:
    (tmp_path / "script").write_text(answer(["completion", "bash"], heavy=HEAVY | {"tyro", "rich"}))
    for words, expected in (("smoe fi", "fit"), ("smoe fit --validat", "--validate --validation-share")):
        number = len(words.split()) - 1
        ask = f'source {tmp_path}/script; COMP_WORDS=({words}); COMP_CWORD={number}; _smoe; echo "${{COMPREPLY[@]}}"'
        found = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        result = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True, env=found)
        assert result.stdout.strip() == expected
    others = answer(["completion", "fish"], ["completion", "zsh"])
    assert "__fish_use_subcommand" in others and "bashcompinit" in others
    assert "smoe completion bash|zsh|fish" in answer(["completion", "--help"])
    answer(["completion"], code=2)
