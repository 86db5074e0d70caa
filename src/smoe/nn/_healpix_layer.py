"""The SMoE layer on a HEALPix sphere: twelve faces, each padded by its neighbours, as the slices of a volume."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NotRequired, Required, Self, Unpack

import torch

from smoe.nn._filter_bank import BankOptions, FilterBank, LayerOptions, as_bank
from smoe.nn._grid_layers import check_axes
from smoe.ops._conv_kernels import convolve
from smoe.ops._healpix import (
    HEALPixOrder,
    border_sources,
    check_healpix_coordinates,
    check_nside,
    face_pixels,
    pad_faces,
    permute_pixels,
)
from smoe.ops._routing import RoutingMap


class SphereBankOptions(BankOptions):
    """Keyword arguments of `HEALPixMoE.from_experts`."""

    nside: Required[int]
    pixel_order: NotRequired[HEALPixOrder]
    coordinates: NotRequired[torch.Tensor | None]


class HEALPixMoE(FilterBank):
    """A bank of filters on a HEALPix sphere, of which a gate selects some at every pixel.

    A filter of 3 x 3 taps works on a pixel and its eight neighbours, in the directions of the pixel's face. The gate
    has the grid of the faces, `(12, n, n)`, whatever the order of the input.

    Args:
        in_channels: C, the number of channels of the input.
        out_channels: Number of channels of the output.
        kernel_size: Odd size of the filters, at most 2 * nside + 1.
        nside: n, the number of pixels along a side of a face.
        pixel_order: Order of pixels in an input `(B, C, 12 * n * n)`: `nested` or `ring`. Faces `(B, C, 12, n, n)` are
            taken with either; `smoe.ops._healpix` describes their axes.
        coordinates: Latitude and longitude of the pixels in degrees, `(12 * n * n, 2)`, to check the order by.
        **options: `num_candidates`, `bias`, `gate`, `embedding`, `rule`, `local_affine`, `device` and `dtype` as for
            `SpatialMoE2d`.

    Example:
        >>> layer = HEALPixMoE(16, 2, nside=32)
        >>> layer(torch.randn(4, 16, 12288)).shape
        torch.Size([4, 2, 12288])
    """

    pixels: torch.Tensor
    inverse: torch.Tensor
    border_sources: torch.Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        *,
        nside: int,
        pixel_order: HEALPixOrder = "nested",
        coordinates: torch.Tensor | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        num_experts, num_selected, bank = as_bank(out_channels, **options)
        self._init_sphere(in_channels, num_experts, num_selected, kernel_size, nside, pixel_order, coordinates, **bank)

    @classmethod
    def from_experts(
        cls,
        in_channels: int,
        num_experts: int,
        num_selected: int,
        kernel_size: int = 3,
        **options: Unpack[SphereBankOptions],
    ) -> Self:
        """The layer in the paper's terms, as `SpatialMoE2d.from_experts`, with X experts of which each pixel selects E.

        `nside`, `pixel_order` and `coordinates` are as for the layer.
        """
        layer = cls.__new__(cls)
        layer._init_sphere(in_channels, num_experts, num_selected, kernel_size, **options)
        return layer

    def _init_sphere(
        self,
        in_channels: int,
        num_experts: int,
        num_selected: int,
        kernel_size: int,
        nside: int,
        pixel_order: HEALPixOrder = "nested",
        coordinates: torch.Tensor | None = None,
        **options: Unpack[BankOptions],
    ) -> None:
        check_nside(nside, pixel_order)
        if coordinates is not None:
            check_healpix_coordinates(coordinates, nside, pixel_order)
        if kernel_size < 1 or kernel_size % 2 == 0 or kernel_size // 2 > nside:
            raise ValueError(
                f"kernel_size must be odd and at most {2 * nside + 1} for nside {nside}, got {kernel_size}"
            )
        kernel = (kernel_size, kernel_size)
        self._init_bank(in_channels, num_experts, num_selected, kernel, (12, nside, nside), **options)
        check_axes(self, 3)
        self.pixel_order: HEALPixOrder = pixel_order
        self.kernel_size = kernel
        self._note_nside(nside)
        self.register_load_state_dict_post_hook(_find_pixels)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        was_meta = self.pixels.is_meta
        super()._apply(fn, recurse)
        if was_meta:  # `to_empty` gives numbers without a meaning
            self._note_nside(self.nside)
        return self

    def _note_nside(self, nside: int) -> None:
        self.nside = nside
        pixel_order = self.pixel_order
        pixels = face_pixels(nside, pixel_order).to(self.weight.device)
        self.register_buffer("pixels", pixels, persistent=False)
        self.register_buffer("inverse", pixels.argsort(), persistent=False)
        sources = border_sources(nside, self.width).to(self.weight.device)
        self.register_buffer("border_sources", sources, persistent=False)

    @property
    def width(self) -> int:
        return self.kernel_size[0] // 2

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`(B, C, 12, n, n)` or `(B, C, 12 * n * n)` to the same with E * F channels."""
        num_pixels, n = 12 * self.nside**2, self.nside
        C = self.in_channels
        if input.ndim == 5 and tuple(input.shape[1:]) == (C, 12, n, n):
            return super().forward(input)
        if input.ndim != 3 or tuple(input.shape[1:]) != (C, num_pixels):
            given = input.shape[2:].numel()
            is_sphere = input.ndim in (3, 5) and given == 12 * math.isqrt(given // 12) ** 2 != num_pixels
            output = self._elsewhere(input) if is_sphere else None
            if output is not None:
                return output
            raise ValueError(
                f"input must be (B, {C}, 12, {n}, {n}) or (B, {C}, {num_pixels}), got shape {tuple(input.shape)}; "
                "smoe.interpolate_grids makes a layer for another nside"
            )
        faces = permute_pixels(input, self.pixels, self.inverse).unflatten(2, (12, n, n))
        return permute_pixels(super().forward(faces).flatten(2), self.inverse, self.pixels)

    def routing(self, input: torch.Tensor | None = None, *, faces: bool = False) -> RoutingMap:
        """What the gate decides.

        Args:
            input: Input of the layer as faces; needed only by a gate that looks at it.
            faces: Return faces `(E, 12, n, n)` instead of pixels in the order of the layer, `(E, 12 * n * n)`.
        """
        found = super().routing(input)
        if faces:
            return found
        indices, weights = (part.flatten(-3).index_select(-1, self.inverse) for part in found)
        return RoutingMap(indices, weights)

    def _prepare(self, input: torch.Tensor) -> torch.Tensor:
        return pad_faces(input, self.width, self.border_sources)

    def _apply_filters(self, source: torch.Tensor, filters: torch.Tensor) -> torch.Tensor:
        return convolve(source, filters.unsqueeze(2), padding_mode="none")

    def _as_convolution(
        self, source: torch.Tensor, filters: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, int, str] | None:
        # The faces have their borders.
        return source, filters.unsqueeze(2), 1, "none"

    def _output_grid(self, input: torch.Tensor | None) -> tuple[int, ...]:
        del input
        return (12, self.nside, self.nside)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, nside={self.nside}, "
            f"pixel_order={self.pixel_order!r}, {super().extra_repr()}"
        )


def _find_pixels(layer: HEALPixMoE, incompatible_keys: object) -> None:
    """Load hook: a layer without memory may have been given tensors."""
    del incompatible_keys
    if layer.pixels.is_meta:
        layer._note_nside(layer.nside)
