"""Adapts a network whose layers depend on the place to images of another size (paper section 3.4).

The published recipe trains on crops of 176 pixels and evaluates at 224: gates and tables made for 44 x 44 pixels meet
56 x 56. A convolution works on both; these layers refuse another grid. Here they are taken to it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from smoe.nn._conversion_plan import ExampleInput, check_model, run_example, show_name
from smoe.nn._coordinate_embedding import CoordinateEmbedding
from smoe.nn._filter_bank import FilterBank
from smoe.nn._fixed_gates import FixedGate
from smoe.nn._gate import SpatialGate
from smoe.nn._gates import FactorisedGate, TensorGate
from smoe.nn._graph_layer import GraphMoE
from smoe.nn._grid_layers import GridMoE, TokenMoE
from smoe.nn._healpix_layer import HEALPixMoE
from smoe.nn._node_order import NodeOrder, hash_coordinates
from smoe.nn._routed_layer import RoutedLayer, check_positive
from smoe.ops._conv_kernels import output_grid
from smoe.ops._interpolation import interpolate_grid, most_typical, nearest_places, pixels_around

Network = TypeVar("Network", bound=nn.Module)


def interpolate_grids(
    model: Network, *, example_input: ExampleInput, coordinates: tuple[torch.Tensor, torch.Tensor] | None = None
) -> Network:
    """A copy of the network for inputs of the example's size, whose layers are taken to their new grids.

    Each new pixel has the experts of one of the old pixels around it: of the one whose scores, or pixel embedding,
    point most as those around do on the whole. So no pixel has an expert that none of its neighbours had, as means of
    scores of several sizes may give it. Local affine maps are interpolated linearly, between the centres of pixels, and
    so are fields of layers of your own, which take part if they have the attributes `spatial_shape`, `stride` and
    `padding_mode` and a method `resize_grid(grid, resize)`, where `resize(field)` interpolates a parameter
    `(..., *spatial_shape)`. An axis that the layer's padding wraps goes on around, and each face of a HEALPix sphere is
    by itself. Linear layers of images `(B, rows, columns, C)` have their grid; nodes of a graph and the positions of a
    sequence have none, and are moved by their coordinates. Layers whose grid is the same are left as they are.
    Parameters of the copy are new and need an optimiser of their own.

    Args:
        model: Network to adapt; it is not changed.
        example_input: Input of the new size. A tuple holds several positional arguments, a dictionary keyword
            arguments.
        coordinates: Where the nodes or the positions were and are, `(N, D)` and `(M, D)`, as for `transfer_gate`.

    Raises:
        TypeError: If the model is not a network.
        ValueError: If a layer cannot be adapted, is not reached by the example, or would need two grids; or if its
            field is not finite.
    """
    check_model(model)
    new = copy.deepcopy(model)
    layers = ((name, module) for name, module in new.named_modules() if _is_placed(module))
    names: dict[nn.Module, str] = {module: name for name, module in layers}
    # A gate may serve several layers: what it was made for, and for whom.
    made_for: dict[nn.Module, tuple[tuple[int, ...], str]] = {}
    if not (coordinates is None or (isinstance(coordinates, (tuple, list)) and len(coordinates) == 2)):
        raise TypeError(f"coordinates must be a pair (old, new), got a {type(coordinates).__name__}")
    places = None if coordinates is None else _Places(*coordinates)
    done: set[nn.Module] = set()

    def resize(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = show_name(names[module])
        input = args[0] if args else kwargs["x" if isinstance(module, GraphMoE) else "input"]
        used = places if isinstance(module, (TokenMoE, GraphMoE)) else None
        grid = _grid_of(module, input, name, used)
        holder = _holder(module)
        is_first = holder not in made_for
        known = made_for.setdefault(holder, (grid, name))
        if known[0] != grid:
            raise ValueError(
                f"{known[1]} needs the grid {known[0]} and {name} the grid {grid}, but one field serves both: give "
                "an example of a size at which they agree, or layers with gates of their own"
            )
        if module not in done:
            _resize(module, grid, name, used if used is not None and grid == used.grid else None, is_first)
        done.add(module)

    hooks = [module.register_forward_pre_hook(resize, with_kwargs=True) for module in names]
    try:
        run_example(new, example_input)
    finally:
        for hook in hooks:
            hook.remove()
    missed = [
        show_name(name) for module, name in names.items() if _holder(module) not in made_for and _has_grid(module)
    ]
    if missed:
        raise ValueError(f"the example input does not reach {', '.join(missed)}: its new grid is unknown")
    return new


def _is_placed(module: nn.Module) -> bool:
    return isinstance(module, RoutedLayer) or hasattr(module, "resize_grid")


def _holder(layer: nn.Module) -> nn.Module:
    """The module whose field decides the grid of a layer; several layers may share it."""
    if not isinstance(layer, RoutedLayer):
        return layer
    return layer.gate.embedding if isinstance(layer.gate, FactorisedGate) else layer.gate


class _Places:
    """Coordinates of old and new pixels, `(*grid, D)` and `(*new_grid, D)`, and the old ones near each new one."""

    def __init__(self, old: torch.Tensor, new: torch.Tensor, num_neighbours: int = 4) -> None:
        if not (isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor)):
            raise TypeError(f"coordinates must be tensors, got {type(old).__name__} and {type(new).__name__}")
        if old.shape[-1] != new.shape[-1]:
            raise ValueError(f"coordinates must have as many components, got {old.shape[-1]} and {new.shape[-1]}")
        for name, part in (("old", old), ("new", new)):
            if not bool(part.isfinite().all()):
                number = int((~part.isfinite()).sum())
                raise ValueError(f"{name} coordinates must be finite, got {number} values that are not")
        self.coordinates = new
        self.old_grid, self.grid = tuple(old.shape[:-1]), tuple(new.shape[:-1])
        before, after = (part.detach().flatten(0, -2).double().cpu() for part in (old, new))
        self.distance, self.near = nearest_places(before, after, min(num_neighbours, len(before)))

    def choose(self, numbers: torch.Tensor) -> torch.Tensor:
        return most_typical(numbers, self.distance, self.near)

    def move(self, gate: SpatialGate, name: str) -> bool:
        """Gives each new pixel what the gate has near it; False if it has no field."""
        return _move_choices(gate, self.grid, name, self.choose, lambda part: part.move(self.coordinates))

    def renumber(self, gate: SpatialGate) -> None:
        """Lets the gate of a graph know the new nodes."""
        order = gate._modules.get("node_order")
        if isinstance(order, NodeOrder):
            order.hashes.zero_()
            if self.coordinates.ndim == 2:
                order.note("coordinates", hash_coordinates(self.coordinates))


def _grid_of(layer: Any, input: torch.Tensor, name: str, places: _Places | None) -> tuple[int, ...]:
    """The output grid of a layer for an input."""
    if isinstance(layer, HEALPixMoE):
        nside = math.isqrt(input.shape[2:].numel() // 12)
        return (12, nside, nside)
    if isinstance(layer, (TokenMoE, GraphMoE)):
        grid, positions = layer.gate.spatial_shape or (), tuple(input.shape[1:-1])
        if isinstance(layer, TokenMoE) and len(positions) == len(layer.positions) > 1:
            return positions
        if places is not None and grid == places.old_grid:
            return places.grid
        number = math.prod(positions or input.shape[:-1])
        if places is not None and number % math.prod(grid):
            raise ValueError(f"{name} was made for the places {grid}, but the old coordinates are of {places.old_grid}")
        if isinstance(layer, TokenMoE) and positions and grid != (number,):
            raise ValueError(
                f"the positions of {name} are no grid to interpolate on: give coordinates=(old, new), or convert the "
                "network for its sequence"
            )
        return grid  # a graph, whose layers refuse what does not fit
    if not isinstance(layer, RoutedLayer):
        return output_grid(input.shape[-2], input.shape[-1], layer.stride)
    has_batch = not isinstance(layer, GridMoE) or input.ndim == layer.weight.ndim
    return layer._output_grid(input if has_batch else input.unsqueeze(0))


def _has_grid(layer: Any) -> bool:
    return (layer.gate if isinstance(layer, RoutedLayer) else layer).spatial_shape is not None


def _resize(layer: Any, grid: tuple[int, ...], name: str, places: _Places | None, is_first: bool) -> None:
    """Takes a layer to a grid, or to places; its gate, unless another layer that has the same field was first."""
    # The experts of a `SpatialMoE` are any module: nothing is known of its borders.
    has_borders = isinstance(layer, GridMoE) or not isinstance(layer, RoutedLayer)
    padding_mode = layer.padding_mode if has_borders else "zeros"
    wraps = (padding_mode == "circular",) * (len(grid) - 1) + (padding_mode in ("circular", "longitude"),)
    # The grid of an image in layers that number its positions.
    positions = layer.positions if isinstance(layer, TokenMoE) and len(layer.positions) == len(grid) else ()
    shape = (math.prod(grid),) if positions else grid

    def resize(field: torch.Tensor, axes: Sequence[int] | None = None) -> nn.Parameter:
        """The field on the new grid; its last axes are these axes of the grid, all of them by default."""
        axes = range(len(grid)) if axes is None else axes
        sizes, wrapped = tuple(grid[axis] for axis in axes), tuple(wraps[axis] for axis in axes)
        values = _checked(field, name)
        if places is not None:
            values = values[:, places.near[:, 0].to(values.device)]
        elif positions:
            values = interpolate_grid(values.unflatten(-1, positions), sizes, wrapped).flatten(-len(grid))
        else:
            values = interpolate_grid(values, sizes, wrapped)
        return nn.Parameter(values.to(field.dtype), field.requires_grad)

    if not isinstance(layer, RoutedLayer):
        if layer.spatial_shape not in (None, grid):
            layer.resize_grid(grid, resize)
        return
    gate, old_grid = layer.gate, layer.gate.spatial_shape
    # A layer that the gate holds is met for itself.
    if any(hasattr(part, "resize_grid") for part in gate.modules()):
        is_moved = True
    elif places is not None:
        is_moved = not is_first or places.move(gate, name)
        places.renumber(gate)
    elif old_grid in (None, shape):
        is_moved = True
    else:

        def choose(numbers: torch.Tensor) -> torch.Tensor:
            return most_typical(numbers, *pixels_around(positions or old_grid, grid, wraps, numbers.device))

        is_moved = _move_choices(gate, shape, name, choose, lambda embedding: embedding.resize(resize, choose))
    if not is_moved:
        raise ValueError(
            f"the {type(gate).__name__} of {name} was made for the grid {old_grid} and cannot be "
            f"taken to {grid}: its scores are no field; a frozen network is taken there before smoe.freeze"
        )
    if isinstance(layer, HEALPixMoE):
        layer._note_nside(grid[-1])
    if isinstance(layer, GraphMoE):
        layer.num_nodes = grid[0]
    layer._forget_input()
    affine = layer._affine if isinstance(layer, FilterBank) else None
    if affine is not None and (places is not None or tuple(affine.scale.shape[1:]) != shape):
        affine.scale, affine.offset = resize(affine.scale), resize(affine.offset)
    if isinstance(layer, TokenMoE) and positions:
        layer.positions = grid


def _move_choices(
    gate: SpatialGate,
    grid: tuple[int, ...],
    name: str,
    choose: Callable[[torch.Tensor], torch.Tensor],
    move: Callable[[CoordinateEmbedding], None],
) -> bool:
    """Gives each pixel of a new grid what the gate has at an old one; False if it has no field.

    Args:
        gate: Gate, or one around another.
        grid: Sizes of the new grid.
        name: What an error is about.
        choose: Old pixels whose numbers the new ones take, `(P',)`, by the numbers of the old ones, `(N, P)`.
        move: Moves an embedding from coordinates.
    """
    while isinstance(inner := getattr(gate, "gate", None), SpatialGate):
        gate = inner
    if isinstance(gate, FactorisedGate):
        embedding = gate.embedding  # gates may share it; the first one moves it
        if isinstance(embedding, CoordinateEmbedding):
            move(embedding)
        else:
            numbers = _checked(embedding.values, name).flatten(1)
            taken = numbers[:, choose(numbers)].unflatten(1, grid)
            embedding._replace_numbers("values", taken.to(embedding.values.dtype))
    elif isinstance(gate, (TensorGate, FixedGate)):
        scores = _checked(gate.scores, name).flatten(1)
        taken = scores[:, choose(scores - scores.mean(dim=0))].unflatten(1, grid).to(gate.scores.dtype)
        if isinstance(gate, TensorGate):
            gate._replace_numbers("scores", taken)
        else:
            gate.scores = taken
    return isinstance(gate, (FactorisedGate, TensorGate, FixedGate))


def _checked(field: torch.Tensor, name: str) -> torch.Tensor:
    """The field in at least float32, refused if a value would spread NaN over its neighbours."""
    if not bool(field.isfinite().all()):
        number = int(field.numel() - field.isfinite().sum())
        raise ValueError(f"{number} values of {name} are not finite: they cannot be interpolated")
    return field.detach() if field.dtype == torch.float64 else field.detach().float()


def transfer_gate(
    gate: SpatialGate, old_coordinates: torch.Tensor, new_coordinates: torch.Tensor, *, num_neighbours: int = 4
) -> SpatialGate:
    """A copy of a gate for other nodes, each of which has the experts of one of the old nodes near it.

    It is the one whose scores, or embedding, point most as those of the nearest ones do on the whole, each weighted by
    the inverse square of its distance. The coordinates must be comparable: of one sphere as points in space, not as
    longitudes that jump. A gate with a `CoordinateEmbedding` computes its scores at the new places, whose coordinates
    are as those it was made with. Parameters of the copy are new; the state of rules is reset.

    Args:
        gate: Gate with a field of scores: `TensorGate`, `FixedGate`, `FactorisedGate`, or one around it.
        old_coordinates: Places of the pixels that the gate was made for, `(*grid, D)`.
        new_coordinates: Places of the new pixels, `(*new_grid, D)`; the new gate has this grid.
        num_neighbours: Old pixels that are looked at for each new one; with 1 it takes the nearest.

    Raises:
        ValueError: If the coordinates do not fit the gate, or the gate has no field.

    Example:
        >>> gate = smoe.transfer_gate(old.gate, old_mesh.coordinates, mesh.coordinates)
        >>> layer = smoe.GraphMoE(16, 4, gate=gate)
    """
    check_positive(num_neighbours=num_neighbours)
    places = _Places(old_coordinates, new_coordinates, num_neighbours)
    if gate.spatial_shape != places.old_grid:
        raise ValueError(
            f"the gate was made for {gate.spatial_shape}, but old_coordinates are of {tuple(old_coordinates.shape)}"
        )
    copied = copy.deepcopy(gate)
    if not places.move(copied, "the gate"):
        raise ValueError(f"a {type(gate).__name__} has no field of scores that could be transferred")
    places.renumber(copied)
    return copied
