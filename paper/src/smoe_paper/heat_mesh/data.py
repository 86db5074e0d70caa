"""Domains with regions, and heat diffusion on them."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from smoe_paper.experiments.experiment import Notify
from smoe_paper.heat.data import HeatPairs
from smoe_paper.heat_mesh.recipes import MeshDiffusion


@dataclass(frozen=True)
class Domain:
    name: str
    edges: np.ndarray  # source and target of each edge, both directions, `(2, M)`, int64
    coordinates: np.ndarray  # of the nodes, `(N, 3)`, float64
    spatial_shape: tuple[int, ...]  # grid of the nodes; `(N,)` if there is none
    full_degree: int | None = None  # neighbours of an inner node on a grid, beyond whose border is 0; None on a mesh

    @property
    def num_nodes(self) -> int:
        return len(self.coordinates)

    def degrees(self) -> np.ndarray:
        """Number by which the sum over the neighbours of each node is divided, `(N,)`."""
        if self.full_degree is not None:
            return np.full(self.num_nodes, self.full_degree)
        return np.bincount(self.edges[1], minlength=self.num_nodes)


def _grid(name: str, shape: tuple[int, ...]) -> Domain:
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    pairs = []
    for axis in range(len(shape)):
        here = numbers.take(range(shape[axis] - 1), axis=axis).reshape(-1)
        there = numbers.take(range(1, shape[axis]), axis=axis).reshape(-1)
        pairs += [np.stack([here, there]), np.stack([there, here])]
    places = np.stack(np.meshgrid(*(np.arange(size, dtype=float) for size in shape), indexing="ij"), axis=-1)
    coordinates = np.zeros((numbers.size, 3))
    coordinates[:, : len(shape)] = places.reshape(numbers.size, -1)
    return Domain(name, np.concatenate(pairs, axis=1), coordinates, shape, full_degree=2 * len(shape))


def line(length: int = 4096) -> Domain:
    return _grid("line", (length,))


def volume(size: int = 32) -> Domain:
    """A cube of voxels, each with six neighbours."""
    return _grid("volume", (size, size, size))


def healpix(nside: int = 32) -> Domain:
    """Pixels of a HEALPix sphere in the order of its faces, each with the four neighbours across its edges."""
    from smoe.ops import healpix_coordinates, pad_faces

    shape = (12, nside, nside)
    numbers = torch.arange(12 * nside * nside, dtype=torch.float64).view(1, 1, *shape)
    padded = pad_faces(numbers, 1)[0, 0]
    inner = slice(1, nside + 1)
    around = [padded[:, :-2, inner], padded[:, 2:, inner], padded[:, inner, :-2], padded[:, inner, 2:]]
    source = torch.cat([part.flatten() for part in around]).long().numpy()
    target = np.tile(np.arange(12 * nside * nside), 4)
    latitude, longitude = np.radians(healpix_coordinates(nside).numpy().T)
    coordinates = np.stack(
        [np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude), np.sin(latitude)], axis=1
    )
    return Domain("healpix", np.stack([source, target]), coordinates, shape)


def icosphere(num_subdivisions: int = 4) -> Domain:
    """An icosahedron whose triangles are cut in four repeatedly, on the unit sphere: 2,562 nodes after four times."""
    golden = (1 + 5**0.5) / 2
    corners = [(-1, golden, 0), (1, golden, 0), (-1, -golden, 0), (1, -golden, 0)]
    points = [np.roll(np.array(corner, dtype=float), shift) for shift in (0, 1, 2) for corner in corners]
    points = [point / np.linalg.norm(point) for point in points]
    # Corners of an icosahedron are neighbours at the shortest distance.
    distance = np.linalg.norm(np.array(points)[:, None] - np.array(points)[None], axis=2)
    near = (distance > 0) & (distance < 1.1)
    triangles = [
        (a, b, c)
        for a in range(12)
        for b in range(a + 1, 12)
        for c in range(b + 1, 12)
        if near[a, b] and near[b, c] and near[a, c]
    ]
    for _ in range(num_subdivisions):
        middles: dict[tuple[int, int], int] = {}

        def middle(a: int, b: int, middles: dict[tuple[int, int], int] = middles) -> int:
            key = (min(a, b), max(a, b))
            if key not in middles:
                point = points[a] + points[b]
                middles[key] = len(points)
                points.append(point / np.linalg.norm(point))
            return middles[key]

        finer = []
        for a, b, c in triangles:
            ab, bc, ca = middle(a, b), middle(b, c), middle(c, a)
            finer += [(a, ab, ca), (b, bc, ab), (c, ca, bc), (ab, bc, ca)]
        triangles = finer
    return _surface("icosphere", np.array(points), np.array(triangles))


def fsaverage5(hemisphere: str = "left") -> Domain:
    """The pial surface of one hemisphere of the average brain fsaverage5, which nilearn ships: 10,242 nodes."""
    try:
        from nilearn.datasets import load_fsaverage
    except ImportError as error:
        raise ImportError("fsaverage5 comes with nilearn; pip install nilearn") from error
    mesh = load_fsaverage("fsaverage5")["pial"].parts[hemisphere]
    return _surface("fsaverage5", np.asarray(mesh.coordinates, float), np.asarray(mesh.faces, np.int64))


def _surface(name: str, points: np.ndarray, triangles: np.ndarray) -> Domain:
    sides = np.concatenate([triangles[:, [0, 1]], triangles[:, [1, 2]], triangles[:, [2, 0]]])
    both = np.concatenate([sides, sides[:, ::-1]])
    edges = np.unique(both, axis=0).T
    return Domain(name, np.ascontiguousarray(edges), points, (len(points),))


def grow_regions(domain: Domain, num_types: int, seed: int = 42) -> np.ndarray:
    """Grows a random map of regions by preferential attachment over the edges.

    Nodes are visited breadth first. If c of a node's neighbours were visited before it, c_k of them of type k, it
    becomes type k with probability `(1 - c / m) / n + c_k / m`, where m is one more than the largest c. On a plane
    with eight neighbours, visited row by row, this is the paper's rule.
    """
    neighbours: list[list[int]] = [[] for _ in range(domain.num_nodes)]
    for source, target in domain.edges.T.tolist():
        neighbours[target].append(source)
    order = _breadth_first(neighbours)
    place = np.argsort(order)
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


def _breadth_first(neighbours: list[list[int]]) -> list[int]:
    order: dict[int, None] = {}
    for start in range(len(neighbours)):
        queue = deque([start])
        while queue:
            node = queue.popleft()
            if node not in order:
                order[node] = None
                queue.extend(neighbours[node])
    return list(order)


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

    Returns:
        Frames, the first states included, `(R, T + 1, N)`, float32.
    """
    if not all(0.0 <= rate <= 1.0 for rate in rates):
        raise ValueError(f"rates must be in [0, 1] for a stable step, got {tuple(rates)}")
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


@functools.lru_cache(maxsize=2)
def make_domain(name: str) -> Domain:
    makers = (line, volume, healpix, icosphere, fsaverage5)
    return {make.__name__: make for make in makers}[name]()


def make_regions(data: MeshDiffusion) -> np.ndarray:
    return grow_regions(make_domain(data.domain), len(data.rates), data.region_seed)


_SEEDS = {"train": 42, "validation": 546981, "test": 865124}


def make_split(data: MeshDiffusion, regions: np.ndarray, split: str, notify: Notify = print) -> HeatPairs:
    num_runs, domain = getattr(data, f"num_{split}_runs"), make_domain(data.domain)
    notify(f"simulating {num_runs} runs of {data.num_steps} steps on {domain.name} ({split})")
    states = draw_states(regions, num_runs, _SEEDS[split])
    frames = simulate(domain, regions, data.rates, states, data.num_steps)
    return HeatPairs(frames.unflatten(2, domain.spatial_shape).numpy())
