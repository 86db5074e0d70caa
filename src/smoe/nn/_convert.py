"""Replaces convolutions of any network by SMoE layers (paper sections 3.2 to 3.4)."""

from __future__ import annotations

import copy
import dataclasses
import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeGuard, cast, get_args

import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils._pytree import tree_leaves, tree_map_only

from smoe.nn._conversion_plan import (
    Change,
    ConversionPlan,
    ExampleInput,
    check_functions,
    filters_of,
    is_linear,
    is_weight_normed,
    make_layer,
    plan_conversion,
    requires_grad,
    run_example,
    show_name,
)
from smoe.nn._filter_bank import FilterBank, default_order, resolve_default_rule
from smoe.nn._gate import SpatialGate
from smoe.nn._gates import FactorisedGate, TensorGate
from smoe.nn._grid_layers import GridMoE, TokenMoE, fill_families
from smoe.nn._routed_layer import RoutedLayer
from smoe.options import BiasOwner, Order
from smoe.rules import Damping, Rule, StraightThrough

Start = Literal["random", "filters"]
# Less than this share of the multiply-adds is hardly a conversion.
_SMALL_SHARE = 0.05
MakeGate = Callable[[Change], SpatialGate]


def convert(
    model: nn.Module,
    *,
    example_input: ExampleInput,
    kernel_size: int | tuple[int, ...] | None = 3,
    num_experts: float = 2.0,
    names: str | None = None,
    predicate: Callable[[str, nn.Module], bool] | None = None,
    make_gate: MakeGate | None = None,
    start: Start | None = None,
    order: Order | None = None,
    bias: BiasOwner = "expert",
    local_affine: bool | None = None,
    rule: Rule | str | None = None,
    damping: Damping | str | float | None = None,
    linear: bool = False,
    notify: Callable[[str], None] | None = None,
    check: bool = True,
) -> nn.Module:
    """A copy of the network with its convolutions replaced by SMoE layers with as many outputs.

    Stride, padding, padding mode and bias are kept, and so are device, dtype and mode. Parameters that do not require
    gradients stay so; a gate requires none if none of the filters it serves does. Convolutions that cannot be
    converted, or that were not asked for, stay as they are; `plan_conversion` and `notify` tell which and why.

    Args:
        model: Network to convert; it is not changed.
        example_input: Input of the size the network is made for, as for `plan_conversion`.
        kernel_size: Size of the convolutions to convert; None for any size.
        num_experts: Ratio of experts to filters (2.0), or the number of experts (an integer).
        names: Pattern of the names of modules to convert, such as `blocks.*.conv2`.
        predicate: Further condition on the name and the module. If only a part can be converted, the layers nearest to
            the input and to the output gain most (docs/compatibility.md has the lines).
        make_gate: Makes the gate of a layer from its `Change`, with its name, numbers and grid, such as one that starts
            from a prior; layers that are given the same gate share it. None for `FactorisedGate`s that share the
            embedding of their grid, or for a `TensorGate` for all layers with one grid and the same numbers where the
            rule has no families.
        start: `random` experts, or `filters`: each filter becomes a family of equal experts, of which the gate selects
            one at each pixel. The converted network then computes what the model computed, and learns on from there.
            None for `filters` with families of experts, and otherwise `random`.
        order: Order of the experts' outputs, as for `SpatialMoE2d`; None for `families` with the default rule or with
            filters, and otherwise for the first of `score`, `index` and `families` that the rule works with.
        bias: Owner of the biases, where the convolution has them: `expert`, so that the routing decides the offset of a
            pixel too, or `slot`, one for each output channel.
        local_affine: Give each layer a learned factor and offset at each pixel and channel, as for `SpatialMoE2d`. None
            for True with the default rule.
        rule: How the gates learn, as for `SpatialMoE2d`; None for the default rule.
        damping: Damping of the experts' error, as for `SpatialMoE2d`.
        linear: Also convert linear layers over positions, as for `plan_conversion`.
        notify: Called with a report of what was changed and what was left.
        check: With `start="filters"`, run both networks on the example, in evaluation mode and with the same random
            numbers of PyTorch, and refuse a difference beyond rounding. False for a network that makes a large
            difference of a rounding error, as by a threshold.

    Raises:
        TypeError: If the model is not a network, or the example is a shape.
        ValueError: If nothing can be converted, with the reasons; if options contradict each other; if the network
            reaches a convolution in another way than by its name, so that the new layer would not be used; or if the
            converted network computes something else, with the name of the first layer that does.
    """
    if start not in (None, *get_args(Start)):
        raise ValueError(f"start must be one of {', '.join(get_args(Start))}, got {start!r}")
    if start == "filters" and order not in (None, "families"):
        raise ValueError(f"start='filters' makes a family of each filter: leave order at 'families', got {order!r}")
    check_functions(make_gate=make_gate, notify=notify)
    plan = plan_conversion(
        model,
        example_input=example_input,
        kernel_size=kernel_size,
        num_experts=num_experts,
        names=names,
        predicate=predicate,
        linear=linear,
    )
    rule = resolve_default_rule(rule, None, order)  # one rule for all layers
    if order is None:
        order = "families" if start == "filters" else default_order(rule)
    if order != "families" or make_gate is not None:
        plan = _without_groups(plan, model)
    if not plan.changes:
        num_layers = sum(isinstance(module, RoutedLayer) for module in model.modules())
        found = "the model has none"
        if num_layers:
            found += f", but {num_layers} SMoE layers: it was converted already"
        hints = [
            "kernel_size=None converts kernels of any size" * ("its kernel is " in plan.reasons),
            "linear=True converts linear layers over positions" * (not linear and any(map(is_linear, model.modules()))),
        ]
        raise ValueError("; ".join(filter(None, [f"no convolution can be converted: {plan.reasons or found}", *hints])))
    if start is None:
        start = "filters" if order == "families" and make_gate is None else "random"
    is_factorised = order == "families" and default_order(rule) == "families"
    try:
        converted = copy.deepcopy(model)
    except Exception as error:
        raise ValueError(
            f"the network cannot be copied: {_first_line(error)}; it may keep what it computed: convert it before it "
            "is used"
        ) from error
    kept: dict[object, Any] = {}  # gates of tables, and embeddings, that layers share

    def new_gate(change: Change, weight: torch.Tensor) -> SpatialGate:
        if make_gate is not None:
            gate = make_gate(change)
            if not isinstance(gate, SpatialGate):
                raise TypeError(f"make_gate must return a gate, got {type(gate).__name__} for {show_name(change.name)}")
            if start == "filters" and gate.order != "families":
                raise ValueError(f"start='filters' needs gates of the order 'families', make_gate gave {gate.order!r}")
            return gate.to(weight.device, weight.dtype)
        numbers = (change.num_experts, change.num_selected, change.spatial_shape)
        options: dict[str, Any] = {"order": order, "device": weight.device, "dtype": weight.dtype}
        key = (numbers[2] if is_factorised else numbers, weight.device, weight.dtype)
        if is_factorised:
            gate = FactorisedGate(*numbers, embedding=kept.get(key), **options)
            kept[key] = gate.embedding
            return gate
        if key not in kept:
            kept[key] = TensorGate(*numbers, **options)
        return kept[key]

    layers = [(change, converted.get_submodule(change.name)) for change in plan.changes]
    gates: dict[SpatialGate, bool] = {}  # whether a layer that learns has it
    for change, old in layers:
        gate = new_gate(change, filters_of(old)[0])
        if gate not in gates and not requires_grad(old):
            gate.requires_grad_(False)
        gates[gate] = gates.get(gate, False) or requires_grad(old)
        if local_affine is None:
            local_affine = isinstance(rule, StraightThrough)
        layer_options = {"bias": bias, "local_affine": local_affine, "rule": rule, "damping": damping}
        new = make_layer(old, change.num_experts, change.num_selected, gate, layer_options)
        if start == "filters":
            fill_families(new, *filters_of(old))
        if is_weight_normed(old):
            parametrizations.weight_norm(new, "weight")
        converted = _replace(converted, old, new.train(old.training))
    # A gate, or its embedding, may be shared by layers that learn and layers that do not.
    for gate, learns in gates.items():
        if learns:
            gate.requires_grad_(True)
    _check_result(model, converted, example_input, plan.changes, is_same=check and start == "filters")
    for layer in converted.modules():
        if isinstance(layer, FilterBank) and layer._input_mean is not None:
            layer._input_mean.restart()  # that of the example, which may be zeros
    if plan.multiply_adds and plan.share < _SMALL_SHARE and names is None and predicate is None:
        warnings.warn(
            f"only {plan.share:.1%} of the network's multiply-adds are in layers that were converted; "
            "smoe.plan_conversion says what was left and why, and kernel_size=None converts kernels of any size",
            stacklevel=2,
        )
    if notify is not None:
        notify(f"{len(plan.changes)} layers with {len(gates)} gates\n{plan}")
    return converted


def load_plain_state_dict(converted: nn.Module, state_dict: Mapping[str, torch.Tensor]) -> None:
    """Loads the weights of the plain network into a network that was converted from it.

    Each filter of a convolution goes to all candidates of its channel, so that the converted network computes what the
    plain one computes; gates stay as they are. To convert after loading gives the same.

    Args:
        converted: Network of `smoe.convert`, with families of experts and biases of experts, the default.
        state_dict: State of the plain network.

    Raises:
        TypeError: If the state is not a mapping.
        ValueError: If a layer is not a convolution with families, or the state is that of a converted network.
    """
    if not isinstance(state_dict, Mapping):
        raise TypeError(f"state_dict must be that of a network, got {state_dict!r}: give torch.load(path)")
    state, whole = dict(state_dict), converted.state_dict()
    for name, layer in converted.named_modules(remove_duplicate=False):
        if not isinstance(layer, RoutedLayer):
            continue
        gate = layer.gate
        if not isinstance(layer, GridMoE) or gate.order != "families" or gate.num_experts % gate.num_selected:
            raise ValueError(
                f"{show_name(name)}, a {type(layer).__name__} in the order {gate.order!r}, is no convolution "
                "with families: load the plain network before smoe.convert"
            )
        prefix = f"{name}." if name else ""
        num_candidates = gate.num_experts // gate.num_selected
        for key in (key.removeprefix(prefix) for key in whole if key.startswith(prefix)):
            is_filter = key == "weight" or key.startswith("parametrizations.weight.")
            if not is_filter and key != "bias":
                if f"{prefix}{key}" in state_dict:
                    raise ValueError(
                        f"{prefix}{key} is that of a converted network: load it by converted.load_state_dict(...)"
                    )
                state[f"{prefix}{key}"] = whole[f"{prefix}{key}"]
                continue
            plain = state.get(f"{prefix}{key}")
            if plain is None or (key == "bias" and layer._bias_owner != "expert"):
                continue
            if key == "weight" and layer.transposed:
                plain = plain.unflatten(0, (layer.groups, -1)).transpose(1, 2).flatten(0, 1)
            if is_filter and plain.ndim == 2:  # of a linear layer
                plain = plain[:, :, None]
            state[f"{prefix}{key}"] = plain.repeat_interleave(num_candidates, dim=0)
    converted.load_state_dict(state)


def _without_groups(plan: ConversionPlan, model: nn.Module) -> ConversionPlan:
    """The plan without convolutions of several groups, whose channels only families keep in their groups."""
    grouped = [change for change in plan.changes if getattr(model.get_submodule(change.name), "groups", 1) > 1]
    changes = tuple(change for change in plan.changes if change not in grouped)
    left = dict.fromkeys((change.name for change in grouped), "its groups need the order 'families'")
    return dataclasses.replace(plan, changes=changes, left={**plan.left, **left})


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """The model with one module replaced, under all its names; it is that module itself if it has no name."""
    if model is old:
        return new
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is old:
                setattr(parent, name, new)
                if isinstance(parent, nn.TransformerEncoderLayer):
                    parent.activation_relu_or_gelu = 0  # its fused pass would read the weights and call no layer
    return model


def _check_result(
    model: nn.Module, converted: nn.Module, example_input: ExampleInput, changes: tuple[Change, ...], *, is_same: bool
) -> None:
    """Raises a ValueError if a new layer is not reached by the example, or if the network computes something else."""
    # The size of each output, in the order of the calls, tells where two passes part.
    sizes: dict[nn.Module, list[tuple[str, float]]] = {model: [], converted: []}
    differences = [0.0]

    def hooks(network: nn.Module) -> dict[nn.Module, Callable[..., None]]:
        found: dict[nn.Module, Callable[..., None]] = {}
        for name in (change.name for change in changes):

            def note(module: nn.Module, args: Any, kwargs: Any, output: torch.Tensor, name: str = name) -> None:
                if network is model:
                    new = cast(FilterBank, converted.get_submodule(name))
                    differences.append(_check_layer(name, new, module, args, kwargs, output))
                elif isinstance(module, TokenMoE):
                    module.positions = tuple(output.shape[1:-1])
                size = float("nan") if output.is_meta else float(output.double().norm())
                sizes[network].append((name, size))

            found[network.get_submodule(name)] = note
        return found

    expected = run_example(model, example_input, hooks(model)) if is_same else None
    try:
        output = run_example(converted, example_input, hooks(converted))
    except Exception as error:
        last = show_name(sizes[converted][-1][0] if sizes[converted] else changes[0].name)
        raise ValueError(
            f"the converted network fails on the example, near {last}, where the network runs: {_first_line(error)}; "
            "it may use more of a convolution than its call, such as its weights; leave that out by `predicate`"
        ) from error
    before, after = (Counter(name for name, _ in sizes[network]) for network in (model, converted))
    missed = [show_name(change.name) for change in changes if after[change.name] < max(1, before[change.name])]
    if missed:
        raise ValueError(
            f"the network reaches {', '.join(missed)} in another way than by name, such as a list that is no "
            "nn.ModuleList: a new layer would be passed by; leave these out by `predicate`"
        )
    if not is_same:
        return
    again: list[Any] = []  # the outputs with other random numbers
    for place, (old, new) in enumerate(zip(tree_leaves(expected), tree_leaves(output), strict=False)):
        if not (isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor) and old.is_floating_point()):
            continue
        difference, size = _compare(old, new)
        # What follows may enlarge the rounding errors of a layer.
        allowed = max(math.sqrt(_rounding(old)), 100.0 * max(differences)) * size + torch.finfo(old.dtype).tiny
        if difference <= allowed:
            continue
        if not again:
            with torch.random.fork_rng():
                torch.manual_seed(1)
                again = tree_leaves(run_example(model, example_input))
        if _compare(old, again[place])[0] > allowed:  # random numbers may lie otherwise in memory, so as other ones
            warnings.warn("the network is random in evaluation mode too: only its layers were compared", stacklevel=3)
            continue
        calls = zip(sizes[model], sizes[converted], strict=False)
        name = next((was[0] for was, now in calls if not math.isclose(was[1], now[1], rel_tol=1e-3)), changes[-1].name)
        raise ValueError(
            f"the converted network computes something else, first at {show_name(name)} or after it, though each new "
            "layer alone computes the same: the network may read a convolution's weights, or be random; leave that out "
            "by `predicate`, or give check=False"
        )


def _check_layer(name: str, new: FilterBank, old: nn.Module, args: Any, kwargs: Any, expected: torch.Tensor) -> float:
    """The largest difference between a new layer and its convolution, in evaluation and in training."""
    weight = filters_of(old)[0].detach()
    largest = max((float(part.abs().max()) for part in (*args, *kwargs.values()) if _is_comparable(part)), default=0.0)
    # A sum that nearly cancels has the rounding errors of its parts.
    noise = 0.0 if weight.is_meta else largest * float(weight.flatten(1).abs().sum(dim=1).max())
    noise = math.inf if math.isnan(noise) else noise
    # Not in inference mode, in which a network may call its layers: nothing of it can be differentiated.
    with torch.inference_mode(mode=False):
        layer = copy.deepcopy(new)  # a copy, because a pass in training leaves traces
        args = tree_map_only(torch.Tensor, lambda part: part.clone() if part.is_inference() else part, args)
    worst = 0.0
    # In training, rules without families may try experts of other filters.
    for is_training in (False, True) if new.gate.order == "families" else (False,):
        no_inference = torch.inference_mode(mode=False)
        devices = [weight.device] if weight.is_cuda else []
        with no_inference, torch.set_grad_enabled(is_training), torch.random.fork_rng(devices):
            found = layer.train(is_training)(*args, **kwargs).detach()
        difference, size = _compare(expected, found)
        eps = _rounding(expected)
        allowed = math.sqrt(eps) * size + 16.0 * min(eps, 2.0**-11) * noise + torch.finfo(expected.dtype).tiny
        if not difference <= allowed:
            raise ValueError(
                f"{show_name(name)}, as a {type(new).__name__}, computes something else than the {type(old).__name__}: "
                f"outputs as large as {size:.3g} differ by {difference:.3g}; leave it out by `predicate`"
            )
        worst = max(worst, difference / (size or 1.0))
    return worst


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _is_comparable(part: object) -> TypeGuard[torch.Tensor]:
    return isinstance(part, torch.Tensor) and part.is_floating_point() and not part.is_meta and part.numel() > 0


def _rounding(output: torch.Tensor) -> float:
    """Relative rounding error of an output; convolutions of a GPU may round to 10 bits."""
    return max(torch.finfo(output.dtype).eps, 0.0 if output.device.type == "cpu" else 2.0**-11)


def _compare(expected: torch.Tensor, found: torch.Tensor) -> tuple[float, float]:
    """The largest difference of two outputs, and the largest finite number of the first."""
    if not _is_comparable(expected):
        return 0.0, 0.0
    if expected.shape != found.shape:
        return math.inf, 0.0
    is_equal = (expected == found) | (expected.isnan() & found.isnan())
    difference = torch.where(is_equal, 0.0, (found.double() - expected.double()).abs())
    return float(difference.max()), float(expected.nan_to_num(0.0, 0.0, 0.0).abs().max())
