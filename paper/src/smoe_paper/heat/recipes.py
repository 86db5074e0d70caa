"""Recipes of the heat-diffusion experiment (paper section 3.1). Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal

from smoe.rules import Probing, RoutingClassification, Rule
from smoe.training.plan import TrainingPlan
from smoe_paper.experiments.recipe import Recipe
from smoe_paper.heat.model_options import (
    ConvNetModel,
    FullyConnectedModel,
    HeatModel,
    LocallyConnectedModel,
    LowRankLocalModel,
    SpatialMoEModel,
    VisionTransformerModel,
)


@dataclass(frozen=True)
class HeatDiffusion:
    """Simulated heat diffusion over regions of different diffusivity.

    Attributes:
        spatial_shape: Rows and columns of the grid.
        diffusivities: Diffusivity of each region type, at most 0.25.
        region_seed: Seed of the region map.
        region_map: File of a region map (.npy, .csv, .txt) to use instead of a generated one; it sets the grid.
        num_steps: Number of time steps of each run.
        num_train_runs: Number of runs in the training split.
        num_validation_runs: Number of runs in the validation split.
        num_test_runs: Number of runs in the test split.
        train_seed: Seed of the initial states of the training split.
        validation_seed: Seed of the initial states of the validation split.
        test_seed: Seed of the initial states of the test split.
        unit: Factor of all temperatures, which expresses the same data in another unit.
        cache_dir: Folder that keeps the simulated frames for later runs (1.7 GB at paper scale); None keeps nothing.
    """

    spatial_shape: tuple[int, int] = (64, 64)
    # In the order of the released command line; the paper's text gives the opposite order.
    diffusivities: tuple[float, ...] = (0.0025, 0.025, 0.25)
    region_seed: int = 42
    region_map: Path | None = None
    num_steps: int = 100
    num_train_runs: int = 1000
    num_validation_runs: int = 20
    num_test_runs: int = 20
    train_seed: int = 42
    validation_seed: int = 546981
    test_seed: int = 865124
    unit: float = 1.0
    cache_dir: Path | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.unit < math.inf:
            raise ValueError(f"unit must be positive and finite, got {self.unit}")


# The paper's schedule: a tenth of the learning rate after 15 epochs without improvement, and the end after 30.
HEAT_TRAINING = TrainingPlan(
    batch_size=32,
    evaluation_batch_size=100,
    max_epochs=150,
    monitor="within_1_percent",
    monitor_mode="max",
    plateau_patience=15,
    plateau_factor=0.1,
    early_stop_patience=30,
    stop_at=100.0,
)


@dataclass(frozen=True)
class HeatRecipe(Recipe):
    """Heat diffusion over regions of different diffusivity.

    Attributes:
        loss: `mse`, the mean squared error, or `mae`, the mean absolute error.
    """

    experiment: ClassVar[str] = "heat"

    data: HeatDiffusion = field(default_factory=HeatDiffusion)
    model: HeatModel = field(default_factory=SpatialMoEModel)
    # As in the released command line; the paper's text has quantile 0.7 and damping 0.1 (paper/results/heat/rules.md).
    rule: Rule = field(default_factory=RoutingClassification.released)
    training: TrainingPlan = HEAT_TRAINING
    loss: Literal["mse", "mae"] = "mse"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss not in ("mse", "mae"):
            raise ValueError(f"loss must be mse or mae, got {self.loss!r}")


HEAT_RECIPES = {
    # One thread: a second one saves a fifth of a step of one millisecond, and costs tenfold while others use its core.
    "heat/smoe": HeatRecipe(training=replace(HEAT_TRAINING, num_threads=1)),
    "heat/smoe-probe": HeatRecipe(rule=Probing(), training=replace(HEAT_TRAINING, num_threads=1)),
    # 160 parameters: 1 -> 8 -> 1 filters with batch normalisation. The paper's 146 fit a residual net of 6 filters.
    "heat/conv": HeatRecipe(model=ConvNetModel("conv", hidden=(8,))),
    "heat/coordconv": HeatRecipe(model=ConvNetModel("coordconv", hidden=(1,))),
    # 186 parameters: two layers with three kernels. The paper's 200 fit a residual net of 3 hidden filters.
    "heat/condconv": HeatRecipe(model=ConvNetModel("condconv", hidden=(3,))),
    "heat/lrlcn": HeatRecipe(model=LowRankLocalModel("input")),
    "heat/lrlcn-nd": HeatRecipe(model=LowRankLocalModel("table")),
    "heat/lcn": HeatRecipe(model=LocallyConnectedModel()),
    # The paper's row trained for 250 epochs.
    "heat/fc": HeatRecipe(model=FullyConnectedModel(), training=replace(HEAT_TRAINING, max_epochs=250)),
    "heat/vit": HeatRecipe(model=VisionTransformerModel()),
    "heat/vmoe": HeatRecipe(model=VisionTransformerModel(num_experts=3)),
}
