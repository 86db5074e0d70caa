"""The task of a recipe, with what belongs to no experiment: SMoE layers, optimiser, auxiliary losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor
from torch.utils.data import Dataset

from smoe import nn
from smoe.nn import RoutedLayer
from smoe.ops import family_members
from smoe.options import BiasOwner
from smoe.rules import Damping, Rule
from smoe.training import to_plain
from smoe.training.run_directory import RunDirectory
from smoe.training.task import Collate, Metric, Task, evaluate, make_accelerator, predict
from smoe_paper.baselines.low_rank import LowRankLocal2d
from smoe_paper.baselines.routing_losses import ScoreGate, auxiliary_loss
from smoe_paper.experiments.experiment import experiment_of
from smoe_paper.experiments.recipe import Adam, AuxiliaryLosses, GateOptions, Recipe


class BatchedSamples(Dataset[tuple[Tensor, Tensor]]):
    """Pairs that `__getitems__` returns already stacked, so that a loader must leave them alone.

    `DataLoader(samples, batch_size=32, collate_fn=BatchedSamples.collate)`.
    """

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The inputs and the targets of a batch."""
        raise NotImplementedError

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        input, target = self.__getitems__([index])
        return input[0], target[0]

    times: np.ndarray | None = None  # when the target of each sample is valid

    @property
    def num_in_time(self) -> int:
        """So many of the first samples follow each other in time."""
        return len(self)

    def shown(self, index: int) -> tuple[str, str, Tensor]:
        """The name of a sample, and of an input in the units of its first target, with its values."""
        return f"sample {index}", "the field before", self[index][0][0]

    @staticmethod
    def collate(batch: Any) -> tuple[Tensor, Tensor]:
        return batch


Start = Callable[[nn.SpatialMoE2d], None]


class Learning(NamedTuple):
    rule: Rule
    damping: Damping | None

    @classmethod
    def of(cls, recipe: Recipe) -> Learning:
        return cls(recipe.rule, recipe.damping)


def make_gate(
    options: GateOptions,
    num_experts: int,
    num_selected: int,
    grid: tuple[int, int],
    prior: torch.Tensor | None = None,
    embedding: nn.PixelEmbedding | None = None,
) -> nn.TensorGate | nn.FactorisedGate:
    kind = nn.FactorisedGate if options.gate == "factorised" else nn.TensorGate
    start: dict[str, Any] = {"init": options.gate_init, "correlation_length": options.correlation_length}
    start["order"] = options.order
    if options.gate == "factorised":
        start |= {"rank": options.rank, "embedding": embedding}
    if prior is None:
        return kind(num_experts, num_selected, grid, **start)
    return kind.from_prior(prior, num_experts, num_selected, **start)


def convert_net(
    net: torch.nn.Module,
    gates: GateOptions,
    learning: Learning,
    start: Start,
    *,
    example_input: torch.Tensor,
    share_gates: bool,
    group_of: Callable[[str], object] | None = None,
    prior: torch.Tensor | None = None,
    **options: Any,
) -> torch.nn.Module:
    """The network with its 3x3 convolutions replaced by SMoE layers; those of one group of names may share gates."""
    # Factorised gates of one grid share their embedding, tables with the same numbers all.
    tables: dict[object, nn.SpatialGate] = {}
    embeddings: dict[object, nn.PixelEmbedding] = {}

    def gate_of(change: nn.Change) -> nn.SpatialGate:
        group = change.name if not share_gates else None if group_of is None else group_of(change.name)
        bank = (group, change.num_experts, change.num_selected, change.spatial_shape)
        if bank in tables:
            return tables[bank]
        rows, columns = change.spatial_shape
        averaged = None if prior is None else torch.nn.functional.adaptive_avg_pool2d(prior[None], (rows, columns))[0]
        shared = embeddings.get((rows, columns)) if share_gates else None
        gate = make_gate(gates, *bank[1:3], (rows, columns), averaged, shared)
        if isinstance(gate, nn.FactorisedGate):
            embeddings[rows, columns] = gate.embedding
        else:
            tables[bank] = gate
        return gate

    converted = nn.convert(
        net,
        example_input=example_input,
        num_experts=gates.expert_ratio,
        start="random",
        make_gate=gate_of,
        bias=gates.bias,
        local_affine=gates.local_affine,
        rule=learning.rule,
        damping=learning.damping,
        **options,
    )
    for layer in converted.modules():
        if isinstance(layer, nn.SpatialMoE2d):
            start_layer(layer, gates, start)
    return converted


def make_added_layer(
    channels: int,
    grid: tuple[int, int],
    gates: GateOptions,
    learning: Learning,
    start: Start,
    *,
    bias: BiasOwner | bool,
    prior: torch.Tensor | None = None,
    **options: Any,
) -> nn.SpatialMoE2d:
    """An SMoE layer that keeps the channels and the grid of a network that it is added to."""
    num_experts = round(gates.expert_ratio * channels)
    gate = make_gate(gates, num_experts, channels, grid, prior)
    options |= {"gate": gate, "bias": bias, "local_affine": gates.local_affine, **learning._asdict()}
    layer = nn.SpatialMoE2d.from_experts(channels, num_experts, channels, **options)
    start_layer(layer, gates, start)
    return layer


def start_layer(layer: nn.SpatialMoE2d, gates: GateOptions, start: Start) -> None:
    """Draws the weights of a layer, equal within a family of experts; a random gate stays as it starts."""
    start(layer)
    if layer.gate.order == "families":
        members = family_members(layer.gate.num_experts, layer.gate.num_selected)
        with torch.no_grad():
            for place in range(1, members.shape[1]):
                layer.weight.index_copy_(0, members[:, place], layer.weight[members[:, 0]])
    if gates.gate == "random":
        layer.gate.requires_grad_(False)


_WITH_KERNELS = (nn.GridConv2d, nn.SpatialMoE2d, LowRankLocal2d)


def build_optimizer(model: torch.nn.Module, options: Adam, *, is_fused: bool = False) -> torch.optim.Optimizer:
    """The optimiser of a recipe, with a named group for each kind of parameters that has settings of its own.

    The penalty `l2 * sum(w^2)` of the `kernels` has the gradient `2 l2 w`, and Adam's weight decay adds exactly this to
    a gradient (AdamW's does not: it does not pass through Adam's averages). Where all kinds have the same settings
    there is one group, `all`: several groups take a small model longer than its forward pass.
    """
    gates: dict[str, float] = {} if options.gate_lr is None else {"lr": options.gate_lr}
    scored = (module for module in model.modules() if isinstance(module, nn.SpatialGate))
    members = {
        "gates": {id(parameter) for gate in scored for parameter in gate.parameters()},
        "kernels": {id(module.weight) for module in model.modules() if isinstance(module, _WITH_KERNELS)},
    }
    settings = {"others": {}, "kernels": {"weight_decay": 2.0 * options.l2} if options.l2 else {}, "gates": gates}
    if not any(settings.values()):
        settings, members = {"all": {}}, {}
    # Groups of the learning parameters; those of no kind's members belong to the first kind.
    of_kind: dict[str, list[torch.nn.Parameter]] = {kind: [] for kind in settings}
    for parameter in model.parameters():
        if parameter.requires_grad:
            kind = next((kind for kind, found in members.items() if id(parameter) in found), next(iter(settings)))
            of_kind[kind].append(parameter)
    groups = [{"params": found, "name": kind, **settings[kind]} for kind, found in of_kind.items() if found]
    return torch.optim.Adam(groups, lr=options.lr, betas=options.betas, eps=options.eps, fused=is_fused)


def assemble_task(
    recipe: Recipe,
    model: torch.nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    metrics: Sequence[Metric],
    samples: Mapping[str, Dataset[Any]] | None,
    collate: Collate = BatchedSamples.collate,
    **options: Any,
) -> Task:
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
        **options,
    )


def _check_auxiliary(auxiliary: AuxiliaryLosses, model: torch.nn.Module) -> None:
    """Refuses losses that the model cannot have before any data are made."""
    name = type(model).__name__
    gates = [module.gate for module in model.modules() if isinstance(module, RoutedLayer)]
    if not gates:
        raise ValueError(f"auxiliary losses need SMoE layers, but {name} has none")
    without_noise = next((gate for gate in gates if not isinstance(gate, ScoreGate) or not gate.std), None)
    if auxiliary.load and without_noise is not None:
        raise ValueError(f"auxiliary.load needs gates with noise, but {name} has a {type(without_noise).__name__}")


@dataclass(frozen=True)
class OpenRun:
    name: str
    recipe: Recipe
    task: Task
    directory: RunDirectory

    @property
    def model(self) -> torch.nn.Module:
        return self.task.model

    def evaluate(self, split: str) -> dict[str, float]:
        accelerator, model = self._prepare()
        return evaluate(accelerator, model, self.task, split, self.recipe.training, self.task.metrics)

    def predict(self, split: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields predictions and truths of a split, batch by batch, in physical units where the data have any."""
        found = experiment_of(self.recipe).find("physical_predictions")
        return self.outputs(split) if found is None else found(self, split)

    def outputs(self, split: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the network's output and the target of each batch of a split, in order."""
        accelerator, model = self._prepare()
        if accelerator.num_processes > 1:
            raise ValueError(
                f"a split is predicted in order by one process, but {accelerator.num_processes} run; start the command "
                "without a launcher"
            )
        yield from predict(accelerator, model, self.task, split, self.recipe.training)

    def _prepare(self) -> tuple[Accelerator, torch.nn.Module]:
        accelerator = make_accelerator(self.recipe.training)
        return accelerator, accelerator.prepare(self.task.model)


def count_parameters(model: torch.nn.Module) -> tuple[int, int]:
    """Numbers of parameters outside the gates and in them, frozen ones included; a gate of one expert has none."""
    has_choice = {
        id(parameter): gate.num_experts > 1
        for gate in model.modules()
        if isinstance(gate, nn.SpatialGate)
        for parameter in gate.parameters()
    }
    sizes = {id(parameter): parameter.numel() for parameter in model.parameters()}
    others = sum(size for key, size in sizes.items() if key not in has_choice)
    return others, sum(size for key, size in sizes.items() if has_choice.get(key))
