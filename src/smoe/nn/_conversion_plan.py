"""The modules that `convert` can replace: their filters, their grids, and the SMoE layer in their place.

Graph convolutions of torch_geometric are recognised by name, so that it need not be installed.
"""

from __future__ import annotations

import fnmatch
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, cast

import torch
from torch import nn
from torch.nn.modules.conv import _ConvTransposeNd
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_map

from smoe._notebook import html_table
from smoe.nn._filter_bank import FilterBank
from smoe.nn._gate import SpatialGate
from smoe.nn._graph_layer import GraphMoE
from smoe.nn._grid_layers import (
    GridConv2d,
    SpatialMoE1d,
    SpatialMoE2d,
    SpatialMoE3d,
    TokenMoE,
    conv_arguments,
    conv_channels,
    conv_filters,
)
from smoe.nn._routed_layer import RoutedLayer

GRID_CONVOLUTIONS = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    GridConv2d,
)
_KINDS = {1: SpatialMoE1d, 2: SpatialMoE2d, 3: SpatialMoE3d}
GRAPH_CONVOLUTIONS = ("GCNConv", "SAGEConv", "GraphConv")
_NO_POSITIONS = "its input has no positions: it is not (B, *positions, C)"
_NOT_NODES = "its rows are not the nodes"
_NOT_REACHED = "the example input did not reach it"
_NOT_BATCH_FIRST = "its input is (positions, B, C): make the transformer with batch_first=True"
_POOLED = "its nodes are those that a pooling chose"


def is_graph_convolution(module: nn.Module) -> bool:
    """Whether a module is a graph convolution of torch_geometric that is one linear map of a neighbourhood."""
    kind = type(module)
    return kind.__module__.startswith("torch_geometric.nn.conv.") and kind.__name__ in GRAPH_CONVOLUTIONS


def is_linear(module: nn.Module) -> bool:
    """Whether a module is a linear layer, of torch or of torch_geometric."""
    kind = type(module)
    is_of_graphs = kind.__module__ == "torch_geometric.nn.dense.linear" and kind.__name__ == "Linear"
    return isinstance(module, nn.Linear) or is_of_graphs


def is_convertible(module: nn.Module) -> bool:
    return isinstance(module, GRID_CONVOLUTIONS) or is_linear(module) or is_graph_convolution(module)


def linear_maps_of_nodes(model: nn.Module) -> dict[nn.Module, nn.Module]:
    """The graph convolution that has no counterpart itself, by each linear layer in it, as those of GIN and GAT."""
    others = [module for module in model.modules() if _is_other_graph_convolution(module)]
    return {part: other for other in others for part in other.modules() if is_linear(part)}


def kernel_of(module: nn.Module) -> tuple[int, ...] | None:
    """Sizes of the kernel; None for what has none."""
    return tuple(module.kernel_size) if isinstance(module, GRID_CONVOLUTIONS) else None


def grid_of(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object, num_nodes: int | None = None
) -> tuple[int, ...] | str:
    """Grid of the output of a call, or its number of nodes; if a layer in its place could not take the call, why."""
    if not isinstance(output, torch.Tensor):
        return f"it returns a {type(output).__name__}"
    kernel = kernel_of(module)
    if is_linear(module):
        if output.ndim < 3:
            return _NO_POSITIONS if num_nodes is None else (num_nodes,) if len(output) == num_nodes else _NOT_NODES
        grid = (output.shape[1:-1].numel(),)
    elif kernel is None:
        names = ("x", "edge_index", "size" if type(module).__name__ == "SAGEConv" else "edge_weight", "size")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        x, edges = given["x"], given["edge_index"]
        is_dense = isinstance(edges, torch.Tensor) and edges.layout is torch.strided
        if not isinstance(x, torch.Tensor) or x.ndim not in (2, 3) or not is_dense:
            return "its arguments are not tensors x (N, C) and edge_index (2, M)"
        if given.get("size") is not None or "size" in kwargs:
            return "it is given a size"
        grid = (output.shape[-2],)
    elif len(args) + len(kwargs) > 1:
        return "it is given an output size"
    else:
        grid = tuple(output.shape[-len(kernel) :])
    if math.prod(grid) > 1:
        return grid
    return f"its output grid {grid} is empty" if 0 in grid else "its output has one place only"


def filters_of(module: nn.Module) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Filters `(O, C / groups, *kernel)`, or `(O, C')` of a position or a node's neighbourhood, and the bias `(O,)`."""
    if isinstance(module, GRID_CONVOLUTIONS):
        return conv_filters(module), module.bias
    part = cast(Any, module)
    if is_linear(module):
        return part.weight[:, :, None], part.bias
    if type(module).__name__ == "GCNConv":
        return part.lin.weight, part.bias
    if type(module).__name__ == "SAGEConv":
        blocks = [part.lin_r.weight, part.lin_l.weight] if part.root_weight else [part.lin_l.weight]
        return torch.cat(blocks, dim=1), part.lin_l.bias
    return torch.cat([part.lin_root.weight, part.lin_rel.weight], dim=1), part.lin_rel.bias


def why_not_reached(grids: Sequence[tuple[int, ...] | str]) -> str | None:
    """Why the calls of a module, as `grid_of` describes them, cannot be those of one layer; None if they can."""
    if not grids:
        return _NOT_REACHED
    reason = next((grid for grid in grids if isinstance(grid, str)), None)
    if reason is None and len(grids) > 1:
        return f"it works on several grids, {', '.join(map(str, grids))}"
    return reason


def requires_grad(module: nn.Module) -> bool:
    return filters_of(module)[0].requires_grad


def why_not_possible(module: nn.Module) -> str | None:
    """Why a module cannot become an SMoE layer; None if it can."""
    if any(is_lazy(parameter) for parameter in module.parameters()):
        return "its parameters are not initialised"
    reason = _why_no_graph_layer(module) if is_graph_convolution(module) else None
    if reason is not None:
        return reason
    weight = filters_of(module)[0] if is_graph_convolution(module) else cast(torch.Tensor, module.weight)
    if not is_weight_normed(module) and type(weight) not in (torch.Tensor, nn.Parameter):
        return f"its filters are a {type(weight).__name__}"
    if not weight.is_floating_point():
        return f"its filters are {weight.dtype}, not floating-point"
    return None if weight.numel() > 0 else f"its filters are empty, {tuple(weight.shape)}"


def is_weight_normed(module: nn.Module) -> bool:
    """Whether `torch.nn.utils.parametrizations.weight_norm`, of each filter, is all that parametrises a module."""
    if not parametrize.is_parametrized(module):
        return False
    found = cast(Any, module).parametrizations
    return (
        set(found) == {"weight"}
        and [type(part).__name__ for part in found["weight"]] == ["_WeightNorm"]
        and (found["weight"][0].dim == 0 and not isinstance(module, _ConvTransposeNd))
    )


# What a graph convolution must be made with, by its name; other values compute something else.
_PLAIN_GRAPH_OPTIONS: dict[str, dict[str, tuple[object, ...]]] = {
    "GCNConv": {"add_self_loops": (True,), "normalize": (True,), "aggr": ("add", "sum")},
    "SAGEConv": {"normalize": (False,), "project": (False,)},
    "GraphConv": {},
}
_AGGREGATIONS = {"mean": "mean", "add": "sum", "sum": "sum"}


def _aggregation(part: Any) -> Any:
    if type(part).__name__ != "GCNConv":
        return _AGGREGATIONS[part.aggr]
    return "gcn_improved" if part.improved else "gcn"


def _why_no_graph_layer(module: nn.Module) -> str | None:
    part, name = cast(Any, module), type(module).__name__
    for option, values in _PLAIN_GRAPH_OPTIONS[name].items():
        if getattr(part, option) not in values:
            return f"its {option} is {getattr(part, option)}"
    if part.flow != "source_to_target":
        return f"its flow is {part.flow!r}"
    if not isinstance(part.in_channels, int):
        return f"it has nodes of two kinds, with {part.in_channels} channels"
    if name != "GCNConv" and str(part.aggr) not in _AGGREGATIONS:
        return f"it aggregates by {part.aggr!r}; mean and sum are linear"
    return None


def make_layer(
    module: nn.Module, num_experts: int, num_selected: int, gate: SpatialGate, options: dict[str, Any]
) -> FilterBank:
    """An SMoE layer with as many outputs as the module, with experts that are yet to be filled."""
    weight, bias = filters_of(module)
    options = {**options, "gate": gate, "device": weight.device, "dtype": weight.dtype}
    if bias is None:
        options["bias"] = False
    numbers = (num_experts, num_selected)
    layer: FilterBank
    if is_linear(module):
        layer = TokenMoE.from_experts(weight.shape[1], *numbers, 1, **options)
    elif isinstance(module, GRID_CONVOLUTIONS):
        kind = _KINDS[len(module.kernel_size)]
        grid_options = {**conv_arguments(module), **options}
        layer = kind.from_experts(conv_channels(module), *numbers, module.kernel_size, **grid_options)
    else:
        part, name = cast(Any, module), type(module).__name__
        root = name == "GraphConv" or (name == "SAGEConv" and part.root_weight)
        layer = GraphMoE.from_experts(
            weight.shape[1] // (1 + root),
            *numbers,
            aggregation=_aggregation(part),
            root=root,
            **options,
        )
    layer.weight.requires_grad_(requires_grad(module))
    if layer.bias is not None and bias is not None:
        layer.bias.requires_grad_(bias.requires_grad)
    return layer


ExampleInput = torch.Tensor | tuple[Any, ...] | Mapping[str, Any]


@dataclass(frozen=True)
class Change:
    """A convolution that becomes an SMoE layer; `make_gate` of `convert` is called with it."""

    name: str
    spatial_shape: tuple[int, ...]  # of the output
    num_experts: int
    num_selected: int  # as many as the convolution has filters
    num_weights: int = 0  # of the convolution
    multiply_adds: tuple[int, int] = (0, 0)  # of a pass of the example, before and after
    step_ms: tuple[float, float] = (0.0, 0.0)  # of a training step on one core, before and after


@dataclass(frozen=True)
class ConversionPlan:
    """What a conversion changes, and what it leaves and why.

    Attributes:
        changes: Changes in the order of the network's modules.
        left: For each convolution that stays, by name, the reason.
        num_parameters: Parameters of the network before.
        multiply_adds: Multiply-adds of all its convolutions and linear layers in a pass of the example, before.
        step_ms: Expected milliseconds of a training step on one core, before.
    """

    changes: tuple[Change, ...] = ()
    left: dict[str, str] = field(default_factory=dict)
    num_parameters: int = 0
    multiply_adds: int = 0
    step_ms: float = 0.0

    @property
    def share(self) -> float:
        """The share of the multiply-adds that belongs to layers that are converted, in [0, 1]."""
        return sum(change.multiply_adds[0] for change in self.changes) / max(self.multiply_adds, 1)

    @property
    def price(self) -> float:
        """How many times as long a training step on one core is expected to take, by times of `smoe bench layer`."""
        extra = sum(change.step_ms[1] - change.step_ms[0] for change in self.changes)
        return 1.0 + extra / self.step_ms if self.step_ms else 1.0

    @property
    def reasons(self) -> str:
        return "\n".join(f"{show_name(name)}: left, {reason}" for name, reason in self.left.items())

    @property
    def summary(self) -> str:
        """How much is converted, and what it costs."""
        new = sum(round(change.num_weights * (change.num_experts / change.num_selected - 1)) for change in self.changes)
        after = self.multiply_adds + sum(change.multiply_adds[1] - change.multiply_adds[0] for change in self.changes)
        return (
            f"{len(self.changes)} of {len(self.changes) + len(self.left)} layers, with {self.share:.0%} of the "
            f"multiply-adds; parameters {self.num_parameters:,} -> {self.num_parameters + new:,} without gates, "
            f"multiply-adds of a forward pass {self.multiply_adds:,} -> {after:,}; a training step is expected to take "
            f"{self.price:.1f} times as long"
        )

    def __str__(self) -> str:
        """A line for each convolution, and a summary."""
        lines = [f"{name}: {what} on {grid}" for name, what, grid in self._rows]
        return "\n".join([*lines, *filter(None, [self.reasons]), *([self.summary] if self.changes else [])])

    @property
    def _rows(self) -> list[tuple[str, str, object]]:
        return [
            (show_name(one.name), f"{one.num_selected} of {one.num_experts} experts", one.spatial_shape)
            for one in self.changes
        ]

    def _repr_html_(self) -> str:
        left = [(show_name(name), "stays", reason) for name, reason in self.left.items()]
        return html_table(("module", "becomes", "grid, or why not"), [*self._rows, *left])


def plan_conversion(
    model: nn.Module,
    *,
    example_input: ExampleInput,
    kernel_size: int | tuple[int, ...] | None = 3,
    num_experts: float = 2.0,
    names: str | None = None,
    predicate: Callable[[str, nn.Module], bool] | None = None,
    linear: bool = False,
) -> ConversionPlan:
    """Finds what `convert` would change, without changing anything.

    Args:
        model: Network to convert. It is run once on the example, in evaluation mode, to find the grids.
        example_input: Input of the size the network is made for. A tuple holds several positional arguments of its
            forward, a dictionary keyword arguments.
        kernel_size: Size of the convolutions to convert, along all axes or for each of them; None for any size. Graph
            convolutions have none and are always converted.
        num_experts: A fraction (2.0) is the ratio of experts to filters, an integer the number of experts.
        names: Pattern of the names of modules to convert, such as `blocks.*.conv2`.
        predicate: Condition on the name and the module.
        linear: Also convert linear layers over positions `(B, *positions, C)`, such as those of a transformer, whose
            sequences must then be as long as the example's.

    Raises:
        TypeError: If the model is not a network, or the example is a shape.
        ValueError: If `num_experts` is neither a ratio nor a number of experts, or 1.0.
    """
    check_model(model)
    _check_num_experts(num_experts)
    sizes = kernel_size if isinstance(kernel_size, (tuple, list)) else (1 if kernel_size is None else kernel_size,)
    if not all(isinstance(size, Integral) and size > 0 for size in sizes):
        raise ValueError(f"kernel_size must be a number, one for each axis, or None for any, got {kernel_size!r}")
    check_functions(predicate=predicate)
    if not (names is None or isinstance(names, str)):
        raise ValueError(f"names must be one pattern such as 'blocks.*', got {names!r}: a predicate can take several")
    calls = _find_calls(model, example_input)
    ties, parts = _find_ties(model), _find_parts_of_layers(model)
    inner = _parts_of_graph_convolutions(model)
    pooled = _find_pooled(model, calls)
    changes: list[Change] = []
    left: dict[str, str] = {}
    for name, module in model.named_modules():
        if not is_convertible(module) or (is_linear(module) and (not linear or module in inner)):
            if _is_other_graph_convolution(module) and not linear:
                left[name] = f"{type(module).__name__} has no SMoE counterpart; linear=True takes its maps of nodes"
            elif isinstance(module, torch.jit.ScriptModule) and module.original_name.startswith("Conv"):
                left[name] = "torch.jit has compiled it; convert the network before"
            elif ".quantized." in type(module).__module__ and "scale" in vars(module):
                left[name] = "it is quantised; convert the network before"
            continue
        num_filters = len(filters_of(module)[0]) if why_not_possible(module) is None else 1
        num_wanted = int(num_experts) if isinstance(num_experts, Integral) else round(num_experts * num_filters)
        call = calls[module]
        reason = (
            _why_not_asked(name, module, kernel_size, names, predicate)
            or parts.get(module)
            or _why_not_plain(module)
            or why_not_possible(module)
            or ties.get(module)
            or pooled.get(module)
            or why_not_reached(call.grids)
            or _why_no_choice(num_wanted, num_filters, getattr(module, "groups", 1))
        )
        if reason is None:
            factor = 1.0 if is_by_kernels(module) else num_wanted / num_filters
            costs = (call.multiply_adds, round(factor * call.multiply_adds))
            times = (call.step_ms(), call.step_ms(factor) + call.extra_ms(factor))
            weights = filters_of(module)[0].numel()
            changes.append(Change(name, cast(Any, call.grids[0]), num_wanted, num_filters, weights, costs, times))
        else:
            left[name] = reason
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    # A normalisation or an activation takes about as long as a small convolution.
    others = [module for module in model.modules() if not (any(module.children()) or is_convertible(module))]
    idle = (nn.Identity, nn.modules.dropout._DropoutNd, RoutedLayer, SpatialGate)
    step_ms = 0.25 * sum(not isinstance(module, idle) for module in others)
    step_ms += sum(call.step_ms() for call in calls.values())
    total = sum(call.multiply_adds for call in calls.values())
    return ConversionPlan(tuple(changes), left, num_parameters, total, step_ms)


def show_name(name: str) -> str:
    return name or "the model itself"


def _parts_of_graph_convolutions(model: nn.Module) -> set[nn.Module]:
    whole = [module for module in model.modules() if is_graph_convolution(module)]
    return {part for module in whole for part in module.modules() if part is not module}


def _is_other_graph_convolution(module: nn.Module) -> bool:
    kinds = type(module).__mro__
    return any(kind.__module__.startswith("torch_geometric.") and kind.__name__ == "MessagePassing" for kind in kinds)


@dataclass
class _Calls:
    """Output grids of a module, each once, or why a call has none; and what all calls cost."""

    grids: list[tuple[int, ...] | str] = field(default_factory=list)
    num_calls: int = 0
    num_outputs: int = 0
    multiply_adds: int = 0

    # Times of the default layer and of nn.Conv2d in paper/results/bench/layer.md, as lines: those of a call, of an
    # output, and of a multiply-add forward and backward.

    def step_ms(self, candidates: float = 1.0) -> float:
        """Expected time of a convolution in a training step, with some candidates of each filter."""
        return self.num_calls * 0.35 + candidates * (4e-6 * self.num_outputs + 5.9e-8 * self.multiply_adds)

    def extra_ms(self, candidates: float) -> float:
        """Expected time that the layer in its place takes beyond that."""
        return self.num_calls * 0.4 + candidates * 8e-6 * self.num_outputs + 3.5e-9 * self.multiply_adds


def _find_calls(model: nn.Module, example_input: ExampleInput) -> dict[nn.Module, _Calls]:
    calls: dict[nn.Module, _Calls] = defaultdict(_Calls)
    graphs, num_nodes = linear_maps_of_nodes(model), dict[nn.Module, int]()

    def note_nodes(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = args[0] if args else kwargs.get("x")
        num_nodes[module] = x.shape[-2] if isinstance(x, torch.Tensor) else -1

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object) -> None:
        grid, call = grid_of(module, args, kwargs, output, num_nodes.get(graphs.get(module, model))), calls[module]
        if grid not in call.grids:
            call.grids.append(grid)
        if isinstance(output, torch.Tensor) and why_not_possible(module) is None:
            weight, _ = filters_of(module)
            # A tap of a transposed convolution belongs to a pixel of the input.
            is_transposed = isinstance(module, _ConvTransposeNd)
            pixels = output.numel() // len(weight)
            if is_transposed and args:
                pixels = args[0].numel() // module.in_channels
            call.num_calls += 1
            call.num_outputs += output.numel()
            call.multiply_adds += pixels * weight.numel()

    handles = [graph.register_forward_pre_hook(note_nodes, with_kwargs=True) for graph in set(graphs.values())]
    try:
        watched = set(filter(is_convertible, model.modules())) - _parts_of_graph_convolutions(model)
        run_example(model, example_input, dict.fromkeys(watched, note))
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _find_pooled(model: nn.Module, calls: Mapping[nn.Module, _Calls]) -> dict[nn.Module, str]:
    """Modules on nodes that a pooling of torch_geometric chose, in each sample others; the reason to leave them."""
    if not any(type(module).__module__.startswith("torch_geometric.nn.pool.") for module in model.modules()):
        return {}
    on_nodes = [*filter(is_graph_convolution, model.modules()), *linear_maps_of_nodes(model)]
    grids = {module: calls[module].grids for module in on_nodes}
    largest = max((grid for found in grids.values() for grid in found if not isinstance(grid, str)), default=())
    return {module: _POOLED for module, found in grids.items() if any(grid != largest for grid in found)}


def is_by_kernels(module: nn.Module) -> bool:
    """Whether the C++ kernels, whose cost follows the selected experts, serve the layer in place of a module."""
    if not isinstance(module, GRID_CONVOLUTIONS):
        return True
    return _KINDS[len(module.kernel_size)]._conv_options(module.kernel_size, **conv_arguments(module))[2]


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Puts a model into evaluation mode; afterwards every module is in its own mode again."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
    except NotImplementedError as error:
        raise TypeError("model was exported, which fixes its layers: convert the network before") from error
    try:
        yield
    finally:
        for module, was_training in modes:
            module.training = was_training


def run_example(
    model: nn.Module, example_input: ExampleInput, hooks: Mapping[nn.Module, Callable[..., None]] | None = None
) -> object:
    """Runs the network once in evaluation mode, without gradients, and returns its output.

    The network is left in the mode it was in, and so are the example and the random number generators.
    """
    _check_example(example_input)
    handles = [
        module.register_forward_hook(hook, with_kwargs=True)  # type: ignore[arg-type]
        for module, hook in (hooks or {}).items()
    ]
    # A network may work on its input in place.
    example = tree_map(lambda part: part.clone() if isinstance(part, torch.Tensor) else part, example_input)
    devices = {parameter.device for parameter in model.parameters() if parameter.device.type == "cuda"}
    try:
        # In evaluation mode, so that the running means of a batch normalisation stay as they are.
        # Parts that torch.compile has compiled run as they are written, for the sake of the hooks.
        with (
            evaluation_mode(model),
            torch.no_grad(),
            torch.random.fork_rng(list(devices)),
            # Last: it counts from when it is made, and nothing would undo it if another of these failed.
            torch.compiler.set_stance("force_eager"),
        ):
            if isinstance(example, Mapping):
                return model(**example)
            return model(*example) if isinstance(example, tuple) else model(example)
    except Exception as error:
        error.add_note(f"the network was run on example_input, {tree_map(_show, example_input)}")
        raise
    finally:
        for handle in handles:
            handle.remove()


def _show(part: object) -> str:
    return f"{part.dtype} {tuple(part.shape)}" if isinstance(part, torch.Tensor) else repr(part)


def check_functions(**given: object) -> None:
    for name, function in given.items():
        if not (function is None or callable(function)):
            raise TypeError(f"{name} must be a function or None, got {function!r}")


def check_model(model: object) -> None:
    if isinstance(model, type):
        raise TypeError(f"model must be a network, got the class {model.__name__}: give {model.__name__}(...)")
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule) or hasattr(model, "_orig_mod"):
        raise TypeError("model was compiled, which fixes its layers: convert the network before it is compiled")


def _check_example(example_input: object) -> None:
    if isinstance(example_input, (tuple, list)) and example_input and all(isinstance(n, int) for n in example_input):
        shape = tuple(example_input)
        raise TypeError(f"example_input must be what the network takes, got the shape {shape}: give torch.zeros{shape}")
    kind = type(example_input)
    if example_input is None or kind.__module__ == "numpy":
        raise TypeError(f"example_input must be a tensor, or a tuple or dictionary of arguments, got {kind.__name__}")


def _check_num_experts(num_experts: float) -> None:
    is_number = isinstance(num_experts, Real) and not isinstance(num_experts, bool)
    if not is_number or not 0 < num_experts < math.inf:
        raise ValueError(f"num_experts must be a number of experts or a ratio of them to filters, got {num_experts!r}")
    if not isinstance(num_experts, Integral) and num_experts == 1:
        raise ValueError("num_experts=1.0 gives a pixel no choice, with an expert for each filter: give more, as 2.0")


def _find_ties(model: nn.Module) -> dict[nn.Module, str]:
    """Modules whose parameters other modules have too, with the reason to leave them."""
    holders: dict[int, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        holders[_place(parameter)].append(name)
    names: dict[nn.Module, list[str]] = defaultdict(list)
    for name, module in model.named_modules(remove_duplicate=False):
        names[module].append(name)
    ties: dict[nn.Module, str] = {}
    for module in filter(is_convertible, model.modules()):
        own = dict(module.named_parameters(remove_duplicate=False))
        own_names = {f"{name}.{key}".removeprefix(".") for name in names[module] for key in own}
        others = [name for parameter in own.values() for name in holders[_place(parameter)] if name not in own_names]
        if others:
            ties[module] = f"it is tied to {', '.join(others)}"
    return ties


def _place(parameter: nn.Parameter) -> int:
    """Equal for parameters that are the same memory, even if they are two objects."""
    if type(parameter) is not nn.Parameter:
        return id(parameter)
    # Without memory, as on the meta device, the address is 0.
    return parameter.data_ptr() or id(parameter)


def _find_parts_of_layers(model: nn.Module) -> dict[nn.Module, str]:
    """Modules inside SMoE layers and gates, and of transformers whose first axis is not the batch."""
    layers = [
        (name, module) for name, module in model.named_modules() if isinstance(module, (RoutedLayer, SpatialGate))
    ]
    reasons = {
        part: f"it is part of {show_name(name)}, a {type(layer).__name__}"
        for name, layer in reversed(layers)
        for part in layer.modules()
        if part is not layer
    }
    for block in model.modules():
        is_block = isinstance(block, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer))
        if is_block and not block.self_attn.batch_first:
            reasons.update(dict.fromkeys(block.modules(), _NOT_BATCH_FIRST))
    return reasons


def _why_not_asked(
    name: str,
    module: nn.Module,
    kernel_size: int | tuple[int, ...] | None,
    names: str | None,
    predicate: Callable[[str, nn.Module], bool] | None,
) -> str | None:
    size = kernel_of(module)
    if size is not None and kernel_size is not None:
        wanted = (kernel_size,) * len(size) if isinstance(kernel_size, int) else tuple(kernel_size)
        if size != wanted:
            return f"its kernel is {' x '.join(map(str, size))}"
    if names is not None and not fnmatch.fnmatchcase(name, names):
        return f"its name does not match {names!r}"
    if predicate is not None and not predicate(name, module):
        return "the predicate is false"
    return None


# What a subclass may override.
_METHODS = ("forward", "_conv_forward", "_output_padding", "__call__")


def _why_not_plain(module: nn.Module) -> str | None:
    """What a convolution may do besides, which the layer in its place would not."""
    if any(map(parametrize.is_parametrized, module.modules())) and not is_weight_normed(module):
        return "its parameters are parametrised; torch.nn.utils.parametrize.remove_parametrizations makes them plain"
    kinds: list[type[nn.Module]] = [kind for kind in (*GRID_CONVOLUTIONS, nn.Linear) if isinstance(module, kind)]
    if any(getattr(type(module), name, None) is not getattr(kinds[0], name, None) for name in _METHODS if kinds):
        kind = type(module)
        name = kind.__name__ if kind.__name__ != kinds[0].__name__ else f"{kind.__module__}.{kind.__name__}"
        return f"{name} has a forward of its own and may do more than a {kinds[0].__name__}"
    if "forward" in vars(module):
        return "its forward was replaced"
    # Weight normalisation and pruning of the older kind are hooks too.
    if any(map(_has_hooks, module.modules())):
        return "it has hooks, as weight normalisation and pruning of the older kind have; remove them before"
    if any(map(_has_hooks, module.parameters())):
        return "its parameters have hooks, which the experts would not have; remove them before"
    own = {name for name in (*module._parameters, *module._buffers, *module._modules) if name not in ("weight", "bias")}
    if kinds and own - {"parametrizations"}:
        return f"it holds {', '.join(sorted(own))} besides its filters"
    return None


def _has_hooks(part: nn.Module | nn.Parameter) -> bool:
    """Whether hooks change what a module computes, of which torch_geometric has own kinds, or a gradient."""
    if isinstance(part, nn.Parameter):
        return bool(part._backward_hooks or part._post_accumulate_grad_hooks)  # type: ignore[attr-defined]
    return any(hooks for name, hooks in vars(part).items() if name.endswith("_hooks") and "state_dict" not in name)


def _why_no_choice(num_experts: int, num_filters: int, groups: int) -> str | None:
    if groups > 1 and num_experts % num_filters:
        return f"it has {groups} groups, which need as many experts for each filter: give an integer ratio, as 2.0"
    if num_experts > num_filters:
        return None
    if num_experts < num_filters:
        return f"{num_experts} experts are fewer than its {num_filters} filters"
    return f"{num_experts} experts for as many filters leave a pixel no choice; give more num_experts"
