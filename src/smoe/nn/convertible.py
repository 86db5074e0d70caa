"""The modules that `convert` can replace: their filters, their grids, and the SMoE layer in their place.

Graph convolutions of torch_geometric are recognised by name, so that it need not be installed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from smoe.nn.filter_bank import FilterBank
from smoe.nn.gates.gate import SpatialGate
from smoe.nn.geometry.graph_moe import GraphMoE
from smoe.nn.geometry.spatial_moe_1d import SpatialMoE1d
from smoe.nn.geometry.spatial_moe_3d import SpatialMoE3d
from smoe.nn.grid_conv import GridConv2d
from smoe.nn.spatial_moe_2d import SpatialMoE2d

GRID_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, GridConv2d)
_NOT_REACHED = "no batch (B, C, *grid) of the example input reached it"
GRAPH_CONVOLUTIONS = ("GCNConv", "SAGEConv", "GraphConv")


def is_graph_convolution(module: nn.Module) -> bool:
    """Whether a module is a graph convolution of torch_geometric that is one linear map of a neighbourhood."""
    kind = type(module)
    return kind.__module__.startswith("torch_geometric.nn.conv.") and kind.__name__ in GRAPH_CONVOLUTIONS


def is_convertible(module: nn.Module) -> bool:
    """Whether a module is of a kind that has an SMoE counterpart."""
    return isinstance(module, GRID_CONVOLUTIONS) or is_graph_convolution(module)


def kernel_of(module: nn.Module) -> tuple[int, ...] | None:
    """Sizes of the kernel; None for a graph convolution."""
    return tuple(module.kernel_size) if isinstance(module, GRID_CONVOLUTIONS) else None


def grid_of(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object) -> tuple[int, ...] | str:
    """Grid of the output of a call, or its number of nodes; if a layer in its place could not take the call, why."""
    if not isinstance(output, torch.Tensor):
        return f"it returns a {type(output).__name__}"
    kernel = kernel_of(module)
    if kernel is None:
        names = ("x", "edge_index", "size" if type(module).__name__ == "SAGEConv" else "edge_weight", "size")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        x, edges = given["x"], given["edge_index"]
        is_dense = isinstance(edges, torch.Tensor) and edges.layout is torch.strided
        if not isinstance(x, torch.Tensor) or x.ndim not in (2, 3) or not is_dense:
            return "its arguments are no tensors x (N, C) and edge_index (2, M)"
        if given.get("size") is not None or "size" in kwargs:
            return "it is given a size"
        grid = (output.shape[-2],)
    elif output.ndim != len(kernel) + 2:
        return _NOT_REACHED
    else:
        grid = tuple(output.shape[2:])
    return f"its output grid {grid} is empty" if 0 in grid else grid


def filters_of(module: nn.Module) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Filters `(O, C, *kernel)`, or `(O, C')` of the neighbourhood of a node, and the bias `(O,)`."""
    if isinstance(module, GRID_CONVOLUTIONS):
        return module.weight, module.bias
    part = cast(Any, module)
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
    """Whether the filters learn."""
    return filters_of(module)[0].requires_grad


def why_not_possible(module: nn.Module) -> str | None:
    """Why a module cannot become an SMoE layer; None if it can."""
    if any(is_lazy(parameter) for parameter in module.parameters()):
        return "its parameters are not initialised"
    reason = None
    if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        reason = _why_no_grid_layer(module)
    elif is_graph_convolution(module):
        reason = _why_no_graph_layer(module)
    return reason or _why_no_bank(filters_of(module)[0])


def _why_no_bank(weight: torch.Tensor) -> str | None:
    if type(weight) not in (torch.Tensor, nn.Parameter):
        return f"its filters are a {type(weight).__name__}"
    if not weight.is_floating_point():
        return f"its filters are {weight.dtype}, not floating-point"
    return None if weight.numel() > 0 else f"its filters are empty, {tuple(weight.shape)}"


def _why_no_grid_layer(module: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> str | None:
    if module.groups != 1:
        return f"it has {module.groups} groups"
    if any(step != 1 for step in module.dilation):
        return f"its dilation is {tuple(module.dilation)}"
    if any(size % 2 == 0 for size in module.kernel_size):
        return f"its kernel {tuple(module.kernel_size)} has no centre"
    if len(set(module.stride)) > 1:
        return f"its strides {tuple(module.stride)} differ"
    if module.padding_mode not in ("zeros", "circular"):
        return f"there is no padding mode {module.padding_mode!r}"
    kept = tuple((size - 1) // 2 for size in module.kernel_size)
    padding = (0,) * len(kept) if module.padding == "valid" else module.padding
    if padding not in ("same", kept):
        return f"its padding {module.padding} is not {kept}, which keeps the grid"
    return None


# What a graph convolution must be made with, by its name; other values compute something else.
_PLAIN_GRAPH_OPTIONS: dict[str, dict[str, tuple[object, ...]]] = {
    "GCNConv": {"improved": (False,), "add_self_loops": (True,), "normalize": (True,)},
    "SAGEConv": {"normalize": (False,), "project": (False,)},
    "GraphConv": {},
}
_AGGREGATIONS = {"mean": "mean", "add": "sum", "sum": "sum"}


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
    """An SMoE layer with as many outputs as the module, with experts that are yet to be filled.

    Args:
        module: Module to replace.
        num_experts: X.
        num_selected: E, the number of filters of the module.
        gate: Gate for its grid.
        options: Further options of the layer.
    """
    weight, bias = filters_of(module)
    options = {**options, "gate": gate, "device": weight.device, "dtype": weight.dtype}
    if bias is None:
        options["bias"] = False
    numbers = (num_experts, num_selected)
    layer: FilterBank
    if isinstance(module, GRID_CONVOLUTIONS):
        stride = module.stride if isinstance(module.stride, int) else module.stride[0]
        grid_options = {**options, "padding_mode": module.padding_mode, "stride": stride}
        kinds: dict[type[nn.Module], Callable[..., FilterBank]] = {nn.Conv1d: SpatialMoE1d, nn.Conv3d: SpatialMoE3d}
        kind = kinds.get(type(module), SpatialMoE2d)
        kernel = module.kernel_size[0] if isinstance(module, nn.Conv1d) else tuple(module.kernel_size)
        layer = kind(weight.shape[1], *numbers, kernel, **grid_options)
    else:
        part, name = cast(Any, module), type(module).__name__
        root = name == "GraphConv" or (name == "SAGEConv" and part.root_weight)
        layer = GraphMoE(
            weight.shape[1] // (1 + root),
            *numbers,
            aggregation="gcn" if name == "GCNConv" else _AGGREGATIONS[part.aggr],  # type: ignore[arg-type]
            root=root,
            **options,
        )
    layer.weight.requires_grad_(requires_grad(module))
    if layer.bias is not None and bias is not None:
        layer.bias.requires_grad_(bias.requires_grad)
    return layer
