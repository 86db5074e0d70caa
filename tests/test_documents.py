"""The documents: lines that fit, links that exist, commands that the command line knows."""

import re
import runpy
import shlex
import subprocess
from pathlib import Path
from tomllib import loads as tomli
from typing import Any

import numpy as np
import pytest
from tools import draw_performance, fill_numbers

import smoe
from gridded_files import regional
from smoe.cli.main import commands, main
from smoe_paper.benchmarks.registry import BENCHMARKS
from smoe_paper.experiments.experiment import EXPERIMENTS, all_recipes, find_experiment

ROOT = Path(__file__).parents[1]


# A quick run in place of the one that a document describes.
TINY = [
    *("--data.spatial-shape", "8", "8", "--data.num-steps", "10", "--data.num-train-runs", "10"),
    *("--data.num-validation-runs", "2", "--data.num-test-runs", "2", "--training.max-epochs", "1"),
    *("--training.device", "cpu"),
]


def _listed(pattern: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", pattern], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("the documents are listed by git, and this is no checkout")
    return listed.stdout.split()


def _documents() -> list[str]:
    # Tables of results are generated; their lines are as long as their rows.
    return [name for name in _listed("*.md") if not name.startswith("paper/results/")]


def test_no_line_is_longer_than_120_columns():
    long = [
        f"{name}:{number}"
        for name in _documents()
        for number, line in enumerate((ROOT / name).read_text().splitlines(), start=1)
        if len(line) > 120 and not line.startswith(("| ", "<!--"))  # rows of tables
    ]
    assert long == []


def test_no_line_is_a_comment_of_the_site_and_links_have_words():
    found = [
        f"{name}: {line}"
        for name in _documents()
        for line in (ROOT / name).read_text().splitlines()
        if re.search(r"^\s*% |\[[^]]*\.md\]\(", line)
    ]
    assert found == []


def test_relative_links_lead_to_files():
    broken = [
        f"{name}: {target}"
        for name in _documents()
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", (ROOT / name).read_text())
        if "://" not in target and not ((ROOT / name).parent / target).exists()
    ]
    assert broken == []


def test_install_commands_do_not_ask_an_index_for_the_package():
    names = [*_documents(), *_listed("src/*.py"), *_listed("paper/src/*.py")]
    assert [name for name in names if re.search(r"pip install ['\"]?smoe", (ROOT / name).read_text())] == []


def _commands() -> list[list[str]]:
    lines = (line.strip() for name in _documents() for line in (ROOT / name).read_text().splitlines())
    quoted = (match for line in lines for match in re.findall(r"(?:^|`)(smoe [a-z][^`#]*)", line))
    return [command.split() for command in quoted]


def test_commands_name_what_exists():
    unknown = []
    for _, command, *rest in _commands():
        names = [word for word in rest if not word.startswith(("-", "[", "$"))]
        first = names[0] if names and rest[0] == names[0] else ""
        is_placeholder = not first or first.isupper() or first.endswith((".py", "...")) or "|" in first
        if command not in commands():
            unknown.append(f"{command} {' '.join(rest)}")
        elif is_placeholder:
            continue
        elif (
            (command == "train" and first not in all_recipes())
            or (command == "bench" and first not in BENCHMARKS)
            or (command == "reproduce" and not _is_table(first))
        ):
            unknown.append(f"{command} {first}")
    assert unknown == []


def _is_table(name: str) -> bool:
    experiment = name.partition("/")[0]
    if experiment not in EXPERIMENTS:
        return False
    tables = find_experiment(experiment).tables
    return name in (experiment, *(table.name for table in tables.tables))


def test_the_readme_builds_and_converts_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    code = re.search(r"```python\n(import torch.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert code is not None
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code[1], names)
    assert [type(module).__name__ for module in names["net"]] == ["SpatialMoE2d", "ReLU", "SpatialMoE2d"]
    assert (tmp_path / "routing.png").is_file()


def test_the_readme_fits_own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    for name, seed in (("forecasts.nc", 0), ("analyses.nc", 1)):
        fields = regional(12, 4, 6, seed=seed)
        fields["time"] = [np.datetime64(f"{2015 + number // 6}-03-{1 + number % 6:02}", "ns") for number in range(12)]
        fields.to_netcdf(name)
    fields.isel(time=slice(2)).to_netcdf("new.nc")
    code = re.search(r"```python\n(model = .*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {"smoe": smoe}
    exec(code[1], names)
    assert names["predicted"]["t2m"].attrs["units"] == "K"
    block = next(block for block in _blocks() if block.startswith("smoe fit"))
    for line in block.splitlines():
        assert main(shlex.split(line)[1:]) == 0, line
    assert Path("predicted.nc").is_file() and Path("runs/mine/report.html").is_file()
    assert "of the validation period, 2016-01-01 to 2016-12-31" in capsys.readouterr().out


def test_an_address_makes_every_link_of_the_readme_hold_on_an_index(monkeypatch: pytest.MonkeyPatch):
    given: dict[str, Any] = {}
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("setuptools.setup", lambda **options: given.update(options))
    settings = (ROOT / "pyproject.toml").read_text()
    for address in ("", "https://forge.example/smoe"):
        whole = settings.replace('repository = ""', f'repository = "{address}"')
        monkeypatch.setattr("tomllib.loads", lambda _, whole=whole: tomli(whole))
        runpy.run_path("setup.py")
        links = re.findall(r"\]\(([^)]+)\)", given["long_description"])
        assert len(links) > 10 and all(link.startswith("https://") for link in links) == bool(address)
        assert given["project_urls"].get("Repository", "") == address


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


def test_targets_of_make_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    texts = [(ROOT / name).read_text() for name in [*_documents(), *_listed(".github/workflows/*.yml")]]
    named = {target for text in texts for target in re.findall(r"(?:^|`|run: )make ([a-z-]+)", text, re.MULTILINE)}
    assert {"demo", "test", "docs", "wheel"} <= named
    assert named - targets == set()
    paths = {path for text in texts for path in re.findall(r"(?:paper/)?tests/[\w/]*(?:\.py)?(?![\w./])", text)}
    assert {path for path in paths if not (ROOT / path).exists()} == set()


def test_the_commands_of_the_first_experiment_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    block = next(block for block in _blocks("docs/heat.md") if block.startswith("smoe recipes"))
    commands = [shlex.split(line, comments=True)[1:] for line in block.splitlines()]
    assert len(commands) >= 5
    monkeypatch.chdir(tmp_path)
    for command in commands:
        is_first_training = command[0] == "train" and "--resume" not in command
        assert main([*command, *(TINY if is_first_training else [])]) == 0, command
    assert (tmp_path / "runs" / "first" / "report.html").is_file()


def _blocks(name: str = "README.md") -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / name).read_text(), re.MULTILINE | re.DOTALL)
    return [block for language, block in fenced if not language]


def test_the_chart_of_speed_is_that_of_the_stored_table():
    drawn = draw_performance.draw(draw_performance.read_rows())
    assert draw_performance.PICTURE.read_text() == drawn, "run python tools/draw_performance.py"


# Numbers of other kinds: of a release, of a grid, of a paper.
NOT_MEASURED = {
    "docs/ens10.md": {"3.3", "0.79"},
    "docs/images.md": {"81.33", "80.83"},
    "docs/rules.md": {"0.25", "0.6", "1.25"},
}


@pytest.mark.parametrize(
    "name", [f"docs/{each}.md" for each in ("heat", "weather", "ens10", "images", "geometries", "gpu", "rules")]
)
def test_numbers_in_sentences_are_in_a_table_that_the_document_links(name: str):
    text = (ROOT / name).read_text()
    links = set(re.findall(r"\]\(\.\.(/paper/results/[^)#]*\.md)", text))
    tables = "".join((ROOT / link[1:]).read_text() for link in links)
    known = {float(number) for number in re.findall(r"(?<![\w.])\d*\.?\d+", tables)}
    for part in (r"```.*?```", r"<!-- (?:numbers|table).*?<!-- end -->", r"`[^`]*`", r"\]\([^)]*\)"):
        text = re.sub(part, "", text, flags=re.DOTALL)
    found = set(re.findall(r"(?<![\w.])\d*\.\d+(?![\w.])", text)) - NOT_MEASURED.get(name, set())
    unknown = {each for each in found if float(each) not in {round(value, len(each.split(".")[1])) for value in known}}
    assert unknown == set()


def test_numbers_are_those_of_the_stored_tables():
    stale = [name for name in _documents() if (text := (ROOT / name).read_text()) != fill_numbers.fill(text)]
    assert stale == [], "run python tools/fill_numbers.py"
    assert "<!-- numbers: real -->" in (ROOT / "README.md").read_text()
