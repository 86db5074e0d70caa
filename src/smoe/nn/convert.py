"""Replaces convolutions of any network by SMoE layers (paper sections 3.2 to 3.4)."""

from __future__ import annotations

import copy
import fnmatch
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn

from smoe.nn.gates import TensorGate
from smoe.nn.grid_conv import GridConv2d
from smoe.nn.spatial_moe import SpatialMoE2d
from smoe.options import GateInit, Order, PaddingMode, RoutingTraining

Convolution = nn.Conv2d | GridConv2d
Start = Literal["random", "filters"]


@dataclass(frozen=True)
class Change:
    """A convolution that becomes an SMoE layer.

    Attributes:
        name: of the module in the network.
        spatial_shape: rows and columns of its output grid.
        num_experts: X, experts of the new layer.
        num_selected: E, filters of the old one.
    """

    name: str
    spatial_shape: tuple[int, int]
    num_experts: int
    num_selected: int


@dataclass(frozen=True)
class ConversionPlan:
    """What a conversion changes, and what it leaves and why.

    Attributes:
        changes: in the order of the network's modules.
        left: reasons by the names of the convolutions that stay.
    """

    changes: tuple[Change, ...] = ()
    left: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """A line for each convolution."""
        lines = [
            f"{change.name}: {change.num_selected} of {change.num_experts} experts on {change.spatial_shape}"
            for change in self.changes
        ]
        return "\n".join([*lines, *(f"{name}: left, {reason}" for name, reason in self.left.items())])


def plan_conversion(
    model: nn.Module,
    *,
    example_input: torch.Tensor,
    kernel_size: int | tuple[int, int] | None = 3,
    num_experts: float = 2.0,
    names: str | None = None,
    predicate: Callable[[str, nn.Module], bool] | None = None,
) -> ConversionPlan:
    """Finds what `convert` would change, without changing anything.

    Args:
        model: is run once on the example, in evaluation mode, to find the grids.
        example_input: of the size the network is made for.
        kernel_size: convert convolutions of this size only; None for any odd one.
        num_experts: a fraction (2.0) is the ratio of experts to filters, an integer the number of experts.
        names: convert modules whose name matches this pattern only, as in `blocks.*.conv2`.
        predicate: convert a module only if this is true of its name and itself.
    """
    grids = _find_grids(model, example_input)
    aliases = _find_aliases(model)
    changes: list[Change] = []
    left: dict[str, str] = {}
    for name, module in model.named_modules():
        if isinstance(module, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Conv1d, nn.Conv3d)):
            left[name] = f"{type(module).__name__} has no SMoE counterpart"
        if not isinstance(module, (nn.Conv2d, GridConv2d)):
            continue
        reason = (
            _why_not_asked(name, module, kernel_size, names, predicate)
            or _why_not_possible(module)
            or aliases.get(name)
            or _why_no_grid(grids.get(module, []))
        )
        num_filters = module.weight.shape[0]
        wanted = num_experts if isinstance(num_experts, int) else round(num_experts * num_filters)
        if reason is None and wanted < num_filters:
            reason = f"{wanted} experts are fewer than its {num_filters} filters"
        if reason is None:
            changes.append(Change(name, grids[module][0], wanted, num_filters))
        else:
            left[name] = reason
    return ConversionPlan(tuple(changes), left)


def convert(
    model: nn.Module,
    *,
    example_input: torch.Tensor,
    kernel_size: int | tuple[int, int] | None = 3,
    num_experts: float = 2.0,
    names: str | None = None,
    predicate: Callable[[str, nn.Module], bool] | None = None,
    share_gates: bool = True,
    gate_group: Callable[[str], object] | None = None,
    gate_init: GateInit = "kaiming",
    correlation_length: float | None = None,
    prior: torch.Tensor | None = None,
    prior_strength: float = 2.0,
    start: Start = "random",
    order: Order | None = None,
    training: RoutingTraining | None = None,
    say: Callable[[str], None] | None = None,
) -> nn.Module:
    """A copy of the network with its convolutions replaced by SMoE layers of as many outputs.

    Stride, padding, padding mode and bias are kept. Convolutions that cannot be converted, or that were not asked for,
    stay as they are; `plan_conversion` and `say` tell which and why.

    Args:
        model: is left as it is.
        example_input: as for `plan_conversion`, like the next four.
        kernel_size: of the convolutions to convert.
        num_experts: ratio of experts to filters, or their number.
        names: pattern of the names to convert.
        predicate: further condition.
        share_gates: one gate for all layers of the same grid and numbers of experts.
        gate_group: layers share a gate only if this is equal for their names: apart in encoder and decoder, say.
        gate_init: start of the gates.
        correlation_length: of smooth gates, in pixels of their grid; see `TensorGate`.
        prior: map `(H, W)` of a fraction in [0, 1], such as land: the gates start with each share of the experts
            preferring its part. It is averaged to the grids of the layers.
        prior_strength: how far the prior lifts the scores, see `TensorGate.from_prior`; 2 overrules the random start.
        start: `random` experts, or `filters`: each filter becomes a few equal experts, of which the gate chooses one at
            each pixel. The converted network then computes what the model computed, and learns on from there.
        order: of the experts' outputs; `score` if None, but `index` for `start="filters"`, which needs it.
        training: how the routing learns.
        say: is told what was changed and what was left.

    Raises:
        ValueError: if nothing can be converted, with the reasons; or if options contradict each other.
    """
    if start == "filters" and order == "score":
        raise ValueError("start='filters' keeps the order of the filters: it needs order='index'")
    if start == "filters" and prior is not None:
        raise ValueError("start='filters' and a prior both decide where the gates start: give one of them")
    plan = plan_conversion(
        model,
        example_input=example_input,
        kernel_size=kernel_size,
        num_experts=num_experts,
        names=names,
        predicate=predicate,
    )
    if not plan.changes:
        raise ValueError(f"no convolution can be converted: {str(plan) or 'the model has none'}")
    converted = copy.deepcopy(model)
    gates: dict[object, TensorGate] = {}
    for change in plan.changes:
        old = converted.get_submodule(change.name)
        assert isinstance(old, (nn.Conv2d, GridConv2d))
        group = None if gate_group is None else gate_group(change.name)
        key = (change.spatial_shape, change.num_experts, change.num_selected, group) if share_gates else change.name
        if key not in gates:
            gates[key] = _make_gate(change, old.weight, gate_init, correlation_length, prior, prior_strength, start)
        new = _make_layer(change, old, gates[key], order or ("index" if start == "filters" else "score"), training)
        if start == "filters":
            _copy_filters(new, old, change)
        converted = _replace(converted, change.name, new.train(old.training))
    if say is not None:
        say(f"{len(plan.changes)} layers with {len(gates)} gates\n{plan}")
    return converted


def _find_grids(model: nn.Module, example_input: torch.Tensor) -> dict[nn.Module, list[tuple[int, int]]]:
    grids: dict[nn.Module, list[tuple[int, int]]] = defaultdict(list)

    def note(module: nn.Module, args: object, output: torch.Tensor) -> None:
        del args
        grid = (output.shape[-2], output.shape[-1])
        if grid not in grids[module]:
            grids[module].append(grid)

    was_training = {module: module.training for module in model.modules()}
    hooks = [
        module.register_forward_hook(note) for module in model.modules() if isinstance(module, (nn.Conv2d, GridConv2d))
    ]
    try:
        # In evaluation mode, so that the running means of a batch normalisation stay as they are.
        model.eval()
        with torch.no_grad():
            model(example_input)
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in was_training.items():
            module.training = mode
    return grids


def _find_aliases(model: nn.Module) -> dict[str, str]:
    """Convolutions that other parts of the network use too, by name, with the reason for leaving them."""
    holders: dict[int, list[str]] = defaultdict(list)
    for name, module in model.named_modules(remove_duplicate=False):
        for parameter_name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            holders[id(parameter)].append(f"{name}.{parameter_name}")
    aliases: dict[str, str] = {}
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            others = [other for other in holders[id(parameter)] if other.rpartition(".")[0] != name]
            if others:
                aliases[name] = f"it is tied to {', '.join(others)}"
    return aliases


def _why_not_asked(
    name: str,
    module: Convolution,
    kernel_size: int | tuple[int, int] | None,
    names: str | None,
    predicate: Callable[[str, nn.Module], bool] | None,
) -> str | None:
    wanted = (kernel_size, kernel_size) if isinstance(kernel_size, int) else kernel_size
    size = tuple(module.kernel_size)
    if wanted is not None and size != wanted:
        return f"its kernel is {size[0]} x {size[1]}"
    if names is not None and not fnmatch.fnmatchcase(name, names):
        return f"its name does not match {names!r}"
    if predicate is not None and not predicate(name, module):
        return "the predicate is false"
    return None


def _why_not_possible(module: Convolution) -> str | None:
    if isinstance(module, GridConv2d):
        return None
    if type(module) is not nn.Conv2d:
        return f"{type(module).__name__} may do more than a convolution"
    if module.groups != 1:
        return f"it has {module.groups} groups"
    if tuple(module.dilation) != (1, 1):
        return f"its dilation is {tuple(module.dilation)}"
    if any(size % 2 == 0 for size in module.kernel_size):
        return f"its kernel {tuple(module.kernel_size)} has no centre"
    if module.stride[0] != module.stride[1]:
        return f"its strides {tuple(module.stride)} differ"
    if module.padding_mode not in ("zeros", "circular"):
        return f"there is no padding mode {module.padding_mode!r}"
    kept = tuple((size - 1) // 2 for size in module.kernel_size)
    if module.padding != "same" and module.padding != kept:
        return f"its padding {module.padding} is not {kept}, which keeps the grid"
    return None


def _why_no_grid(grids: list[tuple[int, int]]) -> str | None:
    if not grids:
        return "the example input did not reach it"
    return f"it works on several grids, {', '.join(map(str, grids))}" if len(grids) > 1 else None


def _make_gate(
    change: Change,
    weight: torch.Tensor,
    init: GateInit,
    correlation_length: float | None,
    prior: torch.Tensor | None,
    prior_strength: float,
    start: Start,
) -> TensorGate:
    numbers = (change.num_experts, change.num_selected)
    options: dict[str, Any] = {"init": init, "correlation_length": correlation_length}
    if prior is not None:
        if not prior.is_floating_point() or prior.ndim != 2:
            raise ValueError(f"prior must be a map (H, W) of fractions, got {prior.dtype} of {tuple(prior.shape)}")
        averaged = F.adaptive_avg_pool2d(prior[None, None], change.spatial_shape)[0, 0]
        return TensorGate.from_prior(averaged, *numbers, prior_strength, **options).to(weight.device, weight.dtype)
    gate = TensorGate(*numbers, change.spatial_shape, **options, device=weight.device, dtype=weight.dtype)
    if start == "filters":
        _choose_one_for_each_filter(gate)
    return gate


def _shares(num_experts: int, num_filters: int) -> list[torch.Tensor]:
    """The experts that are made of each filter: near-equal numbers, in order."""
    return list(torch.tensor_split(torch.arange(num_experts), num_filters))


def _choose_one_for_each_filter(gate: TensorGate) -> None:
    """Makes the scores of one expert of each share positive at each pixel, and all others negative."""
    with torch.no_grad():
        size = gate.scores.abs()
        is_chosen = torch.zeros_like(size, dtype=torch.bool)
        for share in _shares(gate.num_experts, gate.num_selected):
            # The largest of the random scores decides, so that a smooth start gives smooth choices.
            best = gate.scores[share].argmax(dim=0, keepdim=True)
            is_chosen[share] = torch.zeros_like(size[share], dtype=torch.bool).scatter_(0, best, True)
        gate.scores.copy_(torch.where(is_chosen, size, -size))


def _make_layer(
    change: Change, old: Convolution, gate: TensorGate, order: Order, training: RoutingTraining | None
) -> SpatialMoE2d:
    padding_mode: PaddingMode = old.padding_mode  # type: ignore[assignment]
    stride = old.stride if isinstance(old.stride, int) else old.stride[0]
    kernel_rows, kernel_columns = old.kernel_size
    rule = RoutingTraining() if training is None else training
    return SpatialMoE2d(
        old.weight.shape[1],
        change.num_experts,
        change.num_selected,
        (kernel_rows, kernel_columns),
        stride=stride,
        padding_mode=padding_mode,
        gate=gate,
        order=order,
        bias=old.bias is not None,
        rc_loss=rule.rc_loss,
        rc_weight=rule.rc_weight,
        error_quantile=rule.error_quantile,
        damping=rule.damping,
        tolerance=rule.tolerance,
        damping_tolerance=rule.damping_tolerance,
        tolerance_unit=rule.tolerance_unit,
        device=old.weight.device,
        dtype=old.weight.dtype,
    )


def _copy_filters(new: SpatialMoE2d, old: Convolution, change: Change) -> None:
    with torch.no_grad():
        for number, share in enumerate(_shares(change.num_experts, change.num_selected)):
            new.weight[share] = old.weight[number]
        if new.bias is not None:
            assert old.bias is not None
            new.bias.copy_(old.bias)


def _replace(model: nn.Module, name: str, new: nn.Module) -> nn.Module:
    """The model with one module replaced; it is that module itself if it has no name."""
    if not name:
        return new
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, new)
    return model
