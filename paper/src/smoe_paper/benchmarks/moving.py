"""`smoe bench moving`: gates that learn on one grid of the sphere and serve others without training.

Three regions of a sphere, whose borders are waves of random directions, multiply the channels of white noise by their
own matrix. A layer of three candidates with a kernel of 1 learns on 32 x 64 pixels; its gate then moves.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import smoe
from smoe.command_line import parse
from smoe.nn import CoordinateEmbedding
from smoe.ops._healpix import healpix_coordinates
from smoe_paper.benchmarks.timing import circumstances, origin, write_table

GRID = (32, 64)
OPTIONS = {"num_candidates": 3, "local_affine": False}
EMBEDDINGS: dict[str, Callable[[Tensor], smoe.PixelEmbedding]] = {
    "table": lambda coordinates: smoe.PixelEmbedding(8, tuple(coordinates.shape[:-1])),
    "coordinates": lambda coordinates: CoordinateEmbedding(8, coordinates, sphere=True, table=False),
    "coordinates and table": lambda coordinates: CoordinateEmbedding(8, coordinates, sphere=True),
}


@dataclass(frozen=True)
class MovingOptions:
    """Measures what gates keep that move to other grids of the sphere, prints a table and stores it."""

    # Markdown file of the table; a .jsonl beside it holds the rows.
    output: Path = Path("paper/results/bench/moving.md")
    num_seeds: int = 3  # Seeds, each with regions of its own.
    num_steps: int = 400  # Training steps.


def degrees(rows: int, columns: int, south: float = -90.0, north: float = 90.0, east: float = 360.0) -> Tensor:
    """Latitude and longitude of the centres of pixels, `(rows, columns, 2)`."""
    latitude = south + (torch.arange(rows) + 0.5) * (north - south) / rows
    return torch.stack(torch.meshgrid(latitude, (torch.arange(columns) + 0.5) * east / columns, indexing="ij"), dim=-1)


def directions(coordinates: Tensor) -> Tensor:
    """Points of the unit sphere, `(..., 3)`."""
    latitude, longitude = coordinates.deg2rad().unbind(dim=-1)
    around = latitude.cos()
    return torch.stack([around * longitude.cos(), around * longitude.sin(), latitude.sin()], dim=-1)


class Sphere:
    """The task of a seed."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.waves = 3.0 * torch.randn(3, 12, 3, generator=self.generator)
        self.phases = 6.28 * torch.rand(3, 12, generator=self.generator)
        self.matrices = torch.randn(3, 4, 4, generator=self.generator) / 2

    def draw(self, number: int, coordinates: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets `(number, 4, *grid)` at `(*grid, 2)`."""
        waves = torch.einsum("...d,kwd->...kw", directions(coordinates), self.waves) + self.phases
        region = waves.sin().sum(dim=-1).argmax(dim=-1)
        input = torch.randn(number, 4, *region.shape, generator=self.generator)
        outputs = torch.einsum("koc,nc...->kno...", self.matrices, input)
        return input, outputs.gather(0, region.expand(1, *outputs.shape[1:]))[0]

    @torch.no_grad()
    def error(self, layer: nn.Module, coordinates: Tensor) -> float:
        """Mean squared error over the variance of the targets."""
        input, target = self.draw(32, coordinates)
        return float((layer.eval()(input) - target).square().mean() / target.var())


def _moved(layer: smoe.SpatialMoE2d, new: smoe.HEALPixMoE | smoe.SpatialMoE2d) -> nn.Module:
    """A layer of another grid with the candidates of a trained one."""
    state = {"weight": layer.weight.view_as(new.weight), "bias": layer._offsets(), "gate.keys": layer.gate.keys}
    new.load_state_dict({**new.state_dict(), **state})
    return new


def _embedding_at(layer: smoe.SpatialMoE2d, coordinates: Tensor) -> smoe.PixelEmbedding:
    """The embedding of the gate at other places: a table takes the nearest pixel's."""
    assert isinstance(layer.gate, smoe.FactorisedGate)
    if isinstance(layer.gate.embedding, CoordinateEmbedding):
        return layer.gate.embedding.at(coordinates)
    gate = smoe.transfer_gate(layer.gate, directions(degrees(*GRID)), directions(coordinates))
    assert isinstance(gate, smoe.FactorisedGate)
    return gate.embedding


def measure(embedding: str, seed: int, num_steps: int) -> dict[str, float]:
    task, coordinates = Sphere(seed), degrees(*GRID)
    torch.manual_seed(seed)
    layer = smoe.SpatialMoE2d(4, 4, 1, embedding=EMBEDDINGS[embedding](coordinates), **OPTIONS)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-2)
    for _ in range(num_steps):
        input, target = task.draw(8, coordinates)
        optimizer.zero_grad()
        nn.functional.mse_loss(layer(input), target).backward()
        optimizer.step()
    found = {"32 x 64": task.error(layer, coordinates)}
    finer = smoe.interpolate_grids(layer, example_input=torch.zeros(1, 4, 64, 128))
    found["64 x 128"] = task.error(finer, degrees(64, 128))
    region = degrees(60, 80, 30.0, 60.0, 40.0)
    new = smoe.SpatialMoE2d(4, 4, 1, embedding=_embedding_at(layer, region), **OPTIONS)
    found["region, 0.5 degrees"] = task.error(_moved(layer, new), region)
    faces = healpix_coordinates(32).float().view(12, 32, 32, 2)
    sphere = smoe.HEALPixMoE(4, 4, 1, nside=32, embedding=_embedding_at(layer, faces), **OPTIONS)
    found["HEALPix, nside 32"] = task.error(_moved(layer, sphere), healpix_coordinates(32, "nested").float())
    return found


def run(options: MovingOptions) -> str:
    torch.set_num_threads(1)
    rows = []
    for embedding in EMBEDDINGS:
        of_seeds = [measure(embedding, seed, options.num_steps) for seed in range(options.num_seeds)]
        errors = {grid: [found[grid] for found in of_seeds] for grid in of_seeds[0]}
        shown = {
            grid: f"{statistics.median(each):.2g} ({min(each):.2g} {max(each):.2g})" for grid, each in errors.items()
        }
        rows.append({"embedding": embedding, **shown, "errors": errors, **circumstances()})
    notes = (
        f"Test error over variance: median (least and largest) of {options.num_seeds} seeds, {options.num_steps} steps "
        f"of AdamW 1e-2 on 32 x 64 pixels; no step on the other grids. {origin(rows[-1])}"
    )
    columns = [name for name in rows[0] if name not in ("errors", *circumstances())]
    return write_table(options.output, "Gates that move", "smoe bench moving", columns, rows, notes)


def main(args: list[str] | None = None) -> None:
    sys.stdout.write(run(parse(MovingOptions, args or [], prog="smoe bench moving")))
