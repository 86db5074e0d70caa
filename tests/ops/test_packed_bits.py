"""Numbers in the fewest bits, against strings of binary digits."""

from __future__ import annotations

import pytest
import torch

from smoe.ops._operators import has_spare_bits, pack_bits, packed_shape, unpack_bits


@pytest.mark.parametrize("count", [1, 7, 8, 9, 64, 1001])
@pytest.mark.parametrize("num_bits", [0, 1, 2, 3, 8, 9, 17])
def test_numbers_are_packed_and_found_again(num_bits: int, count: int) -> None:
    numbers = torch.randint(1 << num_bits, (count,), dtype=torch.int32)
    numbers[-1] = (1 << num_bits) - 1
    packed = pack_bits(numbers, num_bits)
    assert packed.dtype == torch.uint8
    assert tuple(packed.shape) == packed_shape(num_bits, count)
    digits = [f"{number:0{num_bits}b}"[::-1] if num_bits else "" for number in numbers.tolist()]
    for bit in range(num_bits):
        # The first number is the lowest digit of the first byte.
        expected = [
            int("".join(digit[bit] for digit in digits[start : start + 8])[::-1], 2) for start in range(0, count, 8)
        ]
        assert packed[bit].tolist() == expected
    assert torch.equal(unpack_bits(packed, count), numbers)
    assert not has_spare_bits(packed, count)


@pytest.mark.parametrize("count", [1, 7, 8, 9])
def test_bits_beyond_the_last_number_are_seen(count: int) -> None:
    packed = pack_bits(torch.zeros(count, dtype=torch.int32), 3)
    for place in range(8 * packed.shape[1]):
        changed = packed.clone()
        changed[1, place // 8] |= 1 << place % 8
        assert has_spare_bits(changed, count) == (place >= count)
