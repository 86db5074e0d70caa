"""Region maps over a graph, and heat that diffuses along its edges at the rate of each node's region."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch

from smoe_paper.heat_mesh.data.domains import Domain


def grow_regions(domain: Domain, num_types: int, seed: int = 42) -> np.ndarray:
    """Grows a random map of regions by preferential attachment over the edges.

    Nodes are visited breadth first. If c of a node's neighbours were visited before it, c_k of them of type k, it
    becomes type k with probability `(1 - c / m) / n + c_k / m`, where m is one more than the largest c. On a plane
    with eight neighbours, visited row by row, this is the paper's rule.

    Returns:
        Types in [0, n), int64, `(N,)`.
    """
    neighbours = _neighbour_lists(domain)
    order, place = _breadth_first(neighbours)
    visited = [[other for other in neighbours[node] if place[other] < place[node]] for node in range(len(neighbours))]
    most = 1 + max(len(before) for before in visited)
    rng = np.random.default_rng(seed)
    regions = np.zeros(len(neighbours), dtype=np.int64)
    for node in order:
        before = visited[node]
        probabilities = np.full(num_types, (1 - len(before) / most) / num_types)
        for other in before:
            probabilities[regions[other]] += 1 / most
        regions[node] = rng.choice(num_types, p=probabilities)
    return regions


def _neighbour_lists(domain: Domain) -> list[list[int]]:
    lists: list[list[int]] = [[] for _ in range(domain.num_nodes)]
    for source, target in domain.edges.T.tolist():
        lists[target].append(source)
    return lists


def _breadth_first(neighbours: list[list[int]]) -> tuple[list[int], np.ndarray]:
    order: list[int] = []
    is_known = np.zeros(len(neighbours), dtype=bool)
    for start in range(len(neighbours)):
        if is_known[start]:
            continue
        is_known[start] = True
        queue = deque([start])
        while queue:
            node = queue.popleft()
            order.append(node)
            for other in neighbours[node]:
                if not is_known[other]:
                    is_known[other] = True
                    queue.append(other)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return order, place


def draw_states(regions: np.ndarray, num_runs: int, seed: int, *, background: float = 0.1) -> np.ndarray:
    """Draws states `(R, N)`: a faint random background with one to three drops of heat in each region type.

    Larger domains have more drops: the numbers are for 4,096 nodes, as in the paper.
    """
    rng = np.random.default_rng(seed)
    num_types, num_nodes = int(regions.max()) + 1, len(regions)
    states = rng.uniform(0.0, background, size=(num_runs, num_nodes))
    for state in states:
        num_drops = int(rng.integers(1, 4)) * -(-num_nodes // 4096)
        for kind in range(num_types):
            state[rng.choice(np.flatnonzero(regions == kind), size=num_drops)] = 1.0
    return states


def simulate(
    domain: Domain, regions: np.ndarray, rates: Sequence[float], states: np.ndarray, num_steps: int
) -> torch.Tensor:
    """Simulates heat: `x' = (1 - k) x + k * mean of the neighbours`, with the rate k of each node's region.

    The mean is over the neighbours of an inner node of a grid, beyond whose border is 0; rates of at most 1 are stable.
    Steps are in float64 and frames in float32.

    Args:
        domain: Where heat diffuses.
        regions: Type of each node, `(N,)`.
        rates: Rate of each type, in [0, 1].
        states: First states, `(R, N)`.
        num_steps: Steps of each run, T.

    Returns:
        Frames, the first states included, `(R, T + 1, N)`, float32.
    """
    for kind, rate in enumerate(rates):
        if not 0.0 <= rate <= 1.0:
            raise ValueError(f"the rate of region type {kind} must be in [0, 1] for a stable step, got {rate}")
    source, target = torch.from_numpy(domain.edges)
    rate = torch.tensor(rates, dtype=torch.float64)[torch.from_numpy(regions)]
    divided = (rate / torch.from_numpy(domain.degrees()).clamp(min=1))[target]
    nodes = torch.arange(domain.num_nodes)
    step = torch.sparse_coo_tensor(
        torch.stack([torch.cat([target, nodes]), torch.cat([source, nodes])]),
        torch.cat([divided, 1.0 - rate]),
        (domain.num_nodes, domain.num_nodes),
        check_invariants=True,
    ).coalesce()
    state = torch.from_numpy(states).T.contiguous()
    frames = torch.empty(len(states), num_steps + 1, domain.num_nodes)
    for number in range(num_steps + 1):
        frames[:, number] = state.T
        state = step @ state
    return frames
