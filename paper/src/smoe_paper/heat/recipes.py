"""Recipes of heat diffusion with all their options, and what the paper prints for them. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from smoe.options import Combiner, GateInit, Order
from smoe.rules import RoutingClassification, Rule
from smoe.training.plan import TrainingPlan
from smoe_paper.experiments.recipe import Recipe
from smoe_paper.experiments.tables import PublishedResult

GateName = Literal["tensor", "factorised", "conv", "coordconv", "coordconv3", "lcn", "linear", "fixed", "random"]


@dataclass(frozen=True)
class SpatialMoEModel:
    """One SMoE layer; the outputs of several selected experts are summed."""

    num_experts: int = 3  # Number of experts in the bank.
    num_selected: int = 1  # Number of experts selected at each pixel.
    kernel_size: int = 3  # Rows and columns of the experts' kernels.
    experts: Literal["conv", "coordconv"] = "conv"  # Kind of the experts: convolutions or CoordConv layers.
    gate: GateName = "tensor"  # Gating function; `fixed` is the true region map, `random` a frozen tensor gate.
    gate_init: GateInit = "kaiming"  # Initialisation of a tensor gate.
    # `true` starts a tensor gate with each region preferring its own share of the experts.
    gate_start: Literal["random", "true"] = "random"
    experts_start: Literal["random", "true"] = "random"  # `true` starts the experts as the diffusion stencils.
    experts_frozen: bool = False  # Do not train the experts.
    # Normalisation of the gate's scores.
    normalisation: Literal["none", "softmax", "abs", "abs_softmax"] = "none"
    gate_noise: bool = False  # Add noise to the scores in training.
    weighted: bool = False  # Multiply the experts' outputs by their scores.
    order: Order = "score"  # Order of the selected experts.
    rank: int = 8  # Number of values for each pixel of a factorised gate.
    bias: Literal["none", "slot", "expert"] = "none"  # Owner of the biases of the experts' outputs.

    def __post_init__(self) -> None:
        if self.gate_start == "true" and self.gate != "tensor":
            raise ValueError(f"gate_start='true' is the start of a tensor gate, but the gate is {self.gate!r}")
        if self.experts_start == "true" and (self.experts != "conv" or self.num_selected != 1 or self.kernel_size < 3):
            raise ValueError(
                "experts_start='true' needs convolution experts of at least 3 x 3, of which one is selected, got "
                f"experts={self.experts!r}, kernel_size={self.kernel_size} and num_selected={self.num_selected}"
            )


@dataclass(frozen=True)
class ConvNetModel:
    """Convolutions with batch normalisation and ReLU between them."""

    # Kind of the layers: convolutions, CoordConv or CondConv layers.
    layer: Literal["conv", "coordconv", "condconv"] = "conv"
    hidden: tuple[int, ...] = (8,)  # Number of filters of each layer before the last; the last layer has one.
    kernel_size: int = 3  # Rows and columns of the kernels of all layers.
    num_experts: int = 3  # Number of kernels that a CondConv mixes for each sample.
    residual: bool = False  # Add the input of each layer to its output.


@dataclass(frozen=True)
class LowRankLocalModel:
    """One low-rank locally connected layer (LRLCN)."""

    combiner: Combiner = "input"  # Network that computes each pixel's mixture of the basis filters.
    spatial_rank: int = 3  # Number of basis filters.
    kernel_size: int = 3  # Rows and columns of the basis filters.


@dataclass(frozen=True)
class LocallyConnectedModel:
    """One locally connected layer (LCN), with a filter for each pixel."""

    kernel_size: int = 3  # Rows and columns of the filters.


@dataclass(frozen=True)
class FullyConnectedModel:
    """One fully connected layer (FC) without bias: each output pixel depends on the whole grid."""


@dataclass(frozen=True)
class VisionTransformerModel:
    """A vision transformer (ViT), or with experts a vision mixture of experts (V-MoE)."""

    patch_size: int = 4  # Rows and columns of a patch, in pixels.
    width: int = 128  # Number of features of a token.
    num_heads: int = 4  # Number of attention heads.
    depth: int = 1  # Number of blocks.
    hidden: int = 512  # Number of features inside the MLPs.
    num_experts: int | None = None  # Number of expert MLPs, of which each token uses one; None for a plain transformer.
    auxiliary_weight: float = 0.01  # Factor of V-MoE's balancing losses.


HeatModel = (
    SpatialMoEModel
    | ConvNetModel
    | LowRankLocalModel
    | LocallyConnectedModel
    | FullyConnectedModel
    | VisionTransformerModel
)


@dataclass(frozen=True)
class HeatDiffusion:
    """Simulated heat diffusion over regions of different diffusivity."""

    spatial_shape: tuple[int, int] = (64, 64)  # Rows and columns of the grid.
    # In the order of the released command line; the paper's text gives the opposite order.
    diffusivities: tuple[float, ...] = (0.0025, 0.025, 0.25)  # Diffusivity of each region type, at most 0.25.
    region_seed: int = 42  # Seed of the region map.
    num_steps: int = 100  # Number of time steps of each run.
    num_train_runs: int = 1000  # Number of runs in the training split.
    num_validation_runs: int = 20  # Number of runs in the validation split.
    num_test_runs: int = 20  # Number of runs in the test split.
    train_seed: int = 42  # Seed of the initial states of the training split.
    validation_seed: int = 546981  # Seed of the initial states of the validation split.
    test_seed: int = 865124  # Seed of the initial states of the test split.
    unit: float = 1.0  # Factor of all temperatures, which expresses the same data in another unit.

    def __post_init__(self) -> None:
        if not 0.0 < self.unit < math.inf:
            raise ValueError(f"unit must be positive and finite, got {self.unit}")


# The paper's schedule: a tenth of the learning rate after 15 epochs without improvement, and the end after 30.
HEAT_TRAINING = TrainingPlan(
    max_epochs=150,
    monitor="within_1_percent",
    monitor_mode="max",
    plateau_patience=15,
    early_stop_patience=30,
    stop_at=100.0,
)


@dataclass(frozen=True)
class HeatRecipe(Recipe):
    """Heat diffusion over regions of different diffusivity."""

    experiment: ClassVar[str] = "heat"

    data: HeatDiffusion = field(default_factory=HeatDiffusion)
    model: HeatModel = field(default_factory=SpatialMoEModel)
    # As in the released command line; the paper's text has quantile 0.7 and damping 0.1 (paper/results/heat/rules.md).
    rule: Rule = field(default_factory=RoutingClassification.released)
    training: TrainingPlan = HEAT_TRAINING
    loss: Literal["mse", "mae"] = "mse"  # `mse`, the mean squared error, or `mae`, the mean absolute error.

    def __post_init__(self) -> None:
        if self.loss not in ("mse", "mae"):
            raise ValueError(f"loss must be mse or mae, got {self.loss!r}")


HEAT_RECIPES = {
    # One thread: a second one saves a fifth of a step of one millisecond, and costs tenfold while others use its core.
    "heat/smoe": HeatRecipe(training=replace(HEAT_TRAINING, num_threads=1)),
    # The paper's 146, 56 and 200 parameters: residual nets of the released code with 6, 1 and 3 hidden filters.
    "heat/conv": HeatRecipe(model=ConvNetModel("conv", hidden=(6,), residual=True)),
    "heat/coordconv": HeatRecipe(model=ConvNetModel("coordconv", hidden=(1,), residual=True)),
    "heat/condconv": HeatRecipe(model=ConvNetModel("condconv", hidden=(3,), residual=True)),
    "heat/conv-plain": HeatRecipe(model=ConvNetModel("conv", hidden=(8,))),
    "heat/coordconv-plain": HeatRecipe(model=ConvNetModel("coordconv", hidden=(1,))),
    "heat/condconv-plain": HeatRecipe(model=ConvNetModel("condconv", hidden=(3,))),
    "heat/lrlcn": HeatRecipe(model=LowRankLocalModel("input")),
    "heat/lrlcn-nd": HeatRecipe(model=LowRankLocalModel("table")),
    "heat/lcn": HeatRecipe(model=LocallyConnectedModel()),
    # The paper's row trained for 250 epochs.
    "heat/fc": HeatRecipe(model=FullyConnectedModel(), training=replace(HEAT_TRAINING, max_epochs=250)),
    "heat/vit": HeatRecipe(model=VisionTransformerModel()),
    "heat/vmoe": HeatRecipe(model=VisionTransformerModel(num_experts=3)),
}


def heat_result(
    mean: float, spread: float = 0.0, epochs: int | None = None, parameters: str = "", source: str = ""
) -> PublishedResult:
    return PublishedResult("within_1_percent", mean, spread, epochs, source, parameters)


PUBLISHED = {
    f"heat/{name}": heat_result(*numbers, source="Figure 3, left")
    for name, numbers in {
        "smoe": (100.0, 0.0, 8, "27+12288"),
        "conv": (91.3, 0.2, 102, "146"),
        "coordconv": (91.1, 0.2, 50, "56"),
        "condconv": (91.2, 0.3, 120, "200"),
        "lrlcn": (91.8, 0.5, 27, "516"),
        "lrlcn-nd": (91.5, 0.3, 35, "12315"),
        "lcn": (100.0, 0.0, 110, "36764"),
        "fc": (14.2, 1.2, 250, "16.7M"),
        "vit": (93.5, 0.1, 67, "200k"),
        "vmoe": (93.8, 0.3, 74, "470k"),
    }.items()
}
