"""Embeddings that are computed from coordinates and static fields, so that a gate can move to other places."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Self

import torch
from torch import nn

from smoe.nn._gate import START_STD
from smoe.nn._gates import PixelEmbedding
from smoe.nn._own_steps import SelfOptimizing
from smoe.nn._routed_layer import check_positive
from smoe.ops._interpolation import nearest_places


class _PlaceNet(SelfOptimizing):
    """Sines and cosines of coordinates, and static fields, as they are and through a hidden layer; takes own steps."""

    # A weight acts on all pixels, so it steps by less than a number that acts on one.
    _step_size = 1e-3

    def __init__(self, num_coordinates: int, num_fields: int, num_octaves: int, hidden: int, rank: int) -> None:
        super().__init__()
        self.num_coordinates = num_coordinates
        self.num_octaves = num_octaves
        num_features = num_coordinates * (1 + 2 * num_octaves) + num_fields
        self.first = nn.Linear(num_features, hidden)
        self.last = nn.Linear(num_features + hidden, rank)
        with torch.no_grad():
            self.first.weight.mul_(3.0)
            self.last.weight.mul_(START_STD)

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        """`(D + K, *grid)` to `(rank, *grid)`."""
        flat = places.flatten(1).T.to(self.first.weight.dtype)
        coordinates, fields = flat[:, : self.num_coordinates], flat[:, self.num_coordinates :]
        waves = [2.0**octave * math.pi * coordinates for octave in range(self.num_octaves)]
        features = [coordinates, *(part for wave in waves for part in (wave.sin(), wave.cos())), fields]
        known = torch.cat(features, dim=1)
        return self.last(torch.cat([known, self.first(known).tanh()], dim=1)).T.unflatten(1, places.shape[1:])


class CoordinateEmbedding(PixelEmbedding):
    """A `PixelEmbedding` that is computed from the places of the pixels, and can move to other ones.

    A small network computes the numbers of a pixel from sines and cosines of its coordinates and from static fields; a
    table of numbers for each pixel is added. Layers whose gates are made of `embedding.at(coordinates)` select the
    experts that the coordinates stand for on any grid, mesh or region, without training. `interpolate_grids` and
    `transfer_gate` move it too, and in evaluation its layers take another grid over the same area as they are.

    Args:
        rank: Numbers for each pixel.
        coordinates: Places of the pixels, `(*grid, D)`, in any unit.
        fields: Static fields such as orography and a land mask, `(K, *grid)`, of mean 0 and deviation 1 or so.
        sphere: Whether the coordinates are latitude and longitude in degrees.
        table: Whether to add the table, which learns what the coordinates do not explain; other places take the numbers
            of the nearest pixel.
        num_octaves: Number of wavelengths: twice the extent of the coordinates, and each half of the one before.
        hidden: Units of the network.

    Example:
        >>> embedding = CoordinateEmbedding(8, coordinates, sphere=True)
        >>> layer = smoe.SpatialMoE2d(16, 16, embedding=embedding)
        >>> finer = smoe.SpatialMoE2d(16, 16, embedding=embedding.at(finer_coordinates))
    """

    places: torch.Tensor
    bounds: torch.Tensor

    def __init__(
        self,
        rank: int,
        coordinates: torch.Tensor,
        fields: torch.Tensor | None = None,
        *,
        sphere: bool = False,
        table: bool = True,
        num_octaves: int = 4,
        hidden: int = 32,
    ) -> None:
        check_positive(num_octaves=num_octaves, hidden=hidden)
        super().__init__(rank, tuple(coordinates.shape[:-1]), device=coordinates.device)
        self.sphere = sphere
        self.num_fields = 0 if fields is None else len(fields)
        self.has_table = table
        if not table:
            values = self.values.detach()
            del self.values
            self.register_buffer("values", values)
        points = self._points(coordinates)
        low, high = points.flatten(0, -2).amin(dim=0), points.flatten(0, -2).amax(dim=0)
        extent = torch.ones_like(low) if sphere else (high - low).clamp(min=1e-12) / 2
        self.register_buffer("bounds", torch.stack([torch.zeros_like(low) if sphere else (low + high) / 2, extent]))
        self.register_buffer("places", self._places(coordinates, fields))
        self.net = _PlaceNet(points.shape[-1], self.num_fields, num_octaves, hidden, rank).to(coordinates.device)

    def _points(self, coordinates: torch.Tensor) -> torch.Tensor:
        if not self.sphere:
            return coordinates.detach().float()
        if coordinates.shape[-1] != 2:
            raise ValueError(
                f"on a sphere, coordinates must be (*grid, 2), latitude and longitude, got {tuple(coordinates.shape)}"
            )
        latitude, longitude = coordinates.detach().double().deg2rad().unbind(dim=-1)
        around = latitude.cos()
        return torch.stack([around * longitude.cos(), around * longitude.sin(), latitude.sin()], dim=-1).float()

    def _places(self, coordinates: torch.Tensor, fields: torch.Tensor | None) -> torch.Tensor:
        """What the network sees, `(D + K, *grid)`."""
        grid = tuple(coordinates.shape[:-1])
        given = () if fields is None else tuple(fields.shape)
        if given != ((self.num_fields, *grid) if self.num_fields else ()):
            raise ValueError(f"fields must be {(self.num_fields, *grid)}, as many as before, got {given}")
        centre, extent = self.bounds
        parts = [((self._points(coordinates) - centre) / extent).movedim(-1, 0)]
        places = torch.cat([*parts, *([] if fields is None else [fields.detach().to(parts[0])])])
        if not bool(places.isfinite().all()):
            raise ValueError("coordinates and fields must be finite")
        return places

    def forward(self) -> torch.Tensor:
        return self.values + self.net(self.places)

    def at(self, coordinates: torch.Tensor, fields: torch.Tensor | None = None) -> Self:
        """A copy for other places.

        Args:
            coordinates: `(*new_grid, D)`, in the unit of the first ones.
            fields: Static fields there, `(K, *new_grid)`.
        """
        moved = copy.deepcopy(self)
        moved.move(coordinates, fields)
        return moved

    def move(self, coordinates: torch.Tensor, fields: torch.Tensor | None = None) -> None:
        """The same in place."""
        places = self._places(coordinates.to(self.places.device), fields)
        count = self.net.num_coordinates
        old, new = (each[:count].flatten(1).T.double().cpu() for each in (self.places, places))
        nearest = nearest_places(old, new, 1)[1][:, 0].to(places.device)
        self._take(places, self.values.detach().flatten(1)[:, nearest].unflatten(1, places.shape[1:]))

    def resize(
        self, interpolate: Callable[[torch.Tensor], torch.Tensor], choose: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        """Serves another grid over the same area.

        With a table each new pixel has the numbers of an old one; without, those that the network computes there.

        Args:
            interpolate: Brings a field `(N, *grid)` to the new grid.
            choose: Old pixels whose numbers the new ones take, `(P',)`, by the numbers of the old ones, `(N, P)`.
        """
        places = interpolate(self.places).detach()
        if self.sphere:  # means of points of a sphere are inside of it
            places = torch.cat([nn.functional.normalize(places[:3], dim=0), places[3:]])
        numbers = self().detach().flatten(1)
        taken = numbers[:, choose(numbers)].unflatten(1, places.shape[1:])
        self._take(places, taken - self.net(places).detach() if self.has_table else torch.zeros_like(taken))

    def _take(self, places: torch.Tensor, values: torch.Tensor) -> None:
        self.places = places
        if self.has_table:
            self._replace_numbers("values", values)
        else:
            self.values = values
