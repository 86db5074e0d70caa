"""The routed convolution of a volume by the kernels of the plane, some slices at a time.

The taps in depth become channels and the slices of a slab become one tall image, with rows between them that keep them
apart: zeros, or the wrapped borders of each slice. What the kernel computes in these rows is dropped. Memory beyond
input and output is that of one slab.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from smoe.ops.routed_conv.implementation import Implementation

# Bytes of a slab's tall image: it should fill the GPU.
_SLAB_BYTES = 256 << 20


@dataclass(frozen=True)
class Slabs:
    """How a volume is cut into slabs and laid out as tall images."""

    input: torch.Tensor
    kernel: tuple[int, int, int]
    padding_mode: str

    @property
    def margins(self) -> tuple[int, int]:
        """Rows above and below each slice in the tall image. Adjacent slices share zeros."""
        rows = self.kernel[1] // 2
        return (rows, rows) if self.padding_mode == "circular" else (0, rows)

    @property
    def pitch(self) -> int:
        """Rows of the tall image for each slice."""
        return self.input.shape[3] + sum(self.margins)

    @property
    def plane_padding(self) -> str:
        """Padding mode of the plane: rows are padded here."""
        return "longitude" if self.padding_mode == "circular" else "zeros"

    def ranges(self) -> Iterator[tuple[int, int]]:
        """First and last slice of each slab."""
        B, C, D, _, W = self.input.shape
        slice_bytes = self.input.element_size() * B * C * self.kernel[0] * self.pitch * W
        number = max(1, min(D, _SLAB_BYTES // max(1, slice_bytes)))
        for begin in range(0, D, number):
            yield begin, min(begin + number, D)

    def taps(self, begin: int, end: int) -> Iterator[tuple[int, slice, slice | torch.Tensor]]:
        """For each tap in depth: its number, the slices of the slab that it reaches, and those they come from."""
        D = self.input.shape[2]
        for tap in range(self.kernel[0]):
            first = begin + tap - self.kernel[0] // 2
            if self.padding_mode == "circular":
                source = torch.arange(first, first + end - begin, device=self.input.device) % D
                yield tap, slice(0, end - begin), source
                continue
            skipped = max(0, -first)
            last = max(skipped, min(end - begin, D - first))
            yield tap, slice(skipped, last), slice(first + skipped, first + last)

    def tall_image(self, begin: int, end: int) -> torch.Tensor:
        """`(B, kd * C, slices * pitch, W)`; tap t of the depth has the channels `[t * C, (t + 1) * C)`."""
        B, C, _, H, W = self.input.shape
        above, below = self.margins
        tall = self.input.new_empty(B, self.kernel[0] * C, end - begin, self.pitch, W)
        # Zeros only where nothing else is written: between slices, and where a tap reaches beyond the volume.
        tall[..., :above, :] = 0.0
        tall[..., above + H :, :] = 0.0
        for tap, reached, source in self.taps(begin, end):
            channels = tall[:, tap * C : (tap + 1) * C]
            channels[:, :, : reached.start] = 0.0
            channels[:, :, reached.stop :] = 0.0
            if reached.stop > reached.start:
                channels[:, :, reached, above : above + H] = self.input[:, :, source]
        if above:
            inner = tall[..., above : above + H, :]
            for row in range(above):
                tall[..., above - 1 - row, :] = inner[..., (-1 - row) % H, :]
            for row in range(below):
                tall[..., above + H + row, :] = inner[..., row % H, :]
        return tall.flatten(2, 3)

    def add_from_tall(self, total: torch.Tensor, gradient: torch.Tensor, begin: int, end: int) -> None:
        """The transpose of `tall_image`: adds a slab's gradient to that of the input."""
        C, H = self.input.shape[1], self.input.shape[3]
        above, below = self.margins
        tall = gradient.unflatten(2, (end - begin, self.pitch))
        inner = tall[..., above : above + H, :]
        if above:
            for row in range(above):
                inner[..., (-1 - row) % H, :] += tall[..., above - 1 - row, :]
            for row in range(below):
                inner[..., row % H, :] += tall[..., above + H + row, :]
        for tap, reached, source in self.taps(begin, end):
            if reached.stop > reached.start:
                part = inner[:, tap * C : (tap + 1) * C, reached]
                if isinstance(source, torch.Tensor):
                    total.index_add_(2, source, part)
                else:
                    total[:, :, source] += part

    def lay_out(self, values: torch.Tensor, begin: int, end: int) -> torch.Tensor:
        """Slices of `(S, E, D, H, W)` in the rows of the tall image, zero between them: `(S, E, slices * pitch, W)`."""
        S, E, _, H, W = values.shape
        above = self.margins[0]
        tall = values.new_empty(S, E, end - begin, self.pitch, W)
        tall[..., :above, :] = 0.0
        tall[..., above + H :, :] = 0.0
        tall[..., above : above + H, :] = values[:, :, begin:end]
        return tall.flatten(2, 3)

    def indices(self, indices: torch.Tensor, begin: int, end: int) -> torch.Tensor:
        """The routing of a slab's tall image; rows between slices select distinct experts too, as the kernels need."""
        S, E, _ = indices.shape
        H, W = self.input.shape[3:]
        above = self.margins[0]
        by_slice = indices.view(S, E, -1, H, W)[:, :, begin:end]
        tall = indices.new_empty(S, E, end - begin, self.pitch, W)
        tall[..., above : above + H, :] = by_slice
        for row in (*range(above), *range(above + H, self.pitch)):
            tall[..., row, :] = by_slice[..., 0, :]
        return tall.view(S, E, -1)

    def inner_rows(self, tall: torch.Tensor, begin: int, end: int) -> torch.Tensor:
        """The rows of the slices alone, `(B, E * F, slices, H, W)`."""
        above, H = self.margins[0], self.input.shape[3]
        return tall.unflatten(2, (end - begin, self.pitch))[..., above : above + H, :]


def _plane_weight(weight: torch.Tensor) -> torch.Tensor:
    """The bank with taps in depth as channels, `(X * F, kd * C, kh, kw)`."""
    return weight.transpose(1, 2).flatten(1, 2).contiguous()


def slab_routed_conv3d(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    padding_mode: str,
    plane: Implementation,
) -> torch.Tensor:
    """The output by the kernels of the plane; other arguments as the operator's."""
    slabs = Slabs(input, tuple(weight.shape[2:]), padding_mode)  # type: ignore[arg-type]
    bank = _plane_weight(weight)
    output = input.new_empty(input.shape[0], indices.shape[1] * expert_channels, *input.shape[2:])
    for begin, end in slabs.ranges():
        routing = slabs.indices(indices, begin, end)
        tall = plane.forward(slabs.tall_image(begin, end), bank, routing, expert_channels, 1, slabs.plane_padding)
        output[:, :, begin:end] = slabs.inner_rows(tall, begin, end)
    return output


def slab_routed_conv3d_backward(
    error: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    padding_mode: str,
    needs_input: bool,
    needs_weight: bool,
    plane: Implementation,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of input and weight by the kernels of the plane; one that is not needed is empty."""
    slabs = Slabs(input, tuple(weight.shape[2:]), padding_mode)  # type: ignore[arg-type]
    bank = _plane_weight(weight)
    by_input = input.new_zeros(input.shape if needs_input else 0)
    by_bank = bank.new_zeros(bank.shape if needs_weight else 0)
    for begin, end in slabs.ranges():
        tensors = (slabs.lay_out(error, begin, end), slabs.tall_image(begin, end), bank)
        options = (expert_channels, 1, slabs.plane_padding, needs_input, needs_weight)
        by_tall, by_weight = plane.backward(*tensors, slabs.indices(indices, begin, end), *options)
        if needs_input:
            slabs.add_from_tall(by_input, by_tall, begin, end)
        if needs_weight:
            by_bank += by_weight
    if needs_weight:
        by_bank = by_bank.unflatten(1, (weight.shape[2], weight.shape[1])).transpose(1, 2).contiguous()
    return by_input, by_bank
