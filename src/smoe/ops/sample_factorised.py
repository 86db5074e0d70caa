"""Selection with noise from keys and embeddings, whose products are the scores, without storing the scores."""

from __future__ import annotations

import ctypes

import torch

from smoe.ops.families import BYTES_STD, sample_families
from smoe.ops.native.library import library_for, num_threads
from smoe.ops.registration import call_operator, register_operator
from smoe.ops.top_experts import refuse_nonfinite

# Numbers of a pixel that the kernel holds at once.
_MAX_RANK = 64


def sample_factorised(
    keys: torch.Tensor, embedding: torch.Tensor, num_selected: int, seed: torch.Tensor, noise: float
) -> torch.Tensor:
    """Selects the best expert of each family by the scores `keys @ embedding` after noise was added to them.

    The result is that of `sample_families` for these scores, but for the rounding of the products.

    Args:
        keys: `(X, R)`.
        embedding: `(R, P)`.
        num_selected: E, the number of families.
        seed: Seed of the noise, an int64 scalar on the device of the keys; it is read modulo 2^32.
        noise: Standard deviation of the noise, which is independent for each expert and pixel.

    Returns:
        Expert numbers `(1, E, P)`, int32.
    """
    return call_operator(_sample, keys.detach(), embedding.detach(), num_selected, seed, noise)


def _dense(
    keys: torch.Tensor, embedding: torch.Tensor, num_selected: int, seed: torch.Tensor, noise: float
) -> torch.Tensor:
    return sample_families((keys @ embedding)[None], num_selected, seed, noise)


def _native(
    keys: torch.Tensor, embedding: torch.Tensor, num_selected: int, seed: torch.Tensor, noise: float
) -> torch.Tensor:
    library = library_for(keys, embedding)
    (num_experts, rank), num_pixels = keys.shape, embedding.shape[1]
    if library is None or rank > _MAX_RANK or num_pixels == 0:
        return _dense(keys, embedding, num_selected, seed, noise)
    keys, embedding = keys.contiguous(), embedding.contiguous()
    indices = torch.empty(1, num_selected, num_pixels, dtype=torch.int32)
    found = ctypes.c_int64(0)
    sizes = (ctypes.c_int64(size) for size in (rank, num_experts, num_selected, num_pixels))
    library.call(
        "smoe_sample_factorised",
        *(
            keys,
            embedding,
            *sizes,
            seed,
            ctypes.c_float(noise / BYTES_STD),
            indices,
            ctypes.byref(found),
            num_threads(),
        ),
    )
    if found.value:
        refuse_nonfinite((keys @ embedding)[None])
    return indices


def _fake(
    keys: torch.Tensor, embedding: torch.Tensor, num_selected: int, seed: torch.Tensor, noise: float
) -> torch.Tensor:
    del seed, noise
    return keys.new_empty((1, num_selected, embedding.shape[1]), dtype=torch.int32)


_sample = register_operator(
    "sample_factorised(Tensor keys, Tensor embedding, int num_selected, Tensor seed, float noise) -> Tensor",
    dense=_dense,
    native=_native,
    fake=_fake,
)
