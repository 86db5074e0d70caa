"""Features of a node and of its neighbours, side by side: what the experts of a graph layer work on."""

from __future__ import annotations

import warnings

import torch


class SparseGraph:
    """The edges of a graph sorted by target and by source, for products with sparse matrices.

    Args:
        edge_index: Source and target of each edge, `(2, M)`, int64, in range.
        num_nodes: Number of nodes.
    """

    def __init__(self, edge_index: torch.Tensor, num_nodes: int) -> None:
        self.edge_index = edge_index
        self.num_nodes = num_nodes
        source, target = edge_index
        self._into = _compress(target, source, num_nodes)
        self._out_of = _compress(source, target, num_nodes)
        self._values: torch.Tensor | None = None
        self._matrices: dict[tuple[int, bool], torch.Tensor] = {}

    def matrix(self, values: torch.Tensor, number: int, *, transposed: bool = False) -> torch.Tensor:
        """The sparse matrix `(N, N)` whose product with node values sums over the edges into each node.

        Args:
            values: Values of the edges `(K, M)`. The matrices of the last tensor without gradients are kept.
            number: Which of the K values.
            transposed: Sum over the edges out of each node instead.
        """
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
    """Each node's own features beside weighted sums over its neighbours; gradients reach `x` and `values`.

    Args:
        x: Features of the nodes, `(S, N, C)`, floating.
        edges: Edges of a graph, `(2, M)`, int64 and in range; or the same sorted, which is faster on a CPU.
        values: K values of each edge, `(K, M)`: those of K sums.
        num_nodes: Nodes that the edges number: N if all samples share them, S * N if each sample has edges of its own.
        root: Whether the node's own features come first.

    Returns:
        `(S, (root + K) * C, N)`, contiguous; channels `[k * C, (k + 1) * C)` belong to one block.
    """
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
