"""The SMoE layer on a graph: linear maps of the neighbourhood of each node."""

from __future__ import annotations

import math
from typing import NamedTuple, NotRequired, Self, Unpack

import torch
import torch.nn.functional as F

from smoe.nn._filter_bank import BankOptions, FilterBank, LayerOptions, as_bank
from smoe.nn._node_order import hash_coordinates, node_order_of
from smoe.nn._routed_layer import check_positive
from smoe.nn._shared_parameters import is_sharded
from smoe.ops._graph import (
    AGGREGATIONS,
    Aggregation,
    SparseGraph,
    check_edges,
    edge_factors,
    edge_fingerprints,
    neighbour_features,
    one_self_loop_each,
    with_all_self_loops,
)
from smoe.ops._operators import has_transforms


class KeptGraph(NamedTuple):
    """The sorted edges of the last graph: most models see a single graph.

    Threads may share a layer: the graph is replaced as a whole, and a thread works on the one that it found or made.
    """

    given: torch.Tensor  # a copy: the caller may change its edges
    graph: SparseGraph
    factors: dict[torch.dtype, torch.Tensor]  # of edges without weights, `(1, M)`


class GraphBankOptions(BankOptions):
    """Keyword arguments of `GraphMoE.from_experts`."""

    num_nodes: NotRequired[int | None]
    aggregation: NotRequired[Aggregation]
    edge_dim: NotRequired[int]
    root: NotRequired[bool]
    coordinates: NotRequired[torch.Tensor | None]
    fixed_graph: NotRequired[bool]


class GraphMoE(FilterBank):
    """A bank of linear maps of a node's neighbourhood, of which a gate selects some at every node.

    An expert works on the features of the node beside sums over its neighbours,
    `a(p) = [x(p), sum_q phi_0(q, p) x(q), ..., sum_q phi_D(q, p) x(q)]`, which are computed once for all experts. With
    one sum the layer is isotropic, as `SAGEConv` of torch_geometric; columns of `edge_attr`, such as the directions of
    `smoe.ops.edge_directions`, add a sum each.

    The graph is the same for all samples, or at least its nodes are: choices belong to node numbers. The layer takes
    what convolutions of torch_geometric take, and does not import it.

    Args:
        in_channels: C, the number of features of a node.
        out_channels: Number of outputs of a node.
        num_nodes: N, the number of nodes; not needed with a gate that was made for them.
        aggregation: What divides the sums: nothing (`sum`), the number of edges into the node (`mean`), or the roots of
            the degrees of both ends, with one self loop at every node (`gcn`), or one that counts twice
            among edges with weights (`gcn_improved`).
        edge_dim: D, the number of columns of `edge_attr`.
        root: Whether the experts see the features of the node itself apart from the sums.
        coordinates: Coordinates of the nodes `(N, D)`. Their hash is saved with the gate, and a gate that was saved
            with others is refused.
        fixed_graph: Refuse edges that differ from those of the first pass over all nodes, whose hash is saved with the
            gate. False for graphs whose edges change from sample to sample or are dropped at random.
        **options: `num_candidates`, `bias`, `gate`, `embedding`, `rule`, `local_affine`, `device` and `dtype` as for
            `SpatialMoE2d`.

    Example:
        >>> conv = smoe.GraphMoE(16, 2, num_nodes=data.num_nodes)
        >>> conv(data.x, data.edge_index).shape
        torch.Size([10242, 2])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        num_nodes: int | None = None,
        aggregation: Aggregation = "mean",
        edge_dim: int = 0,
        root: bool = True,
        coordinates: torch.Tensor | None = None,
        fixed_graph: bool = True,
        **options: Unpack[LayerOptions],
    ) -> None:
        num_experts, num_selected, bank = as_bank(out_channels, **options)
        geometry = (num_nodes, aggregation, edge_dim, root, coordinates, fixed_graph)
        self._init_graph(in_channels, num_experts, num_selected, *geometry, **bank)

    @classmethod
    def from_experts(
        cls, in_channels: int, num_experts: int, num_selected: int, **options: Unpack[GraphBankOptions]
    ) -> Self:
        """The layer in the paper's terms, as `SpatialMoE2d.from_experts`, with X experts of which each node selects E.

        `num_nodes`, `aggregation`, `edge_dim`, `root`, `coordinates` and `fixed_graph` are as for the layer.
        """
        layer = cls.__new__(cls)
        layer._init_graph(in_channels, num_experts, num_selected, **options)
        return layer

    def _init_graph(
        self,
        in_channels: int,
        num_experts: int,
        num_selected: int,
        num_nodes: int | None = None,
        aggregation: Aggregation = "mean",
        edge_dim: int = 0,
        root: bool = True,
        coordinates: torch.Tensor | None = None,
        fixed_graph: bool = True,
        **options: Unpack[BankOptions],
    ) -> None:
        if aggregation not in AGGREGATIONS:
            raise ValueError(f"aggregation must be one of {', '.join(AGGREGATIONS)}, got {aggregation!r}")
        if edge_dim < 0:
            raise ValueError(f"edge_dim must not be negative, got {edge_dim}")
        check_positive(in_channels=in_channels)
        if num_nodes is None and options.get("gate") is None and options.get("embedding") is None:
            raise ValueError("give num_nodes, the number of nodes of the graph, or a gate or an embedding")
        if num_nodes is not None:
            check_positive(num_nodes=num_nodes)
        spatial_shape = None if num_nodes is None else (num_nodes,)
        self._init_bank((root + 1 + edge_dim) * in_channels, num_experts, num_selected, (), spatial_shape, **options)
        grid = self.gate.spatial_shape
        if grid is not None and len(grid) != 1:
            raise ValueError(f"a graph layer needs a gate for (nodes,), got one for {grid}")
        num_nodes = num_nodes if grid is None else grid[0]
        if num_nodes is None:
            raise ValueError(f"give num_nodes: a {type(self.gate).__name__} was made for no number of nodes")
        self.in_channels = in_channels
        self.num_nodes = num_nodes
        self.aggregation: Aggregation = aggregation
        self.edge_dim = edge_dim
        self.root = root
        self.fixed_graph = fixed_graph
        self._kept: KeptGraph | None = None
        order = node_order_of(self.gate)
        if coordinates is not None:
            if len(coordinates) != self.num_nodes:
                raise ValueError(f"the layer has {self.num_nodes} nodes, but there are {len(coordinates)} coordinates")
            order.note("coordinates", hash_coordinates(coordinates))

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]  # the arguments of graph convolutions
        self,
        x: torch.Tensor,
        edge_index: torch.Tensor,
        edge_weight: torch.Tensor | None = None,
        edge_attr: torch.Tensor | None = None,
        *,
        node_id: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Features of the nodes to outputs of their experts.

        Args:
            x: `(N, C)`; `(B, N, C)` for samples that share the edges; or `(B * N, C)` with the edges of B graphs, as
                batches of torch_geometric have them.
            edge_index: Source and target of each edge, `(2, M)`, int64. Targets sum over sources; an undirected edge is
                given in both directions.
            edge_weight: Factor of each edge, `(M,)`.
            edge_attr: Further factors of each edge, `(M, D)`; a sum for each column.
            node_id: Which nodes of the graph `x` has, `(n,)`, where it has some only: `n_id` of a NeighborLoader.

        Returns:
            Of the shape of `x` with E * F channels; channels `[s * F, (s + 1) * F)` are each node's s-th expert.
        """
        self._check(x, edge_index, node_id)
        num_nodes = self.num_nodes if node_id is None else x.shape[-2]
        # Sizes without -1, which a tensor of no elements does not have.
        samples = x if x.ndim == 3 else x.reshape(x.shape[0] // max(1, num_nodes), num_nodes, self.in_channels)
        if node_id is None and self.fixed_graph and not (torch.compiler.is_compiling() or has_transforms()):
            self._note_edges(edge_index, x.shape[-2])
        features = self._features(samples, edge_index, edge_weight, edge_attr, x.shape[-2])
        output = self._run(features, node_id)
        output = output.transpose(1, 2).reshape(*x.shape[:-1], output.shape[1])
        # Written to in place, a view would lose the hook by which FSDP gathers parameters for the backward pass.
        return output.clone() if is_sharded(self) else output

    def _features(
        self,
        x: torch.Tensor,
        edge_index: torch.Tensor,
        edge_weight: torch.Tensor | None,
        edge_attr: torch.Tensor | None,
        num_nodes: int,
    ) -> torch.Tensor:
        """Features `(S, blocks * C, N)` of `(S, N, C)`, `[x(p), sum_q phi_0(q, p) x(q), ...]` at each node p.

        The edges number `num_nodes` nodes: N, or S * N. On a CPU they are sorted once and kept until others come.
        """
        given, num_edges = None if edge_attr is None else tuple(edge_attr.shape), edge_index.shape[-1]
        if edge_weight is not None and edge_weight.shape != (num_edges,):
            raise ValueError(f"edge_weight must be ({num_edges},), got shape {tuple(edge_weight.shape)}")
        wanted = (num_edges, self.edge_dim) if self.edge_dim else None
        if given != wanted:
            raise ValueError(f"edge_attr must be {wanted} for edge_dim={self.edge_dim}, got {given}")
        dtype = torch.promote_types(x.dtype, torch.float32)
        kept = self._kept if self._is_kept(edge_index, num_nodes) else None
        edges: torch.Tensor | SparseGraph
        if kept is None:
            check_edges(edge_index, num_nodes)
            has_loops = self.aggregation.startswith("gcn")
            edges = all_edges = with_all_self_loops(edge_index, num_nodes) if has_loops else edge_index
            if x.device.type == "cpu" and not (torch.compiler.is_compiling() or has_transforms()):
                edges = SparseGraph(all_edges, num_nodes)
                kept = self._kept = KeptGraph(edge_index.detach().clone(), edges, {})
        else:
            edges, all_edges = kept.graph, kept.graph.edge_index
        factors = kept.factors.get(dtype) if kept is not None and edge_weight is None else None
        if factors is None:
            factors = self._factors(edge_index, all_edges, edge_weight, num_nodes, dtype)
            if kept is not None and edge_weight is None:
                kept.factors[dtype] = factors
        if edge_attr is not None:
            # Self loops that were added have no direction.
            columns = F.pad(edge_attr.to(dtype).T, (0, factors.shape[1] - len(edge_attr)))
            factors = torch.cat([factors, columns * factors])
        return neighbour_features(x, edges, factors, num_nodes, root=self.root)

    def _is_kept(self, edge_index: torch.Tensor, num_nodes: int) -> bool:
        """Whether these are the edges that were sorted last."""
        if edge_index.device.type != "cpu" or torch.compiler.is_compiling() or has_transforms():
            return False
        kept = self._kept
        return kept is not None and kept.graph.num_nodes == num_nodes and torch.equal(kept.given, edge_index)

    def _factors(
        self,
        edge_index: torch.Tensor,
        all_edges: torch.Tensor,
        weight: torch.Tensor | None,
        num_nodes: int,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        # torch_geometric counts self loops of edges without weights once.
        added = 2.0 if self.aggregation == "gcn_improved" and weight is not None else 1.0
        if weight is None:
            weight = torch.ones(edge_index.shape[1], dtype=dtype, device=edge_index.device)
        weight = weight.to(dtype)
        if self.aggregation.startswith("gcn"):
            weight = one_self_loop_each(edge_index, weight, num_nodes, added)
        return edge_factors(all_edges, weight, num_nodes, self.aggregation)[None]

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_kept": None}

    def _check(self, x: torch.Tensor, edge_index: torch.Tensor, node_id: torch.Tensor | None) -> None:
        C, N = self.in_channels, self.num_nodes
        if not isinstance(edge_index, torch.Tensor):
            raise ValueError(f"edge_index must be a tensor (2, M), int64, got {type(edge_index).__name__}")
        if x.ndim not in (2, 3) or x.shape[-1] != C:
            raise ValueError(f"x must be (N, {C}), (B, N, {C}) or (B * N, {C}), got shape {tuple(x.shape)}")
        if not x.is_floating_point():
            raise ValueError(f"x must be floating, got {x.dtype}; convert it with x.float()")
        if node_id is not None:
            self._check_node_id(node_id, x.shape[-2])
        elif x.ndim == 3 and x.shape[1] != N:
            raise ValueError(
                f"the layer was made for {N} nodes, got {x.shape[1]}; for a part of them give node_id, for another "
                "mesh take it there by smoe.interpolate_grids(net, example_input=..., coordinates=(old, new))"
            )
        elif x.ndim == 2 and x.shape[0] % N:
            raise ValueError(
                f"x has {len(x)} nodes, no multiple of the {N} that the layer was made for; for a part of them give "
                "node_id, for another mesh take it there by smoe.interpolate_grids(net, example_input=..., "
                "coordinates=(old, new))"
            )

    def _check_node_id(self, node_id: torch.Tensor, num_given: int) -> None:
        if node_id.shape != (num_given,) or node_id.dtype != torch.int64:
            raise ValueError(
                f"node_id must be ({num_given},), int64, a number for each node of x, got {node_id.dtype} of shape "
                f"{tuple(node_id.shape)}"
            )
        if node_id.device.type == "cpu" and not torch.compiler.is_compiling() and len(node_id):
            low, high = (int(bound) for bound in node_id.aminmax())
            if low < 0 or high >= self.num_nodes:
                raise ValueError(f"node_id must be in [0, {self.num_nodes - 1}], got {low} to {high}")

    def _note_edges(self, edge_index: torch.Tensor, num_nodes: int) -> None:
        """Compares the edges of all samples with those that the gate was made for."""
        if edge_index.device.type != "cpu" or self._is_kept(edge_index, num_nodes):
            return
        check_edges(edge_index, num_nodes)
        fingerprints = edge_fingerprints(edge_index, self.num_nodes, num_nodes // self.num_nodes)
        for fingerprint in fingerprints.unique().tolist():
            node_order_of(self.gate).note("edges", fingerprint)

    def _as_convolution(
        self, source: torch.Tensor, filters: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, int, str] | None:
        """Nodes are pixels, and filters have one tap."""
        return source.unflatten(2, _fold(source.shape[2])), filters[:, :, None, None], 1, "zeros"

    def _apply_filters(self, source: torch.Tensor, filters: torch.Tensor) -> torch.Tensor:
        return filters @ source

    def _output_grid(self, input: torch.Tensor | None) -> tuple[int, ...]:
        del input
        return (self.num_nodes,)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, num_nodes={self.num_nodes}, aggregation={self.aggregation!r}, "
            f"edge_dim={self.edge_dim}, {super().extra_repr()}"
        )


def _fold(num_nodes: int) -> tuple[int, int]:
    """Rows and columns that hold the nodes exactly, as near to a square as can be: the kernels work on rows."""
    if torch.compiler.is_compiling():  # the number may be a symbol
        return 1, num_nodes
    rows = next(rows for rows in range(math.isqrt(num_nodes), 0, -1) if num_nodes % rows == 0)
    return rows, num_nodes // rows
