"""The table of ImageNet: its rows, and a run of it on a few classes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from image_folders import write_folders
from smoe.cli import main
from smoe_paper.experiments.tables import Scale
from smoe_paper.imagenet.recipes import IMAGENET, IMAGENET_RECIPES


def test_every_recipe_has_a_row_with_both_accuracies_of_the_paper() -> None:
    (table,) = IMAGENET.tables.select("imagenet")
    assert {id(row.recipe) for row in table.rows} == {id(recipe) for recipe in IMAGENET_RECIPES.values()}
    for row in table.rows:
        assert [result.metric for result in row.paper] == ["accuracy", "top5_accuracy"]


def test_a_row_trains_and_stands_beside_the_papers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = IMAGENET.tables.scale("small")

    def shrink(recipe):
        recipe = small.apply(recipe)
        return replace(recipe, training=replace(recipe.training, max_epochs=1, warmup_epochs=0))

    tables = replace(IMAGENET.tables, scales=(Scale("tiny", "a test", shrink, "smaller"),))
    monkeypatch.setattr(type(IMAGENET), "tables", tables)
    write_folders(tmp_path / "images", images_per_class=13)
    write_folders(tmp_path / "images", images_per_class=2, split="val")
    places = ["--store", str(tmp_path / "images"), "--output-dir", str(tmp_path), "--runs-dir", str(tmp_path / "runs_")]
    row = ["--rows", "SMoE, all 3 x 3, white noise, score order", "--seeds", "1"]
    assert main(["reproduce", "imagenet", *places, *row]) == 0
    capsys.readouterr()
    text = (tmp_path / "models.md").read_text()
    assert "| ResNet-50 |  | 80.83 ± 0.04 |  | 95.39 ± 0.03 |  | not run | 0 |" in text
    (stored,) = (tmp_path / "runs.jsonl").read_text().splitlines()
    accuracy = json.loads(stored)["test"]["accuracy"]
    line = next(line for line in text.splitlines() if "white noise" in line and "tiny" in line)
    assert f"{accuracy:.2f}" in line


def test_without_images_it_says_what_it_wants(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "imagenet"]) == 2
    assert "train/<class>/*.JPEG" in capsys.readouterr().err
