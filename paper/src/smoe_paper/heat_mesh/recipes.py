"""Recipes of heat diffusion on other geometries, with all their options. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal

from smoe.rules import Probing, Rule, StraightThrough
from smoe.training.plan import TrainingPlan
from smoe_paper.experiments.recipe import Adam, Recipe, SgdMomentum


@dataclass(frozen=True)
class MeshMoEModel:
    """One SMoE layer for the domain: `SpatialMoE1d`, `SpatialMoE3d`, `HEALPixMoE` or `GraphMoE`.

    Attributes:
        num_experts: Experts in the bank.
        gate: `tensor`, a score for each expert and node; or `factorised`, the product of a few numbers of both.
        rank: Numbers of a factorised gate for each node.
        scale: Factor of the scores of a factorised gate.
        order: Order of the selected experts.
    """

    num_experts: int = 3
    gate: Literal["tensor", "factorised"] = "tensor"
    rank: int = 8
    scale: float = 30.0
    order: Literal["score", "index", "families"] = "score"


@dataclass(frozen=True)
class PlainModel:
    """The same layer with a single expert everywhere: a convolution, or a graph convolution like SAGEConv."""


@dataclass(frozen=True)
class SageModel:
    """A stack of torch_geometric's `SAGEConv` with ReLU between them, for domains without a grid.

    Attributes:
        hidden: Channels between the layers.
        node_features: Learned numbers of each node that are given to the first layer beside the input.
    """

    hidden: tuple[int, ...] = (16,)
    node_features: int = 0


MeshModel = MeshMoEModel | PlainModel | SageModel


DomainName = Literal["line", "volume", "healpix", "icosphere", "fsaverage5"]


@dataclass(frozen=True)
class MeshDiffusion:
    """The data: heat diffusing along the edges of a graph whose regions conduct differently.

    Attributes:
        domain: Line of 4,096, volume of 32 x 32 x 32, HEALPix with nside 32, icosphere of 2,562 nodes, or the left
            hemisphere of fsaverage5 with 10,242 nodes.
        rates: Share of a node's heat that is exchanged with its neighbours in a step, for region types 0, 1, ...; four
            times the diffusivities of the paper.
        region_seed: Seed of the region map.
        num_steps: Steps of each run.
        num_train_runs: Runs of the training split.
        num_validation_runs: Runs of the validation split.
        num_test_runs: Runs of the test split.
        cache_dir: Folder that keeps the simulated frames for the next run; None keeps nothing.
    """

    domain: DomainName = "fsaverage5"
    rates: tuple[float, ...] = (0.01, 0.1, 1.0)
    region_seed: int = 42
    num_steps: int = 40
    num_train_runs: int = 50
    num_validation_runs: int = 20
    num_test_runs: int = 10
    cache_dir: Path | None = None


# One budget for every network of the table. An epoch has 62 steps instead of the plane's 3,125, hence the patience.
MESH_TRAINING = TrainingPlan(
    batch_size=32,
    evaluation_batch_size=40,
    max_epochs=120,
    monitor="within_1_percent",
    monitor_mode="max",
    plateau_patience=12,
    plateau_factor=0.1,
    early_stop_patience=30,
    stop_at=100.0,
    num_threads=1,
)


@dataclass(frozen=True)
class MeshRecipe(Recipe):
    """Heat diffusion on a line, a volume, a sphere or a surface."""

    experiment: ClassVar[str] = "heat-mesh"

    data: MeshDiffusion = field(default_factory=MeshDiffusion)
    model: MeshModel = field(default_factory=MeshMoEModel)
    rule: Rule = field(default_factory=Probing)
    # Adam's rate of the plane is for ten times as many steps.
    optimizer: Adam | SgdMomentum = field(default_factory=lambda: Adam(lr=1e-2))
    training: TrainingPlan = MESH_TRAINING


def smoe(domain: DomainName) -> MeshRecipe:
    """The SMoE layer on a domain with what a layer of one output has by default: a tensor gate that learns by probing.

    Its experts have no bias: diffusion has no offsets.
    """
    return MeshRecipe(data=MeshDiffusion(domain=domain))


def straight_through(domain: DomainName) -> MeshRecipe:
    """The same with straight-through gradients over one family of experts and a factorised gate."""
    model = MeshMoEModel(gate="factorised", scale=30.0, order="families")
    return replace(smoe(domain), model=model, rule=StraightThrough(noise=0.0, patience=250))


def plain(domain: DomainName) -> MeshRecipe:
    """One expert everywhere."""
    return replace(smoe(domain), model=PlainModel())


def sage(domain: DomainName, node_features: int = 0) -> MeshRecipe:
    """A stack of torch_geometric's SAGEConv, with or without learned features of the nodes."""
    return replace(smoe(domain), model=SageModel(node_features=node_features))


MESH_RECIPES = {
    "heat-mesh/smoe": smoe("fsaverage5"),
    "heat-mesh/smoe-straight-through": straight_through("fsaverage5"),
    "heat-mesh/plain": plain("fsaverage5"),
    "heat-mesh/sage": sage("fsaverage5"),
    "heat-mesh/sage-features": sage("fsaverage5", node_features=8),
    "heat-mesh/line": smoe("line"),
    "heat-mesh/volume": smoe("volume"),
    "heat-mesh/healpix": smoe("healpix"),
    "heat-mesh/icosphere": smoe("icosphere"),
}
