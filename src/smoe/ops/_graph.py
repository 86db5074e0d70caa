"""Sums over the neighbours of the nodes of a graph."""

from __future__ import annotations

import warnings
from typing import Literal, get_args

import torch


def edge_directions(coordinates: torch.Tensor, edge_index: torch.Tensor, *, on_sphere: bool = False) -> torch.Tensor:
    """Steps from the target of each edge to its source, in units of the mean length of the edges.

    With these as `edge_attr`, the experts of `smoe.GraphMoE` see slopes: a sum for each direction.

    Args:
        coordinates: Places of the nodes, `(N, D)`, floating.
        edge_index: Source and target of each edge, `(2, M)`.
        on_sphere: The nodes lie on a sphere around the origin of space; the steps are then those to the east and to the
            north at the target, D = 2. At a pole east is the direction of the second axis.

    Returns:
        `(M, D)`.
    """
    if coordinates.ndim != 2 or not coordinates.is_floating_point():
        raise ValueError(f"coordinates must be floating (N, D), got {coordinates.dtype} of {tuple(coordinates.shape)}")
    source, target = edge_index
    steps = coordinates[source] - coordinates[target]
    length = steps.norm(dim=1).mean().clamp(min=torch.finfo(steps.dtype).tiny)
    if not on_sphere:
        return steps / length
    if coordinates.shape[1] != 3:
        raise ValueError(f"nodes on a sphere need coordinates (N, 3), got {tuple(coordinates.shape)}")
    up = torch.nn.functional.normalize(coordinates[target], dim=1)
    axis = torch.tensor([0.0, 0.0, 1.0], dtype=up.dtype, device=up.device).expand_as(up)
    east = torch.linalg.cross(axis, up)
    is_pole = east.norm(dim=1, keepdim=True) < 1e-6
    second = torch.tensor([0.0, 1.0, 0.0], dtype=up.dtype, device=up.device).expand_as(up)
    east = torch.nn.functional.normalize(torch.where(is_pole, second, east), dim=1)
    north = torch.linalg.cross(up, east)
    return torch.stack([(steps * east).sum(dim=1), (steps * north).sum(dim=1)], dim=1) / length


Aggregation = Literal["mean", "sum", "gcn", "gcn_improved"]
AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)

# Odd constants with bits spread evenly, as hash functions use them.
_PRIMES = (-7046029254386353131, -4417276706812531889, 1609587929392839161)

_EDGES_AT_ONCE = 1 << 16


def check_edges(edge_index: torch.Tensor, num_nodes: int) -> None:
    """Refuses edges that are not node numbers. Their range is checked on a CPU only, where that is free."""
    if edge_index.layout is not torch.strided:
        raise ValueError("edge_index must be (2, M), sources above targets, got a sparse matrix: give its edges")
    if edge_index.ndim != 2 or edge_index.shape[0] != 2:
        raise ValueError(
            f"edge_index must be (2, M), sources above targets, got shape {tuple(edge_index.shape)}; transpose a list "
            "of pairs"
        )
    if edge_index.dtype != torch.int64:
        raise ValueError(f"edge_index must hold node numbers as int64, got {edge_index.dtype}; convert it by .long()")
    if edge_index.device.type != "cpu" or torch.compiler.is_compiling() or edge_index.shape[1] == 0:
        return
    low, high = (int(bound) for bound in edge_index.aminmax())
    if low < 0 or high >= num_nodes:
        hint = "; do they start at 1? Subtract 1" if (low, high) == (1, num_nodes) else ""
        raise ValueError(
            f"edge_index must hold node numbers in [0, {num_nodes - 1}] for {num_nodes} nodes, got {low} to "
            f"{high}{hint}"
        )


def with_all_self_loops(edge_index: torch.Tensor, num_nodes: int) -> torch.Tensor:
    """Adds a self loop to each node, whether it has one or not, so that the number of edges is known beforehand."""
    return torch.cat([edge_index, torch.arange(num_nodes, device=edge_index.device).expand(2, -1)], dim=1)


def one_self_loop_each(
    edge_index: torch.Tensor, weight: torch.Tensor, num_nodes: int, added: float = 1.0
) -> torch.Tensor:
    """Weights `(M + N,)` of the edges of `with_all_self_loops` by which each node has one self loop.

    That is the last one given, as in torch_geometric, or the one that was added, of weight `added`; all others weigh 0.
    """
    source, target = edge_index
    numbers = torch.arange(len(target), device=target.device)
    # Number of the edge that is the last self loop of a node, -1 without one.
    last = torch.full((num_nodes,), -1, device=target.device)
    last = last.scatter_reduce(0, target, torch.where(source == target, numbers, -1), "amax")
    is_repeated = (source == target) & (last[target] != numbers)
    return torch.cat([weight.masked_fill(is_repeated, 0.0), added * (last < 0).to(weight.dtype)])


def edge_factors(
    edge_index: torch.Tensor, weight: torch.Tensor, num_nodes: int, aggregation: Aggregation
) -> torch.Tensor:
    """Factors `(M,)` of the edges in a sum over neighbours; gradients reach `weight`.

    `sum` keeps the weights; `mean` divides them by the number of edges into the target; `gcn` divides them by the roots
    of the weighted numbers of edges into source and target. Self loops are the caller's.
    """
    target = edge_index[1]
    if aggregation == "sum":
        return weight
    if aggregation == "mean":
        number = torch.zeros(num_nodes, dtype=weight.dtype, device=weight.device)
        number = number.index_add(0, target, torch.ones_like(weight))
        return weight / number.clamp(min=1.0)[target]
    degree = torch.zeros(num_nodes, dtype=weight.dtype, device=weight.device).index_add(0, target, weight)
    # As in torch_geometric, the edges of a degree of 0 count nothing, and a negative degree makes NaN.
    root = torch.where(degree == 0.0, torch.ones_like(degree), degree).rsqrt() * (degree != 0.0)
    return root[edge_index[0]] * weight * root[target]


def edge_fingerprints(edge_index: torch.Tensor, num_nodes: int, num_graphs: int = 1) -> torch.Tensor:
    """A number for the edges of each graph `(num_graphs,)`, int64, whatever their order.

    It changes if nodes are numbered differently, unless the numbering is a symmetry of the graph.
    """
    total = torch.zeros(num_graphs, dtype=torch.int64, device=edge_index.device)
    # In parts: what is computed on the way would take more memory than a pass of the layer.
    for part in edge_index.split(_EDGES_AT_ONCE, dim=1):
        source, target = part % num_nodes
        mixed = (source + 1) * _PRIMES[0] + (target + 1) * _PRIMES[1]
        mixed = (mixed ^ (mixed >> 29)) * _PRIMES[2]
        total.index_add_(0, part[1] // num_nodes, mixed ^ (mixed >> 32))
    return total


class SparseGraph:
    """The edges of a graph sorted by target and by source, for products with sparse matrices."""

    def __init__(self, edge_index: torch.Tensor, num_nodes: int) -> None:
        self.edge_index = edge_index
        self.num_nodes = num_nodes
        source, target = edge_index
        self._into = _compress(target, source, num_nodes)
        self._out_of = _compress(source, target, num_nodes)
        self._values: torch.Tensor | None = None
        self._matrices: dict[tuple[int, bool], torch.Tensor] = {}

    def matrix(self, values: torch.Tensor, number: int, *, transposed: bool = False) -> torch.Tensor:
        """The sparse matrix `(N, N)` whose product with node values sums over the edges into each node."""
        if values is not self._values:
            self._values, self._matrices = values, {}
        key = (number, transposed)
        if key in self._matrices:
            return self._matrices[key]
        starts, others, order = self._out_of if transposed else self._into
        with warnings.catch_warnings():
            # PyTorch calls its sparse matrices a prototype, once in each process.
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
            warnings.filterwarnings("ignore", message="Sparse invariant checks")
            size = (self.num_nodes, self.num_nodes)
            matrix = torch.sparse_csr_tensor(starts, others, values[number][order], size=size, check_invariants=False)
        if not values.requires_grad:
            self._matrices[key] = matrix
        return matrix


def _compress(
    key: torch.Tensor, other: torch.Tensor, num_nodes: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    order = key.argsort(stable=True)
    starts = torch.zeros(num_nodes + 1, dtype=torch.int32, device=key.device)
    starts[1:] = torch.bincount(key, minlength=num_nodes).cumsum(0)
    return starts, other[order].to(torch.int32), order


def neighbour_features(
    x: torch.Tensor, edges: SparseGraph | torch.Tensor, values: torch.Tensor, num_nodes: int, *, root: bool = True
) -> torch.Tensor:
    """Each node's own features beside weighted sums over its neighbours; gradients reach `x` and `values`."""
    if isinstance(edges, SparseGraph):
        dtype = x.dtype if x.dtype in (torch.float32, torch.float64) else torch.float32
        # Sparse products have no bfloat16, which autocast would ask for.
        with torch.autocast(x.device.type, enabled=False):
            features = _NeighbourFeatures.apply(x.to(dtype), values.to(dtype), edges, root)
        return features.to(x.dtype)  # type: ignore[union-attr]
    return _plain_features(x, edges, values, num_nodes, root)


def _plain_features(
    x: torch.Tensor, edges: torch.Tensor, values: torch.Tensor, num_nodes: int, root: bool
) -> torch.Tensor:
    source, target = edges
    nodes = x.reshape(-1, num_nodes, x.shape[2])
    gathered = nodes.index_select(1, source)
    blocks = [x] if root else []
    blocks += [
        torch.zeros_like(nodes).index_add(1, target, gathered * value[:, None]).view_as(x)
        for value in values.to(x.dtype)
    ]
    return torch.cat(blocks, dim=2).transpose(1, 2).contiguous()


class _NeighbourFeatures(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, values, graph, root):
        S, N, C = x.shape
        features = x.new_empty(S, (root + len(values)) * C, N)
        if root:
            features[:, :C] = x.transpose(1, 2)
        columns = _to_columns(x, graph.num_nodes)
        for k in range(len(values)):
            sums = graph.matrix(values, k) @ columns
            features[:, (root + k) * C : (root + k + 1) * C] = _channels_first(sums, x.shape)
        # The node features are needed for the gradient of the values only.
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, values)
        ctx.graph, ctx.root, ctx.shape = graph, root, x.shape
        return features

    @staticmethod
    def backward(ctx, *grad_outputs):
        (error,) = grad_outputs
        x, values = ctx.saved_tensors
        graph, root, shape = ctx.graph, ctx.root, ctx.shape
        if torch.is_grad_enabled():
            return *_differentiable_gradients(ctx, error, x, values), None, None
        C = shape[2]
        total = None
        by_value = torch.zeros_like(values) if ctx.needs_input_grad[1] else None
        for k in range(len(values)):
            block = error[:, (root + k) * C : (root + k + 1) * C].transpose(1, 2)
            columns = _to_columns(block, graph.num_nodes)
            if ctx.needs_input_grad[0]:
                part = graph.matrix(values, k, transposed=True) @ columns
                total = part if total is None else total.add_(part)
            if by_value is not None:
                source, target = graph.edge_index
                nodes = _to_columns(x, graph.num_nodes)
                by_value[k] = (nodes[source] * columns[target]).sum(dim=1)
        by_node = None
        if total is not None:
            by_node = _from_columns(total, shape)
            by_node = by_node + error[:, :C].transpose(1, 2) if root else by_node.contiguous()
        return by_node, by_value, None, None


def _differentiable_gradients(
    ctx, error: torch.Tensor, x: torch.Tensor | None, values: torch.Tensor
) -> tuple[torch.Tensor | None, ...]:
    """The gradients of `_NeighbourFeatures` by operations that can be differentiated again."""
    # Without a gradient of the values the gradient does not depend on the node features: zeros stand for them.
    x = error.new_zeros(ctx.shape, requires_grad=True) if x is None else x
    needs = ctx.needs_input_grad[:2]
    features = _plain_features(x, ctx.graph.edge_index, values, ctx.graph.num_nodes, ctx.root)
    wanted = [part for part, is_needed in zip((x, values), needs, strict=True) if is_needed]
    found = iter(torch.autograd.grad(features, wanted, error, create_graph=True))
    return tuple(next(found) if is_needed else None for is_needed in needs)


def _to_columns(x: torch.Tensor, num_nodes: int) -> torch.Tensor:
    """Node values `(S, N, C)` as a matrix with a row for each node of the graph; samples that share it side by side."""
    S, N, C = x.shape
    if num_nodes == S * N:
        return x.reshape(num_nodes, C)
    return x.permute(1, 0, 2).reshape(N, S * C)


def _from_columns(columns: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The inverse of `_to_columns`."""
    S, N, C = shape
    if len(columns) == S * N:
        return columns.view(S, N, C)
    return columns.view(N, S, C).permute(1, 0, 2)


def _channels_first(columns: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The matrix of `_to_columns` as `(S, C, N)`."""
    return _from_columns(columns, shape).transpose(1, 2)
