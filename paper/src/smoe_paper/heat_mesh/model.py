"""Makes the networks, the data and the training task of a recipe on another geometry."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from smoe.nn import GraphMoE, HEALPixMoE, RoutedLayer, SpatialMoE1d, SpatialMoE3d
from smoe.reports.run_report import Places
from smoe.rules import Rule
from smoe.training.task import Task
from smoe_paper.experiments.experiment import SPLITS, Notify, ReportParts
from smoe_paper.experiments.task import Learning, OpenRun, assemble_task
from smoe_paper.heat_mesh.data import Domain, make_domain, make_regions, make_split
from smoe_paper.heat_mesh.recipes import MeshModel, MeshMoEModel, MeshRecipe, SageModel
from smoe_paper.metrics import MeanAbsoluteError, MeanSquaredError, PercentWithin


class DomainNet(nn.Module):
    """One layer on the nodes of a domain: fields `(B, 1, *grid)` to fields; some need the edges `(2, M)`."""

    edges: torch.Tensor

    def __init__(self, layer: RoutedLayer, edges: torch.Tensor) -> None:
        super().__init__()
        self.layer = layer
        self.register_buffer("edges", edges, persistent=False)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if isinstance(self.layer, GraphMoE):
            return self.layer(input.transpose(1, 2), self.edges).transpose(1, 2)
        return self.layer(input)


class SageNet(nn.Module):
    """A stack of torch_geometric's `SAGEConv`: fields `(B, 1, N)` to fields, over the edges `(2, M)`."""

    adjacency: torch.Tensor

    def __init__(self, num_nodes: int, hidden: tuple[int, ...], node_features: int, edges: torch.Tensor) -> None:
        super().__init__()
        try:
            from torch_geometric.nn import SAGEConv
        except ImportError as error:
            raise ImportError("this baseline is torch_geometric's SAGEConv; pip install torch-geometric") from error
        sizes = (1 + node_features, *hidden, 1)
        self.layers = nn.ModuleList([SAGEConv(*pair) for pair in itertools.pairwise(sizes)])
        self.features = nn.Parameter(0.1 * torch.randn(num_nodes, node_features))
        self.register_buffer("adjacency", adjacency(edges, num_nodes), persistent=False)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        # One sample at a time stays in the cache: a third of the time of the whole batch.
        return torch.stack([self._apply_layers(sample) for sample in input])

    def _apply_layers(self, sample: torch.Tensor) -> torch.Tensor:
        x = torch.cat([sample.T, self.features], dim=1)
        for number, layer in enumerate(self.layers):
            x = layer(x, self.adjacency)
            if number < len(self.layers) - 1:
                x = x.relu()
        return x.T


def adjacency(edges: torch.Tensor, num_nodes: int) -> torch.Tensor:
    """The transposed adjacency matrix, which torch_geometric multiplies four times as fast as it scatters edges."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
        ones = torch.ones(edges.shape[1])
        shape = (num_nodes, num_nodes)
        return torch.sparse_coo_tensor(edges.flip(0), ones, shape, check_invariants=True).to_sparse_csr()


def build_model(options: MeshModel, learning: Learning, domain: Domain) -> nn.Module:
    edges = torch.from_numpy(domain.edges)
    if isinstance(options, SageModel):
        if len(domain.spatial_shape) != 1 or domain.full_degree is not None:
            raise ValueError(f"SAGEConv works on meshes, not on the grid of {domain.name}")
        return SageNet(domain.num_nodes, options.hidden, options.node_features, edges)
    num_candidates = options.num_candidates if isinstance(options, MeshMoEModel) else 1
    return DomainNet(_make_layer(domain, num_candidates, learning.rule if num_candidates > 1 else None), edges)


def _make_layer(domain: Domain, num_candidates: int, rule: Rule | None) -> RoutedLayer:
    # Diffusion has no offsets, and the experts are to be found, not local maps.
    options: dict[str, Any] = {"num_candidates": num_candidates, "rule": rule, "bias": False, "local_affine": False}
    shape = domain.spatial_shape
    if domain.name == "healpix":
        return HEALPixMoE(1, 1, nside=shape[1], **options)
    if domain.full_degree is None:
        return GraphMoE(1, 1, num_nodes=domain.num_nodes, **options)
    if len(shape) == 1:
        return SpatialMoE1d(1, 1, spatial_shape=(shape[0],), **options)
    return SpatialMoE3d(1, 1, spatial_shape=(shape[0], shape[1], shape[2]), **options)


def build_task(recipe: MeshRecipe, splits: tuple[str, ...] = SPLITS, notify: Notify = print) -> Task:
    regions = make_regions(recipe.data)
    data = {split: make_split(recipe.data, regions, split, notify) for split in splits}
    domain = make_domain(recipe.data.domain)
    torch.manual_seed(recipe.seed)
    model = build_model(recipe.model, Learning.of(recipe), domain)
    return assemble_task(
        recipe,
        model,
        F.mse_loss,
        [PercentWithin(0.01, 1e-8), MeanSquaredError(), MeanAbsoluteError()],
        data,
    )


def report_parts(run: OpenRun, split: str | None, notify: Notify) -> ReportParts:
    """The line, volume, sphere or surface of a run, and the true regions of its nodes."""
    del split, notify
    domain = make_domain(run.recipe.data.domain)
    is_grid = domain.full_degree is not None
    coordinates = None if is_grid else domain.coordinates
    return ReportParts(
        places=Places("grid" if is_grid else "mesh", domain.spatial_shape, coordinates=coordinates),
        targets=(("temperature", ""),),
        regions=make_regions(run.recipe.data),
        data={"domain": f"{domain.name}, {domain.num_nodes:,} nodes"},
    )
