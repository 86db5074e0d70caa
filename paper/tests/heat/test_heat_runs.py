"""Runs of heat diffusion: opened, drawn, repeated."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import imread

from smoe.training.run_directory import CheckpointError, RunDirectory, RunError, load_checkpoint
from smoe_paper.experiments.runs import open_run, train
from smoe_paper.heat import pictures as views
from smoe_paper.heat.pictures import draw_routing, learned
from smoe_paper.heat.recipes import HEAT_TRAINING, ConvNetModel, HeatDiffusion, HeatRecipe

SMALL = HeatRecipe(
    data=HeatDiffusion(spatial_shape=(9, 7), num_steps=10, num_train_runs=20, num_validation_runs=2, num_test_runs=2),
    training=replace(HEAT_TRAINING, max_epochs=2, device="cpu"),
)


def quietly(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    train("heat/smoe", SMALL, path, notify=quietly)
    return path


def test_a_run_can_be_opened_and_scores_as_it_did(small_run: Path) -> None:
    run = open_run(small_run, splits=("test",), notify=quietly)
    assert run.recipe == SMALL and run.name == "heat/smoe"
    stored = RunDirectory(small_run).read_history()[-1]
    assert {f"test/{name}": value for name, value in run.evaluate("test").items()} == {
        key: value for key, value in stored.items() if key.startswith("test/")
    }


def test_several_processes_do_not_predict_a_split(small_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = open_run(small_run, splits=("test",), notify=quietly)
    prediction, target = next(run.predict("test"))
    assert prediction.shape == target.shape and not prediction.requires_grad
    monkeypatch.setattr("accelerate.Accelerator.num_processes", 2)
    with pytest.raises(ValueError, match="in order by one process, but 2 run"):
        next(run.predict("test"))


def test_a_baseline_has_no_routing(tmp_path: Path) -> None:
    train("heat/conv", replace(SMALL, model=ConvNetModel()), tmp_path, notify=quietly)
    run = open_run(tmp_path, splits=())
    with pytest.raises(ValueError, match="this run has ConvNet"):
        learned(run)


def test_what_was_learned_is_what_is_drawn(small_run: Path) -> None:
    run = open_run(small_run, splits=())
    region_map, stencils, routing_map, experts = learned(run)
    assert region_map.shape == routing_map.shape == (9, 7)
    assert stencils.shape == experts.shape == (3, 3, 3)
    weights = load_checkpoint(small_run / "checkpoints" / "best.safetensors")["model"]
    np.testing.assert_array_equal(experts, weights["layer.weight"][:, 0])
    np.testing.assert_array_equal(routing_map, weights["layer.gate.scores"].argmax(dim=0))


def test_a_run_is_not_overwritten_by_another(small_run: Path) -> None:
    with pytest.raises(RunError, match="holds a run already"):
        train("heat/smoe", SMALL, small_run, notify=quietly)


def test_a_recipe_that_cannot_be_built_leaves_nothing(tmp_path: Path) -> None:
    unstable = replace(SMALL, data=replace(SMALL.data, diffusivities=(0.1, 0.2, 0.3)))
    with pytest.raises(ValueError, match=r"one for each of 3 region types, in \[0, 0.25\].* got \(0.1, 0.2, 0.3\)"):
        train("heat/smoe", unstable, tmp_path / "run", notify=quietly)
    assert not (tmp_path / "run").exists()


def test_a_missing_best_checkpoint_is_explained(small_run: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text((small_run / "recipe.json").read_text())
    with pytest.raises(CheckpointError, match="no best checkpoint yet"):
        open_run(tmp_path)


def test_the_same_seed_trains_the_same_run(small_run: Path, tmp_path: Path) -> None:
    train("heat/smoe", SMALL, tmp_path, notify=quietly)
    ours, theirs = (load_checkpoint(RunDirectory(run).last_checkpoint)["model"] for run in (tmp_path, small_run))
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    train("heat/smoe", replace(SMALL, seed=1), tmp_path / "other", notify=quietly)
    other = load_checkpoint(tmp_path / "other" / "checkpoints" / "last.safetensors")["model"]
    assert not torch.equal(other["layer.weight"], theirs["layer.weight"])


STENCILS = np.stack([np.full((3, 3), value) for value in (0.1, 0.2, 0.3)])
REGION_MAP = np.arange(35).reshape(5, 7) % 3


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    drawn: list[Figure] = []
    monkeypatch.setattr(views, "save_picture", lambda figure, path: drawn.append(figure))
    return drawn


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(lambda item: hasattr(item, "get_text")) if text.get_text()]  # type: ignore[attr-defined]


def test_picture_shows_matched_experts(figures: list[Figure]) -> None:
    # Expert 2 serves region 0, expert 0 region 1, expert 1 region 2; experts 3 and 4 nothing. One pixel is wrong.
    routing_map = np.array([2, 0, 1])[REGION_MAP]
    routing_map[0, 0] = 0
    experts = np.concatenate([STENCILS[[1, 2, 0]], np.zeros((2, 3, 3))])
    experts[2, 0, 0] += 0.05
    draw_routing(REGION_MAP, STENCILS, routing_map, experts, "unused.png")
    shown = texts(figures[0])
    for title in ("expert 2: region 0", "expert 0: region 1", "expert 1: region 2", "region 0", "0.150"):
        assert title in shown
    assert [text for text in shown if "unused" in text] == ["expert 3: unused", "expert 4: unused"]
    assert "learned, wrong at 1 of 35 pixels" in shown


@pytest.mark.parametrize(("num_experts", "kernel_size"), [(3, 3), (6, 5), (1, 1), (17, 3)])
def test_picture_is_written(tmp_path: Path, num_experts: int, kernel_size: int) -> None:
    rng = np.random.default_rng(0)
    routing_map = rng.integers(0, num_experts, size=REGION_MAP.shape)
    experts = rng.normal(size=(num_experts, kernel_size, kernel_size))
    path = tmp_path / "folder" / "routing.png"
    draw_routing(REGION_MAP, STENCILS, routing_map, experts, path)
    assert imread(path).shape[0] > 500
    assert list(path.parent.iterdir()) == [path]


def test_pyplot_stays_unloaded() -> None:
    # In a process of its own, since another test may have loaded it.
    program = "import sys, smoe.views, smoe_paper.heat.pictures; sys.exit('matplotlib.pyplot' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
