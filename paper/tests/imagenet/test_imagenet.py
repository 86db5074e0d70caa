"""ImageNet's recipes, end to end on a small tree of real JPEG files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import smoe
from image_folders import write_folders
from smoe.cli import main
from smoe.errors import DataError
from smoe.training.run_directory import RunDirectory
from smoe_paper.experiments.recipe import SgdMomentum
from smoe_paper.experiments.runs import open_run, train
from smoe_paper.experiments.tables import Scale
from smoe_paper.experiments.task import Learning, build_optimizer
from smoe_paper.imagenet.model import build_model, build_task, make_task
from smoe_paper.imagenet.recipes import (
    IMAGENET,
    IMAGENET_RECIPES,
    IMAGENET_TRAINING,
    AddedSpatialMoEResNet50Model,
    ImageNetData,
    ImageNetRecipe,
)

TRAINING = replace(
    IMAGENET_TRAINING,
    batch_size=8,
    evaluation_batch_size=4,
    max_epochs=3,
    warmup_epochs=1,
    early_stop_patience=3,
    num_workers=0,
    device="cpu",
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("imagenet")
    write_folders(path, images_per_class=6)
    write_folders(path, images_per_class=2, split="val")
    return path


def small(name: str, root: Path | None, **options: Any) -> ImageNetRecipe:
    recipe = IMAGENET_RECIPES[f"imagenet/{name}"]
    model = replace(recipe.model, num_blocks=(1, 1, 1, 1), filters=4)
    data = ImageNetData(root, train_size=32, resize=52, crop=48, held_out_per_class=1)
    optimizer = SgdMomentum(lr=0.05, gate_lr=5.0)
    return replace(recipe, model=model, data=data, training=TRAINING, optimizer=optimizer, **options)


def quietly(_: str) -> None:
    pass


@pytest.mark.parametrize("name", ["lrlcn", "smoe"])
def test_every_recipe_trains_and_is_evaluated_at_another_size(root: Path, tmp_path: Path, name: str) -> None:
    last = train(f"imagenet/{name}", small(name, root), tmp_path / "run", notify=quietly)
    history = RunDirectory(tmp_path / "run").read_history()
    assert [record["epoch"] for record in history] == [1, 2, 3, 3]
    assert [record["learning_rate"] for record in history[:3]] == pytest.approx([0.0005, 0.05, 0.025])
    assert all(0.0 < record["train/loss"] < 5.0 for record in history[:3])
    # Three classes: the right one is always among the first five.
    assert last["test/top5_accuracy"] == 100.0
    opened = open_run(tmp_path / "run", splits=("test",), notify=quietly, data={"root": root})
    values = opened.evaluate("test")
    assert values["cross_entropy"] == pytest.approx(last["test/cross_entropy"], rel=1e-5)
    assert values["accuracy"] == last["test/accuracy"]


def test_half_precision_is_evaluated_as_it_is_stored(root: Path, tmp_path: Path) -> None:
    """What accelerate wraps around the model in training must not leak into the copy that is evaluated."""
    recipe = small("smoe", root)
    training = replace(TRAINING, precision="bf16", max_epochs=2)
    last = train("imagenet/smoe", replace(recipe, training=training), tmp_path / "run", notify=quietly)
    values = open_run(tmp_path / "run", splits=("test",), notify=quietly, data={"root": root}).evaluate("test")
    assert values["cross_entropy"] == pytest.approx(last["test/cross_entropy"], rel=1e-3)


def test_splits(root: Path) -> None:
    recipe = small("resnet50", root)
    said: list[str] = []
    task = build_task(recipe, notify=said.append)
    assert {split: len(samples) for split, samples in task.splits.items()} == {  # type: ignore[arg-type]
        "train": 15, "validation": 3, "test": 6,
    }  # fmt: skip
    assert said[0] == "train: 15 images of 3 classes"
    everything = replace(recipe, data=replace(recipe.data, held_out_per_class=0))
    task = build_task(everything, notify=quietly)
    assert len(task.splits["train"]) == 18  # type: ignore[arg-type]
    assert task.splits["validation"] is task.splits["test"]
    assert build_task(recipe, splits=(), notify=quietly).splits == {}
    assert list(build_task(everything, splits=("validation",), notify=quietly).splits) == ["validation"]


def test_a_plain_net_needs_no_other_one_for_evaluation() -> None:
    assert make_task(small("resnet50", None), 3).for_evaluation is None
    recipe = small("smoe", None)
    enlarge = make_task(recipe, 3).for_evaluation
    assert enlarge is not None
    assert enlarge.keywords == {"size": 48}  # type: ignore[attr-defined]
    same = replace(recipe, data=replace(recipe.data, train_size=48))
    assert make_task(same, 3).for_evaluation is None


def test_published_numbers_of_parameters() -> None:
    expected = {
        "resnet50": 25_557_032, "wide-resnet50": 68_883_240, "lrlcn": 70_863_384, "smoe-first": 26_622_120,
        "smoe-last": 101_206_056, "smoe": 37_344_808,
    }  # fmt: skip
    for name, number in expected.items():
        recipe = IMAGENET_RECIPES[f"imagenet/{name}"]
        with torch.device("meta"):
            model = build_model(recipe.model, Learning.of(recipe), 176, 1000)
        assert sum(parameter.numel() for parameter in model.parameters()) == number, name


@pytest.mark.parametrize(
    ("position", "layer", "shape"),
    [("first", "relu.1", (8, 16, 16)), ("last", "layer4.1.0", (256, 1, 1))],
)
def test_added_layers(position: Any, layer: str, shape: tuple[int, ...]) -> None:
    recipe = small("smoe-first", None)
    assert isinstance(recipe.model, AddedSpatialMoEResNet50Model)
    model = build_model(replace(recipe.model, position=position), Learning.of(recipe), 32, 3)
    added = model.get_submodule(layer)
    assert isinstance(added, smoe.SpatialMoE2d)
    assert isinstance(added.gate, smoe.TensorGate)
    assert added.gate.scores.shape == shape
    assert [name for name, module in model.named_modules() if isinstance(module, smoe.SpatialMoE2d)] == [layer]
    std = (2.0 / (added.gate.num_selected * 9)) ** 0.5
    assert added.weight.std().item() == pytest.approx(std, rel=0.15)
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 3)


def test_groups_of_the_optimizer() -> None:
    recipe = small("smoe", None)
    model = build_model(recipe.model, Learning.of(recipe), 64, 3)
    optimizer = build_optimizer(model, SgdMomentum(lr=0.5, weight_decay=2e-5, gate_lr=50.0))
    groups = {group["name"]: group for group in optimizer.param_groups}
    assert {name: (group["lr"], group["weight_decay"], group["momentum"]) for name, group in groups.items()} == {
        "weights": (0.5, 2e-5, 0.9), "norms": (0.5, 0.0, 0.9), "gates": (50.0, 0.0, 0.9),
    }  # fmt: skip
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert all(names[id(parameter)].endswith("gate.scores") for parameter in groups["gates"]["params"])
    assert len(groups["gates"]["params"]) == 4
    assert all("bn" in names[id(parameter)] or "downsample.1" in names[id(parameter)]
               for parameter in groups["norms"]["params"])  # fmt: skip
    # The bias of the last layer decays, as in torchvision.
    assert {"fc.bias", "fc.weight", "layer1.0.conv2.weight"} <= {names[id(p)] for p in groups["weights"]["params"]}
    assert sum(len(group["params"]) for group in groups.values()) == len(names)
    frozen = build_model(replace(recipe.model, gate="random"), Learning.of(recipe), 64, 3)
    assert [group["name"] for group in build_optimizer(frozen, SgdMomentum()).param_groups] == ["weights", "norms"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ImageNetData(resize=200), "resize must be at least crop, 224, got 200"),
        (lambda: ImageNetData(train_size=0), "train_size must be at least 1, got 0"),
        (lambda: ImageNetData(held_out_per_class=-1), "held_out_per_class must not be negative, got -1"),
        (lambda: SgdMomentum(momentum=1.0), r"momentum must be in \[0, 1\), got 1.0"),
        (lambda: SgdMomentum(gate_lr=-1.0), "gate_lr must not be negative"),
    ],
)
def test_refusals(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_images_must_be_named() -> None:
    with pytest.raises(DataError, match=r"give the folder that holds train and val as --data.root FOLDER"):
        build_task(IMAGENET_RECIPES["imagenet/smoe"], notify=quietly)


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
    assert "| ResNet-50 |  | 80.83 ± 0.04 | not run | 95.39 ± 0.03 | not run | not run | 0 |" in text
    (stored,) = (tmp_path / "runs.jsonl").read_text().splitlines()
    accuracy = json.loads(stored)["test"]["accuracy"]
    line = next(line for line in text.splitlines() if "white noise" in line and "tiny" in line)
    assert f"{accuracy:.2f}" in line


def test_without_images_it_says_what_it_wants(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "imagenet"]) == 2
    assert "train/<class>/*.JPEG" in capsys.readouterr().err
