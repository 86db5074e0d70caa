"""Recipes of the heat-diffusion experiment (paper section 3.1). Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from smoe.options import GateInit, Normalization, Order, RoutingTraining
from smoe.training.plan import TrainingPlan


@dataclass(frozen=True)
class HeatDiffusion:
    """The data: heat diffusing over regions of different diffusivity.

    Attributes:
        spatial_shape: rows and columns of the grid.
        diffusivities: of region types 0, 1, ...; each at most 0.25.
        region_seed: of the region map.
        region_map: file of a region map (.npy, .csv, .txt) to use instead; it sets the grid.
        num_steps: of each run.
        num_train_runs: runs of the training split.
        num_validation_runs: runs of the validation split.
        num_test_runs: runs of the test split.
        train_seed: of the training runs' starts.
        validation_seed: of the validation runs' starts.
        test_seed: of the test runs' starts.
        cache_dir: folder that keeps the simulated frames for the next run (1.7 GB at paper scale); None keeps nothing.
    """

    spatial_shape: tuple[int, int] = (64, 64)
    # In the order of the released command line; the paper's text names them the other way round.
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
    cache_dir: Path | None = None


@dataclass(frozen=True)
class SpatialMoEModel:
    """One SMoE layer; with several selected experts their outputs are summed.

    Attributes:
        num_experts: experts in the bank.
        num_selected: experts chosen at each pixel.
        kernel_size: of the experts.
        experts: what an expert is: a convolution, or a CoordConv.
        gate: the gating function; `fixed` knows the region map, `random` is a frozen tensor gate.
        gate_init: start of a tensor gate.
        normalization: of the gate's scores.
        gate_noise: disturb the scores while training.
        weighted: multiply the experts' outputs by their scores.
        order: of the selected experts.
    """

    num_experts: int = 3
    num_selected: int = 1
    kernel_size: int = 3
    experts: Literal["conv", "coordconv"] = "conv"
    gate: Literal["tensor", "conv", "coordconv", "coordconv3", "lcn", "linear", "fixed", "random"] = "tensor"
    gate_init: GateInit = "kaiming"
    normalization: Normalization = "none"
    gate_noise: bool = False
    weighted: bool = False
    order: Order = "score"


@dataclass(frozen=True)
class Adam:
    """The Adam optimiser.

    Attributes:
        lr: learning rate.
        betas: decay of the averages of the gradient and of its square.
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)


@dataclass(frozen=True)
class HeatRecipe:
    """Heat diffusion, learned by one SMoE layer.

    Attributes:
        data: what is learned.
        model: the network.
        routing: how its routing learns.
        optimizer: of all parameters.
        training: batches, schedule and stopping.
        seed: of the initial weights and of the shuffles.
    """

    data: HeatDiffusion = field(default_factory=HeatDiffusion)
    model: SpatialMoEModel = field(default_factory=SpatialMoEModel)
    # As in the released command line; the paper's text (quantile 0.7, damping 0.1) does not reach its own result.
    routing: RoutingTraining = field(default_factory=RoutingTraining)
    optimizer: Adam = field(default_factory=Adam)
    training: TrainingPlan = field(default_factory=TrainingPlan)
    seed: int = 0


HEAT_RECIPES = {"heat/smoe": HeatRecipe()}
