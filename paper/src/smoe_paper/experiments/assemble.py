"""Makes the training task of a recipe from its parts: what belongs to no experiment happens here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.data import Dataset

from smoe._plain import to_plain
from smoe.losses import auxiliary_loss
from smoe.nn import NoisyGate, RoutedLayer
from smoe.training.metrics import Metric
from smoe.training.task import Collate, Task
from smoe_paper.experiments.build_optimizer import build_optimizer
from smoe_paper.experiments.recipe import AuxiliaryLosses, Recipe
from smoe_paper.experiments.routing_warmup import RoutingWarmup


def assemble_task(
    recipe: Recipe,
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    metrics: Sequence[Metric],
    samples: Mapping[str, Dataset[Any]] | None,
    collate: Collate,
    **options: Any,
) -> Task:
    """The task of a recipe, with its optimiser, its warm-up of the routing and its auxiliary losses.

    Args:
        recipe: Recipe to train.
        model: Network.
        loss: Loss of a prediction and a target.
        metrics: Metrics of the validation and test splits.
        samples: Data sets by split; none for a model without data.
        collate: Makes a batch of samples.
        **options: Further fields of `Task`.
    """
    if recipe.auxiliary.is_any:
        _check_auxiliary(recipe.auxiliary, model)
        options["auxiliary_loss"] = partial(auxiliary_loss, **to_plain(recipe.auxiliary))
    return Task(
        model,
        build_optimizer(model, recipe.optimizer, is_fused=recipe.training.precision != "fp16"),
        loss,
        metrics,
        {} if samples is None else samples,
        collate,
        recipe.seed,
        begin_epoch=RoutingWarmup(model, recipe.routing_warmup_epochs).begin_epoch,
        **options,
    )


def _check_auxiliary(auxiliary: AuxiliaryLosses, model: nn.Module) -> None:
    """Refuses losses that the model cannot have before any data are made."""
    name = type(model).__name__
    gates = [module.gate for module in model.modules() if isinstance(module, RoutedLayer)]
    if not gates:
        raise ValueError(f"auxiliary losses need SMoE layers, but {name} has none")
    without_noise = next((gate for gate in gates if not isinstance(gate, NoisyGate)), None)
    if auxiliary.load and without_noise is not None:
        raise ValueError(f"auxiliary.load needs gates with noise, but {name} has a {type(without_noise).__name__}")
