"""Classifiers of small images: parameters, a step of training, and runs end to end."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from image_files import publish, write_cifar10, write_idx_set
from smoe.cli import main
from smoe.nn import RoutedLayer
from smoe.rules import RoutingClassification
from smoe_paper.experiments.recipe import Adam
from smoe_paper.experiments.runs import open_run, train
from smoe_paper.experiments.task import Learning, count_parameters
from smoe_paper.images.data import DrawnImages
from smoe_paper.images.model import build_task
from smoe_paper.images.recipes import (
    IMAGE_MODELS,
    IMAGE_RECIPES,
    IMAGE_TRAINING,
    ConvClassifierModel,
    CoordConvClassifierModel,
    ImageData,
    ImageRecipe,
    LowRankLocalClassifierModel,
    SpatialMoEClassifierModel,
)
from smoe_paper.models import ImageClassifier

LEARNING = Learning(RoutingClassification.released(), None)
# Norms of three layers of 64, and the linear map.
_NORMS, _HEAD = 3 * 2 * 64, 64 * 10 + 10


@pytest.mark.parametrize(
    ("name", "weights", "gate"),
    [
        ("conv", 9 * 64 + 2 * 9 * 64 * 64 + _NORMS + _HEAD, 0),
        ("lcn", 9 * 64 + 9 * 64 * 64 + 28 * 28 * 9 * 64 * 64 + _NORMS + _HEAD, 0),
        ("coordconv", 9 * 3 * 64 + 2 * 9 * 64 * 64 + _NORMS + _HEAD, 0),
        ("wide", 9 * (66 + 66 * 160 + 160 * 256) + 2 * (66 + 160 + 256) + 256 * 10 + 10, 0),
        # Four bases, a number for each row and column and base, and one for each row and column.
        ("lrlcn", 4 * (9 * 64 + 2 * 9 * 64 * 64) + 3 * 56 * (4 + 1) + _NORMS + _HEAD, 0),
        ("smoe", 9 * 128 + 2 * 9 * 64 * 128 + _NORMS + _HEAD, 128 * 28 * 28),
    ],
)
def test_parameters(name, weights, gate):
    task = build_task(IMAGE_RECIPES[f"mnist/{name}"], ())
    assert count_parameters(task.model) == (weights, gate)


@pytest.mark.parametrize("model", IMAGE_MODELS.values(), ids=IMAGE_MODELS)
def test_learns_in_a_step(model):
    recipe = ImageRecipe(model=replace(model, filters=8))
    task = build_task(recipe, ())
    images, labels = torch.randn(8, 1, 28, 28), torch.randint(10, (8,))
    before = task.loss(task.model(images), labels).item()
    for _ in range(5):
        task.loss(task.model(images), labels).backward()
        assert all(parameter.grad is not None for parameter in task.model.parameters())
        task.optimizer.step()
        task.optimizer.zero_grad()
    assert task.loss(task.model(images), labels).item() < before


def test_a_fixed_gate_stays():
    recipe = ImageRecipe(model=SpatialMoEClassifierModel(filters=4, gate="random", gate_init="smooth"))
    task = build_task(recipe, ())
    gate = next(module.gate for module in task.model.modules() if isinstance(module, RoutedLayer))
    assert not any(parameter.requires_grad for parameter in gate.parameters())
    learning = {id(parameter) for group in task.optimizer.param_groups for parameter in group["params"]}
    assert learning == {id(parameter) for parameter in task.model.parameters()} - set(map(id, gate.parameters()))
    recipe = replace(recipe, optimizer=Adam(l2=1e-5, gate_lr=1e-2))
    groups = build_task(recipe, ()).optimizer.param_groups
    assert {group["name"] for group in groups} == {"kernels", "others"}


def test_refuses():
    with pytest.raises(ValueError, match=r"filters must be at least 1, got 0"):
        LowRankLocalClassifierModel(filters=0)
    with pytest.raises(ValueError, match=r"expert_ratio must be at least 1"):
        SpatialMoEClassifierModel(expert_ratio=0.5)
    with pytest.raises(ValueError, match=r"images_per_epoch must be at least 1"):
        ImageData(images_per_epoch=0)
    with pytest.raises(ValueError, match="channels must be one number for each layer, got 2 for 1"):
        ImageClassifier([torch.nn.Conv2d(1, 2, 3)], [2, 2], 10)


FAST = replace(IMAGE_TRAINING, batch_size=20, evaluation_batch_size=50, max_epochs=2, device="cpu")


def silently(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def mnist(tmp_path_factory):
    return write_idx_set(tmp_path_factory.mktemp("images") / "mnist", 300, 50)


@pytest.fixture(autouse=True)
def _published(mnist, monkeypatch):
    publish(monkeypatch, mnist)


def small_recipe(root, model, **options) -> ImageRecipe:
    return ImageRecipe(data=ImageData(root=root), model=model, training=replace(FAST, **options))


def test_learns_where_the_row_is(mnist, tmp_path):
    # The class is the place of a bright row: coordinates tell it at once.
    recipe = small_recipe(mnist, CoordConvClassifierModel(filters=16), max_epochs=10)
    recipe = replace(recipe, optimizer=replace(recipe.optimizer, lr=2e-2))
    last = train("mnist/coordconv", recipe, tmp_path / "run", notify=silently)
    assert last["test/accuracy"] > 50.0
    opened = open_run(tmp_path / "run", splits=("test",), notify=silently, data={"root": mnist})
    assert opened.evaluate("test")["accuracy"] == pytest.approx(last["test/accuracy"])


def test_the_splits(mnist):
    task = build_task(small_recipe(mnist, ConvClassifierModel(filters=2)), notify=silently)
    assert [len(task.splits[name]) for name in ("train", "validation", "test")] == [276, 24, 50]  # type: ignore[arg-type]
    images, labels = task.splits["test"].__getitems__(range(10))  # type: ignore[attr-defined]
    assert images.shape == (10, 1, 28, 28)
    assert float(images.max()) == pytest.approx(250 / 255 * 2 - 1)
    assert labels.tolist() == list(range(10))


def test_epochs_of_some_images(mnist):
    recipe = small_recipe(mnist, ConvClassifierModel(filters=2))
    recipe = replace(recipe, data=replace(recipe.data, images_per_epoch=40))
    samples = build_task(recipe, ("train",), notify=silently).splits["train"]
    assert isinstance(samples, DrawnImages)
    assert len(samples) == 40
    drawn = []
    for epoch in (1, 2, 1):
        samples.start_epoch(epoch)
        drawn.append(samples.__getitems__(range(40))[0])
    torch.testing.assert_close(drawn[0], drawn[2], rtol=0, atol=0)
    assert not torch.equal(drawn[0], drawn[1])
    # Each at most once.
    assert len({image.numpy().tobytes() for image in drawn[0]}) == 40
    with pytest.raises(ValueError, match="an epoch must have 1 to 276 images, got 277"):
        build_task(replace(recipe, data=replace(recipe.data, images_per_epoch=277)), ("train",), notify=silently)


@pytest.mark.parametrize("name", ["lcn", "smoe"])
def test_cifar10_end_to_end(tmp_path, name, capsys, monkeypatch):
    root = write_cifar10(tmp_path / "cifar-10-batches-bin", 10)
    publish(monkeypatch, root, "cifar10")
    arguments = [
        "train", f"cifar10/{name}", "--data.root", str(root.parent),
        "--training.batch-size", "15", "--training.evaluation-batch-size", "10", "--training.max-epochs", "1",
        "--model.filters", "4", "--output-dir", str(tmp_path / "run"),
    ]  # fmt: skip
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "accuracy" in out
    assert f"{IMAGE_RECIPES[f'cifar10/{name}'].data.name}/{name}, test split" in out
