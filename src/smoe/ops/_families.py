"""Families of experts, and their selection with noise."""

from __future__ import annotations

import ctypes
import math

import torch

from smoe.ops._conv_kernels import make_problem
from smoe.ops._operators import call_operator, library_for, num_threads, register_operator
from smoe.ops._routing import MASK, PLACE_FACTOR, best_of_families, refuse_nonfinite, scramble, unscramble

# Standard deviation of the sum of four bytes.
BYTES_STD = math.sqrt(4 * (256**2 - 1) / 12)


def family_sizes(num_experts: int, num_families: int) -> list[int]:
    """Number of experts in each family: near-equal, the larger ones first."""
    size, larger = divmod(num_experts, num_families)
    return [size + (family < larger) for family in range(num_families)]


def experts_of(num_experts: int, num_families: int, families: slice) -> slice:
    """The experts of consecutive families, which are consecutive too."""
    size, larger = divmod(num_experts, num_families)
    first, end, _ = families.indices(num_families)
    return slice(first * size + min(first, larger), end * size + min(end, larger))


def sample_families(scores: torch.Tensor, num_selected: int, seed: torch.Tensor, noise: float) -> torch.Tensor:
    """Selects the best expert of each family after noise was added to the scores.

    The noise is nearly Gaussian and bounded by 3.5 standard deviations: an expert that leads its family by more than
    twice that is selected for certain.

    Args:
        scores: Scores `(1, X, P)`.
        num_selected: E, the number of families.
        seed: Seed of the noise, an int64 scalar on the device of the scores; it is read modulo 2^32.
        noise: Standard deviation of the noise, which is independent for each expert and pixel.

    Returns:
        Expert numbers `(1, E, P)`, int32.
    """
    return call_operator(best_of_families, scores.detach(), num_selected, seed, noise / BYTES_STD)


def shifted_seed(seed: torch.Tensor, place: int) -> torch.Tensor:
    """The seed of a part of the experts whose noise begins at a place, the number of its first expert times P."""
    return unscramble((scramble(seed & MASK) + (place * PLACE_FACTOR & MASK)) & MASK)


# Numbers of a pixel that the kernel holds at once.
_MAX_RANK = 64


def sample_factorised(
    keys: torch.Tensor, embedding: torch.Tensor, num_selected: int, seed: torch.Tensor, noise: float
) -> torch.Tensor:
    """`sample_families` for the scores `keys @ embedding`, `(X, R)` and `(R, P)`, but for the rounding of products."""
    return call_operator(_sample_factorised, keys.detach(), embedding.detach(), num_selected, seed, noise)


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
    library.call(
        "smoe_sample_factorised",
        *(
            keys,
            embedding,
            *(rank, num_experts, num_selected, num_pixels),
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


_sample_factorised = register_operator(
    "sample_factorised(Tensor keys, Tensor embedding, int num_selected, Tensor seed, float noise) -> Tensor",
    dense=_dense,
    native=_native,
    fake=_fake,
)


def family_gradient(
    scores: torch.Tensor, products: torch.Tensor, num_families: int, temperature: float = 1.0
) -> torch.Tensor:
    """The gradient at the scores.

    Args:
        scores: `(1, X, P)`.
        products: D of each expert, `(1, X, P)`, up to a number for each family and pixel.
        num_families: E.
        temperature: Temperature of the softmax.

    Returns:
        `(1, X, P)`.
    """
    places = _places(scores.shape[1], num_families, scores.device)
    logits = _by_family(scores[0] / temperature, num_families, places, -torch.inf)
    products = _by_family(products[0].to(scores.dtype), num_families, places, 0.0)
    return _of_softmax(logits, products, temperature, places)


def relative_family_gradient(
    scores: torch.Tensor,
    products: torch.Tensor,
    num_families: int,
    temperature: float = 1.0,
    factor: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient at the scores, divided by the RMS of the products.

    D less the mean of its family is divided by the root mean square of that over all experts and pixels, so that
    neither the scale of the loss nor that of the data has an effect but by the factor. Arguments as for
    `family_gradient`, and a scalar factor on the device of the scores, 1 if None. Returns the gradient, `(1, X, P)`,
    and the spread, a scalar; where this is 0 or not finite, the gradient is 0.
    """
    factor = torch.ones((), device=scores.device) if factor is None else factor
    return _relative_gradient(scores.detach(), products, num_families, temperature, factor)


def _dense_gradient(
    scores: torch.Tensor, products: torch.Tensor, num_families: int, temperature: float, factor: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    places = _places(scores.shape[1], num_families, scores.device)
    logits = _by_family(scores[0] / temperature, num_families, places, -torch.inf)
    products = _by_family(products[0].to(scores.dtype), num_families, places, 0.0)
    is_member = logits > -torch.inf
    products = products - products.sum(dim=1, keepdim=True) / is_member.sum(dim=1, keepdim=True)
    products = torch.where(is_member, products, 0.0)
    # In float64, because squares of small errors would be 0.
    norm = torch.linalg.vector_norm(products, dtype=torch.float64)
    spread = (norm / math.sqrt(max(1, scores[0].numel()))).to(products.dtype)
    # The inverse of a smaller spread is not finite.
    is_usable = spread.isfinite() & (spread >= torch.finfo(spread.dtype).tiny)
    products = torch.where(is_usable, products, 0.0) / torch.where(is_usable, spread, 1.0)
    return _of_softmax(logits, products * factor.to(products.dtype), temperature, places), spread


def _native_gradient(
    scores: torch.Tensor, products: torch.Tensor, num_families: int, temperature: float, factor: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    library = library_for(scores, products)
    if library is None or scores.numel() == 0:
        return _dense_gradient(scores, products, num_families, temperature, factor)
    scores, products = scores.contiguous(), products.contiguous()
    _, num_experts, num_pixels = scores.shape
    gradient, spread = torch.empty_like(scores), scores.new_empty(())
    library.call(
        "smoe_family_gradient",
        *(scores, products, num_experts, num_families, num_pixels),
        *(ctypes.c_float(temperature), factor.to(scores), gradient, spread, num_threads()),
    )
    return gradient, spread


def _fake_gradient(
    scores: torch.Tensor, products: torch.Tensor, num_families: int, temperature: float, factor: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    del products, num_families, temperature, factor
    return scores.new_empty(scores.shape), scores.new_empty(())


_relative_gradient = register_operator(
    "family_gradient(Tensor scores, Tensor products, int num_families, float temperature, Tensor factor) "
    "-> (Tensor, Tensor)",
    dense=_dense_gradient,
    native=_native_gradient,
    fake=_fake_gradient,
)


def _of_softmax(
    logits: torch.Tensor, products: torch.Tensor, temperature: float, places: torch.Tensor | None
) -> torch.Tensor:
    probability = logits.softmax(dim=1)
    mean = (probability * products).sum(dim=1, keepdim=True)
    gradient = ((products - mean) * probability / temperature).flatten(0, 1)
    return (gradient if places is None else gradient[places])[None]


def _places(num_experts: int, num_families: int, device: torch.device) -> torch.Tensor | None:
    """Place of each expert among families that are padded to the size of the largest, `(X,)`; None if all are equal."""
    size, larger = divmod(num_experts, num_families)
    if larger == 0:
        return None
    expert = torch.arange(num_experts, device=device)
    # The first `larger` families have one expert more; each later one has one place that is empty.
    later = (expert - larger * (size + 1)) // size
    return torch.where(expert < larger * (size + 1), expert, expert + later.clamp(min=0))


def _by_family(values: torch.Tensor, num_families: int, places: torch.Tensor | None, fill: float) -> torch.Tensor:
    """`(X, P)` as `(E, K, P)`."""
    if places is not None:
        largest = -(-values.shape[0] // num_families)
        empty = values.new_full((num_families * largest, values.shape[1]), fill)
        values = empty.index_copy_(0, places, values)
    return values.unflatten(0, (num_families, -1))


def slot_products(error: torch.Tensor, outputs: torch.Tensor, expert_channels: int) -> torch.Tensor:
    """Sum over samples and outputs of an expert of error times output `(B, E * F, P)`, `(E, P)`, at least float32."""
    total = torch.zeros(error.shape[1:], dtype=torch.promote_types(error.dtype, torch.float32), device=error.device)
    # One sample after the other, so that no product of the size of the batch is stored.
    for sample, output in zip(error, outputs, strict=True):
        total.addcmul_(sample.to(total.dtype), output.to(total.dtype))
    return total if expert_channels == 1 else total.unflatten(0, (-1, expert_channels)).sum(dim=1)


def learn_factorised(
    source: torch.Tensor,
    error: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    keys: torch.Tensor,
    embedding: torch.Tensor,
    *,
    num_selected: int,
    expert_channels: int,
    stride: int,
    padding_mode: str,
    scale: float,
    temperature: float,
) -> tuple[torch.Tensor, torch.Tensor, bool] | None:
    """The gradient of keys and embedding by one kernel that stores neither outputs nor scores, on a CPU in float32.

    The scores are `scale * keys @ embedding`, `(X, R)` and `(R, P)`; their gradient is that of `family_gradient` for
    the products of the error `(B, E * F, *grid)` and the outputs of a convolution of the source `(B, C, *grid)` with
    all experts. Other arguments as for `routed_conv`.

    Returns:
        The gradients of keys and embedding, and whether they are finite; they are 0 otherwise. None without a kernel.
    """
    tensors = (source, error, weight, keys, embedding, *(() if bias is None else (bias,)))
    # The tensors of a tracer have no memory.
    library = library_for(*tensors) if set(map(type, tensors)) == {torch.Tensor} else None
    if library is None or source.numel() == 0 or error.numel() == 0:
        return None
    # Samples may be some of a batch, at equal distances.
    source = source if source[0].is_contiguous() else source.contiguous()
    error = error if error[0].is_contiguous() else error.contiguous()
    weight, keys, embedding = weight.contiguous(), keys.contiguous(), embedding.contiguous()
    routing = torch.Size((1, num_selected * expert_channels, embedding.shape[1]))
    problem = make_problem(source.shape, weight.shape, routing, stride, padding_mode, num_threads())
    by_keys, by_embedding, is_nonfinite = torch.empty_like(keys), torch.empty_like(embedding), ctypes.c_int64(0)
    library.call(
        "smoe_learn_factorised",
        *(ctypes.byref(problem.geometry), source, source.stride(0), error, error.stride(0)),
        *(weight, None if bias is None else bias.contiguous(), expert_channels),
        *(keys, embedding, keys.shape[1], ctypes.c_float(scale), ctypes.c_float(temperature)),
        *(by_keys, by_embedding, ctypes.byref(is_nonfinite)),
    )
    return by_keys, by_embedding, not is_nonfinite.value
