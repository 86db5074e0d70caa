"""Small numbers in the fewest bits: one plane of bits after the other, eight numbers in a byte."""

from __future__ import annotations

import torch


def packed_shape(num_bits: int, count: int) -> tuple[int, int]:
    """Shape of `count` numbers of `num_bits` bits each when they are packed."""
    return num_bits, -(-count // 8)


def pack_bits(numbers: torch.Tensor, num_bits: int) -> torch.Tensor:
    """Packs numbers; the inverse is `unpack_bits`.

    Args:
        numbers: `(N,)`, integers in [0, 2 ** num_bits).
        num_bits: Bits of a number.

    Returns:
        `(num_bits, ceil(N / 8))`, uint8. Bit j of number i is bit `i % 8` of the byte `[j, i // 8]`; bits beyond the
        last number are 0.
    """
    _, num_bytes = packed_shape(num_bits, len(numbers))
    places = torch.arange(8, dtype=torch.uint8, device=numbers.device)
    packed = torch.empty(num_bits, num_bytes, dtype=torch.uint8, device=numbers.device)
    for bit in range(num_bits):
        plane = torch.zeros(num_bytes * 8, dtype=torch.uint8, device=numbers.device)
        plane[: len(numbers)] = (numbers >> bit) & 1
        packed[bit] = (plane.view(-1, 8) << places).sum(dim=1, dtype=torch.uint8)
    return packed


def unpack_bits(packed: torch.Tensor, count: int) -> torch.Tensor:
    """The numbers that `pack_bits` packed.

    Args:
        packed: `(num_bits, ceil(count / 8))`, uint8.
        count: N, how many numbers there are.

    Returns:
        `(N,)`, int32.
    """
    places = torch.arange(8, dtype=torch.uint8, device=packed.device)
    numbers = torch.zeros(count, dtype=torch.int32, device=packed.device)
    for bit, plane in enumerate(packed):
        numbers += ((plane[:, None] >> places) & 1).flatten()[:count].to(torch.int32) << bit
    return numbers


def has_spare_bits(packed: torch.Tensor, count: int) -> bool:
    """Whether a bit beyond the last of `count` numbers is set."""
    return count % 8 > 0 and bool((packed[:, -1:] >> (count % 8)).any())
