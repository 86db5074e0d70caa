"""The sums that probing takes from one backward pass, in one pass over error and difference."""

from __future__ import annotations

import ctypes

import torch

from smoe.ops.native.library import library_for, num_threads
from smoe.ops.registration import register_operator


def at_slots(values: torch.Tensor, slots: torch.Tensor, expert_channels: int) -> torch.Tensor:
    """Outputs, or errors, `(B, F, P)` of one slot at each pixel, out of `(B, E * F, P)`."""
    if values.shape[1] == expert_channels:
        return values
    by_slot = values.unflatten(1, (-1, expert_channels))
    shape = (values.shape[0], 1, expert_channels, len(slots))
    return by_slot.gather(1, slots.expand(shape)).squeeze(1)


def _dense(
    error: torch.Tensor, difference: torch.Tensor, slots: torch.Tensor, loss_scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    difference = difference.float()
    slopes = (at_slots(error, slots, difference.shape[1]).float() * difference).sum(dim=1) / loss_scale
    return slopes.sum(dim=0), slopes.square().sum(dim=0), difference.square().sum(dim=(0, 1))


def _native(
    error: torch.Tensor, difference: torch.Tensor, slots: torch.Tensor, loss_scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    library = library_for(error, difference)
    if library is None or slots.device.type != "cpu":
        return _dense(error, difference, slots, loss_scale)
    error, difference, slots = error.contiguous(), difference.contiguous(), slots.contiguous()
    batch, outputs, pixels = difference.shape
    sums = [error.new_empty(pixels) for _ in range(3)]
    sizes = (ctypes.c_int64(size) for size in (batch, error.shape[1] // outputs, outputs, pixels))
    library.call("smoe_observe_probe", error, difference, slots, loss_scale.float(), *sizes, *sums, num_threads())
    slopes, squares, sizes_of_differences = sums
    return slopes, squares, sizes_of_differences


def _fake(
    error: torch.Tensor, difference: torch.Tensor, slots: torch.Tensor, loss_scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    del difference, loss_scale
    slopes, squares, sizes = (error.new_empty(slots.shape, dtype=torch.float32) for _ in range(3))
    return slopes, squares, sizes


sum_over_samples = register_operator(
    "observe_probe(Tensor error, Tensor difference, Tensor slots, Tensor loss_scale) -> (Tensor, Tensor, Tensor)",
    dense=_dense,
    native=_native,
    fake=_fake,
)
"""Slopes, their squares and the squared differences, each summed over the samples, `(P,)`.

Args:
    error: Error signal `(B, E * F, P)`.
    difference: Challenger's minus incumbent's output, `(B, F, P)`.
    slots: Slots of the incumbents, `(P,)`, int64.
    loss_scale: Factor of the loss before its backward pass, a scalar.
"""
