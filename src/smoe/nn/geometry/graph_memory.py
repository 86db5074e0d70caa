"""Keeps the sorted edges of the last graph, because most models see one graph for ever."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch

from smoe.ops.graph import SparseGraph


class KeptGraph:
    """A sorted graph, and what is known about the edges it was made of.

    Args:
        edge_index: The edges.
        graph: The graph.

    Attributes:
        graph: The graph.
    """

    def __init__(self, edge_index: torch.Tensor, graph: SparseGraph) -> None:
        self.graph = graph
        # A copy: the caller may change its edges, and a version cannot be compared between tensors.
        self._copy = edge_index.detach().clone()
        self._seen = _seen(edge_index)
        self._factors: torch.Tensor | None = None

    def is_of(self, edge_index: torch.Tensor, num_nodes: int) -> bool:
        """Whether the graph was made of these edges: by their identity, or by comparing them."""
        if self.graph.num_nodes != num_nodes:
            return False
        edges, version = self._seen
        if edges is not None and edges() is edge_index and version == edge_index._version:
            return True
        seen = _seen(edge_index)
        if self._copy.shape != edge_index.shape or not torch.equal(self._copy, edge_index):
            return False
        self._seen = seen
        return True

    def factors(self, dtype: torch.dtype, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The factors `(1, M)` of edges without weights, made once.

        Args:
            dtype: Dtype of the factors.
            make: Makes them.
        """
        factors = self._factors
        if factors is None or factors.dtype != dtype:
            factors = self._factors = make()
        return factors


class GraphMemory:
    """The last graph of a layer.

    Threads may share it: a graph is replaced as a whole, together with what belongs to it, and a thread works on the
    one that it found or made.
    """

    def __init__(self) -> None:
        self._kept: KeptGraph | None = None

    def find(self, edge_index: torch.Tensor, num_nodes: int) -> KeptGraph | None:
        """The sorted graph, if these are the edges it was made of."""
        kept = self._kept
        return kept if kept is not None and kept.is_of(edge_index, num_nodes) else None

    def keep(self, edge_index: torch.Tensor, graph: SparseGraph) -> KeptGraph:
        """Keeps a graph and the edges it was made of."""
        kept = self._kept = KeptGraph(edge_index, graph)
        return kept

    def __getstate__(self) -> dict[str, object]:
        return {}

    def __setstate__(self, state: dict[str, object]) -> None:
        del state
        self.__init__()

    def __deepcopy__(self, memo: dict[int, object]) -> GraphMemory:
        return GraphMemory()


def _seen(edge_index: torch.Tensor) -> tuple[weakref.ref[torch.Tensor] | None, int]:
    """A tensor and its version; inference tensors, which have none, are compared each time."""
    return (None, -1) if edge_index.is_inference() else (weakref.ref(edge_index), edge_index._version)
