"""The six classifiers: their parameters by the paper's text, shared gates, and a step of training of each."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from smoe.nn import RoutedLayer
from smoe.rules import RoutingClassification
from smoe_paper.experiments.recipe import Adam
from smoe_paper.experiments.task import Learning, count_parameters
from smoe_paper.images.model import build_model, make_task
from smoe_paper.images.recipes import (
    IMAGE_MODELS,
    IMAGE_RECIPES,
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
    task = make_task(IMAGE_RECIPES[f"mnist/{name}"])
    assert count_parameters(task.model) == (weights, gate)


@pytest.mark.parametrize("model", IMAGE_MODELS.values(), ids=IMAGE_MODELS)
def test_learns_in_a_step(model):
    recipe = ImageRecipe(model=replace(model, filters=8))
    task = make_task(recipe)
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
    task = make_task(recipe)
    gate = next(module.gate for module in task.model.modules() if isinstance(module, RoutedLayer))
    assert not any(parameter.requires_grad for parameter in gate.parameters())
    learning = {id(parameter) for group in task.optimizer.param_groups for parameter in group["params"]}
    assert learning == {id(parameter) for parameter in task.model.parameters()} - set(map(id, gate.parameters()))
    recipe = replace(recipe, optimizer=Adam(l2=1e-5, gate_lr=1e-2))
    groups = make_task(recipe).optimizer.param_groups
    assert {group["name"] for group in groups} == {"kernels", "others"}


def test_coordinates_once_or_always():
    channels = {}
    for coordinates in ("image", "all"):
        described = CoordConvClassifierModel(filters=4, coordinates=coordinates)
        model = build_model(described, LEARNING, (1, 6, 6), 10)
        channels[coordinates] = [weight.shape[1] for weight in model.parameters() if weight.ndim == 4]
    assert channels == {"image": [3, 4, 4], "all": [3, 6, 6]}


def test_sees_where():
    # A mean over all pixels of convolutions cannot tell a shifted image; a layer that knows where it is can.
    images = torch.zeros(1, 1, 16, 16)
    images[0, 0, 5:8, 5:8] = 1.0
    shifted = images.roll((3, 3), (2, 3))
    torch.manual_seed(0)
    for name, is_blind in (("conv", True), ("lcn", False), ("coordconv", False), ("smoe", False)):
        model = build_model(replace(IMAGE_MODELS[name], filters=8), LEARNING, (1, 16, 16), 10).eval()
        with torch.no_grad():
            assert torch.allclose(model(images), model(shifted), atol=1e-5) == is_blind, name


def test_refuses():
    with pytest.raises(ValueError, match=r"filters must be at least 1, got 0"):
        LowRankLocalClassifierModel(filters=0)
    with pytest.raises(ValueError, match=r"expert_ratio must be at least 1"):
        SpatialMoEClassifierModel(expert_ratio=0.5)
    with pytest.raises(ValueError, match=r"images_per_epoch must be at least 1"):
        ImageData(images_per_epoch=0)
    with pytest.raises(ValueError, match=r"label_smoothing must be in \[0, 1\)"):
        ImageRecipe(label_smoothing=1.0)
    with pytest.raises(ValueError, match="channels must be one number for each layer, got 2 for 1"):
        ImageClassifier([torch.nn.Conv2d(1, 2, 3)], [2, 2], 10)
