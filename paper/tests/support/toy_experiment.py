"""An experiment of a test's own: fields times a factor, learned by one SMoE layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from smoe.training.plan import TrainingPlan
from smoe_paper.experiments.experiment import SPLITS, Experiment, Notify
from smoe_paper.experiments.recipe import Recipe
from smoe_paper.experiments.tables import ResultTable, Row, Scale, ShownMetric, TableSet


@dataclass(frozen=True)
class ToyData:
    """Fields of noise.

    Attributes:
        factor: Factor of the targets.
        num_samples: Number of samples of each split.
    """

    factor: float = 2.0
    num_samples: int = 6


@dataclass(frozen=True)
class ToyModel:
    """One SMoE layer.

    Attributes:
        num_experts: Number of experts, of which one is selected.
    """

    num_experts: int = 2


TOY_TRAINING = TrainingPlan(batch_size=2, max_epochs=2, device="cpu")


@dataclass(frozen=True)
class ToyRecipe(Recipe):
    """Fields times a factor."""

    experiment: ClassVar[str] = "toy"

    data: ToyData = field(default_factory=ToyData)
    model: ToyModel = field(default_factory=ToyModel)
    training: TrainingPlan = TOY_TRAINING


class ToyExperiment(Experiment):
    """A field times a factor."""

    name: ClassVar[str] = "toy"
    recipe_type = ToyRecipe
    recipes: ClassVar[Mapping[str, Recipe]] = {"toy/smoe": ToyRecipe()}
    tables: ClassVar[TableSet] = TableSet(
        "toy",
        (ShownMetric("mse", decimals=3),),
        "Mean squared error.",
        (ResultTable("toy/all", "A toy", ("model",), (Row(("SMoE",), ToyRecipe()),)),),
        (Scale("paper", "all of it", lambda recipe: recipe),),
        data_field="factor",
    )

    def build(self, recipe: ToyRecipe, splits: tuple[str, ...] = SPLITS, notify: Notify = print) -> Any:
        """Draws the fields and makes the layer."""
        import torch
        from torch.utils.data import TensorDataset, default_collate

        from smoe import SpatialMoE2d
        from smoe_paper.experiments.task import assemble_task
        from smoe_paper.metrics import MeanSquaredError

        torch.manual_seed(recipe.seed)
        model = SpatialMoE2d.from_experts(1, recipe.model.num_experts, 1, spatial_shape=(4, 3), rule=recipe.rule)
        samples: dict[str, Any] = {}
        for split in splits:
            notify(f"drawing {split}")
            inputs = torch.randn(recipe.data.num_samples, 1, 4, 3)
            samples[split] = TensorDataset(inputs, recipe.data.factor * inputs)
        return assemble_task(
            recipe, model, torch.nn.functional.mse_loss, [MeanSquaredError()], samples, default_collate
        )


TOY = ToyExperiment()
