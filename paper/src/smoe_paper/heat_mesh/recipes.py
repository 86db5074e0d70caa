"""Heat diffusion on other geometries: recipes with all their options, and the table. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from smoe.rules import Frozen, Rule, StraightThrough
from smoe.training.plan import TrainingPlan
from smoe_paper.experiments.experiment import Experiment
from smoe_paper.experiments.recipe import Adam, Recipe
from smoe_paper.experiments.tables import Scale, ShownMetric, TableSet, make_table
from smoe_paper.heat.recipes import HEAT_TRAINING


@dataclass(frozen=True)
class MeshMoEModel:
    """One SMoE layer for the domain: `SpatialMoE1d`, `SpatialMoE3d`, `HEALPixMoE` or `GraphMoE`."""

    num_candidates: int = 3  # Experts, of which one serves each node.


@dataclass(frozen=True)
class PlainModel:
    """The same layer with a single expert everywhere: a convolution, or a graph convolution like SAGEConv."""


@dataclass(frozen=True)
class SageModel:
    """A stack of torch_geometric's `SAGEConv` with ReLU between them, for domains without a grid."""

    hidden: tuple[int, ...] = (16,)  # Channels between the layers.
    node_features: int = 0  # Learned numbers of each node that are given to the first layer beside the input.


MeshModel = MeshMoEModel | PlainModel | SageModel


DomainName = Literal["line", "volume", "healpix", "icosphere", "fsaverage5"]


@dataclass(frozen=True)
class MeshDiffusion:
    """The data: heat diffusing along the edges of a graph whose regions conduct differently."""

    # Line of 4,096, volume of 32 x 32 x 32, HEALPix with nside 32, icosphere of 2,562 nodes, or the left hemisphere of
    # fsaverage5 with 10,242 nodes.
    domain: DomainName = "fsaverage5"
    # Share of a node's heat that is exchanged with its neighbours in a step, for region types 0, 1, ...; four times the
    # diffusivities of the paper.
    rates: tuple[float, ...] = (0.01, 0.1, 1.0)
    region_seed: int = 42  # Seed of the region map.
    num_steps: int = 40  # Steps of each run.
    num_train_runs: int = 50  # Runs of the training split.
    num_validation_runs: int = 20  # Runs of the validation split.
    num_test_runs: int = 10  # Runs of the test split.


# One budget for every network of the table. An epoch has 62 steps instead of the plane's 3,125, hence the patience.
MESH_TRAINING = replace(HEAT_TRAINING, evaluation_batch_size=40, max_epochs=120, plateau_patience=12, num_threads=1)


@dataclass(frozen=True)
class MeshRecipe(Recipe):
    """Heat diffusion on a line, a volume, a sphere or a surface."""

    experiment: ClassVar[str] = "heat-mesh"

    data: MeshDiffusion = field(default_factory=MeshDiffusion)
    model: MeshModel = field(default_factory=MeshMoEModel)
    rule: Rule = field(default_factory=StraightThrough)
    # Adam's rate of the plane is for ten times as many steps.
    optimizer: Adam = field(default_factory=lambda: Adam(lr=1e-2))
    training: TrainingPlan = MESH_TRAINING


_SMOE = MeshMoEModel()


def mesh_recipe(domain: DomainName, model: MeshModel = _SMOE) -> MeshRecipe:
    # Networks without a choice of experts have no gate that learns.
    rule = StraightThrough() if isinstance(model, MeshMoEModel) else Frozen()
    return MeshRecipe(data=MeshDiffusion(domain=domain), model=model, rule=rule)


MESH_RECIPES = {
    "heat-mesh/smoe": mesh_recipe("fsaverage5"),
    "heat-mesh/plain": mesh_recipe("fsaverage5", PlainModel()),
    "heat-mesh/sage": mesh_recipe("fsaverage5", SageModel()),
    "heat-mesh/sage-features": mesh_recipe("fsaverage5", SageModel(node_features=8)),
    "heat-mesh/line": mesh_recipe("line"),
    "heat-mesh/volume": mesh_recipe("volume"),
    "heat-mesh/healpix": mesh_recipe("healpix"),
    "heat-mesh/icosphere": mesh_recipe("icosphere"),
}

_DOMAINS: dict[DomainName, str] = {
    "line": "line, 4,096",
    "volume": "volume, 32 x 32 x 32",
    "healpix": "HEALPix, nside 32",
    "icosphere": "icosphere, 2,562",
    "fsaverage5": "fsaverage5, 10,242",
}
_ALL = tuple(_DOMAINS)
_MODELS: dict[str, tuple[MeshModel, tuple[DomainName, ...]]] = {
    "one expert everywhere": (PlainModel(), _ALL),
    "SAGEConv, 1-16-1": (SageModel(), ("fsaverage5",)),
    "SAGEConv, 1-16-1, 8 learned features of each node": (SageModel(node_features=8), ("fsaverage5",)),
    "SMoE, three candidates": (_SMOE, _ALL),
}


def _small(recipe: MeshRecipe) -> MeshRecipe:
    data = replace(recipe.data, num_train_runs=4, num_validation_runs=1, num_test_runs=1, num_steps=8)
    return replace(recipe, data=data, training=replace(recipe.training, max_epochs=2))


class MeshExperiment(Experiment):
    """Heat diffusing over regions of a line, a volume, a sphere or a surface; the data are simulated in seconds."""

    name = "heat-mesh"
    recipe_type = MeshRecipe
    recipes = MESH_RECIPES
    tables = TableSet(
        name="heat-mesh",
        num_seeds=3,
        metrics=(ShownMetric("within_1_percent", is_percentage=True),),
        metric_text=(
            "Percentage of test nodes within 1 % of the truth: mean ± standard deviation over the seeds; 100.0 means "
            "every node of every seed."
        ),
        tables=(
            make_table(
                "heat-mesh/main",
                "Heat diffusion on every geometry",
                "domain; model",
                [
                    (f"{title}; {label}", mesh_recipe(domain, model))
                    for domain, title in _DOMAINS.items()
                    for label, (model, domains) in _MODELS.items()
                    if domain in domains
                ],
                text=(
                    "Three regions that exchange 1, 10 and 100 % of a node's heat with its neighbours in each step, "
                    "grown by preferential attachment over the edges."
                ),
            ),
        ),
        scales=(
            Scale("full", "50 training runs of 40 steps"),
            Scale("small", "4 training runs of 8 steps, two epochs", _small, kind="smaller"),
        ),
    )


HEAT_MESH = MeshExperiment()
