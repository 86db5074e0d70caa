"""Runs the code of docs/own-data.md, with one epoch."""

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


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("iris_sample_data")
    names = run_page(
        tmp_path, monkeypatch, {'lead="1 month"': 'lead="1 month", max_epochs=1, device="cpu", progress=False'}
    )
    table = names["model"].score(names["sst"], names["sst"])
    # A monthly climatology and a damped anomaly by hand have 0.511.
    assert table.value("model") < 0.51 < 0.6 < table.value("persistence")
    assert (tmp_path / "mine" / "model.safetensors").is_file()
