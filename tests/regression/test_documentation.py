"""Runs the tutorial of docs/own-data.md: shortened in every run, as it stands among the slow tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "own-data.md"


def run_page(folder: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str]) -> dict[str, Any]:
    text = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL))
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    exec(compile(text, str(PAGE), "exec"), names)
    return names


def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A year for four, one epoch for twelve: it shows that the code runs, not that it learns.
    names = run_page(
        tmp_path,
        monkeypatch,
        {"YEARS = 6": "YEARS = 2", '"2015"': '"2012-01"', '"2016"': '"2012-12"', '"2016-07"': '"2012-07"',
         "max_epochs=12": 'max_epochs=1, device="cpu", progress=False, compare="no"'},
    )  # fmt: skip
    assert names["predicted"]["t2m"].shape == (31, 40, 60)
    assert (tmp_path / "mine" / "model.safetensors").is_file()


@pytest.mark.slow
def test_the_tutorial_learns_more_than_the_map_of_mean_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run_page(tmp_path, monkeypatch, {})
    table = names["model"].score("forecasts.nc", "analyses.nc", period="2016")
    by_map = table.value("input + map of mean errors")
    assert 0.5 < by_map < 0.55 and table.value("raw input") > 1.7
    assert table.value("model") < 0.6 * by_map
    assert table.value("model") < table.value("plain net of the same size")
