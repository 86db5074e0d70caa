"""Which experts serve which pixel: the routing as a value, and the selection of experts by their scores."""

from __future__ import annotations

import ctypes
import importlib
from pathlib import Path
from typing import Any, NamedTuple

import torch

from smoe._notebook import html_routing, html_text
from smoe.ops._operators import (
    IS_DENSE_ONLY,
    call_operator,
    has_transforms,
    library_for,
    native_library,
    num_threads,
    register_operator,
)
from smoe.options import ORDERS, Order


class Routing(NamedTuple):
    """The decision of a gate in one forward pass.

    The first dimension has size 1 if all samples share the routing, and size B if each sample has its own. Pixels are
    flat: a grid of H x W has P = H * W. A routing that was drawn without computing the scores of all experts has empty
    scores, `(1, 0, P)`.

    Attributes:
        indices: Selected experts `(1 or B, E, P)`, int32.
        scores: Scores that were ranked `(1 or B, X, P)`, at least float32.
        unranked: NaN at pixels where a score is not finite and 0 elsewhere, `(1 or B, 1, P)`, where such a score could
            not be refused; layers add it to their outputs. None otherwise.
        pixels: Numbers of the pixels among those of the gate, `(P,)`, where the routing has some of them only.
    """

    indices: torch.Tensor
    scores: torch.Tensor
    unranked: torch.Tensor | None = None
    pixels: torch.Tensor | None = None

    @property
    def has_scores(self) -> bool:
        return self.scores.shape[1] > 0

    def at(self, pixels: torch.Tensor) -> Routing:
        """The routing of some pixels `(P',)`."""
        unranked = None if self.unranked is None else self.unranked.index_select(2, pixels)
        return Routing(self.indices.index_select(2, pixels), self.scores.index_select(2, pixels), unranked, pixels)

    @property
    def weights(self) -> torch.Tensor:
        """Scores of the selected experts, `(1 or B, E, P)`; they carry the gradient of `scores`."""
        return self.scores.gather(1, self.indices.long())


class RoutingMap(NamedTuple):
    """The decision of a gate in the shape of its grid, for users and pictures.

    Attributes:
        indices: Selected experts, `(E, *grid)`, or `(B, E, *grid)` if the gate depends on its input; int64.
        weights: Their scores, of the same shape.
    """

    indices: torch.Tensor
    weights: torch.Tensor

    def plot(self, path: str | Path | None = None, *, num_experts: int | None = None, **options: Any) -> Any:
        """Draw the map by `smoe.plot_routing`, whose options these are.

        Args:
            path: Picture to write; None writes nothing.
            num_experts: Number of experts in the bank; one more than the largest number that is chosen if None.
            **options: Such as `coords` and `title`.

        Returns:
            The figure, which a notebook shows.
        """
        num_experts = int(self.indices.max()) + 1 if num_experts is None else num_experts
        # By name: pictures stand above the operators, and need matplotlib.
        return importlib.import_module("smoe").plot_routing(self.indices, path, num_experts=num_experts, **options)

    def _repr_html_(self) -> str:
        indices = self.indices.detach().cpu().numpy()
        shape = html_text(f"RoutingMap of {tuple(indices.shape)}: experts and their scores")
        return shape + (html_routing(indices, int(indices.max()) + 1) if indices.ndim in (2, 3) else "")


def weigh(selected: torch.Tensor, weights: torch.Tensor, expert_channels: int) -> torch.Tensor:
    """Multiplies the outputs of each selected expert by its weight."""
    per_channel = weights.to(selected.dtype).repeat_interleave(expert_channels, dim=1)
    return selected * per_channel.unflatten(2, selected.shape[2:])


def refuses_nonfinite(device: torch.device) -> bool:
    """Whether a selection on a device raises an error where a score is not finite.

    On an accelerator the host would have to wait for the device. Plain operations cannot raise in a compiled program,
    and what is exported may become plain operations. A transform of torch.func may have no single value to look at.
    """
    is_plain = torch.compiler.is_exporting() or (IS_DENSE_ONLY and torch.compiler.is_compiling()) or has_transforms()
    return device.type == "cpu" and not is_plain


def nan_where_nonfinite(values: torch.Tensor) -> torch.Tensor:
    """NaN at pixels where a value is not finite and 0 elsewhere, `(1 or B, 1, P)` of values `(1 or B, X, P)`."""
    values = values.detach()
    # Infinity minus itself is NaN, too.
    return (values - values).sum(dim=1, keepdim=True)


# Numbers of 32 bits, held in int64.
MASK = 0xFFFFFFFF
# Factor of a place in the hash of the noise, and the factors of the bijection that makes it pass as random, with their
# inverses modulo 2^32.
PLACE_FACTOR = 0x9E3779B9
_FACTORS = (0x7FEB352D, 0x846CA68B)
_INVERSES = tuple(pow(factor, -1, 1 << 32) for factor in _FACTORS)

# Up to this number, picking the best expert repeatedly is faster than sorting all of them (measured at 256 experts).
_MAX_REPEATED = 16


def top_experts(scores: torch.Tensor, num_selected: int, order: Order = "score") -> torch.Tensor:
    """Selects the experts with the highest scores at each pixel.

    Of equal scores the lower expert number wins, on every device. (`torch.topk` promises nothing about ties.) A NaN
    ranks last.

    Args:
        scores: Scores `(S, X, P)` of S samples.
        num_selected: E, the number of experts to select at each pixel, between 1 and X.
        order: `score` returns each pixel's favourite expert first, as in the paper; `index` sorts the selected experts
            by number; `families` divides the experts into E families in the order of their numbers, near-equal in size,
            and selects the best of each, so that a channel keeps its meaning while the scores change.

    Returns:
        Expert numbers `(S, E, P)`, int32.

    Raises:
        ValueError: If a score is not finite. Off the CPU this is not checked, because the host would have to wait for
            the device: the outputs of layers are NaN there.
    """
    if scores.ndim != 3:
        raise ValueError(f"scores must be (S, X, P) with flat pixels, got shape {tuple(scores.shape)}")
    num_experts = scores.shape[1]
    if not 1 <= num_selected <= num_experts:
        raise ValueError(f"num_selected must be in [1, {num_experts}], got {num_selected}")
    if order not in ORDERS:
        raise ValueError(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
    if order == "families":
        return call_operator(best_of_families, scores.detach(), num_selected, None, 0.0)
    indices = call_operator(_rank, scores.detach(), num_selected)
    return indices.sort(dim=1).values if order == "index" and num_selected > 1 else indices


def _dense(scores: torch.Tensor, num_selected: int) -> torch.Tensor:
    if scores.device.type == "cpu" and not (torch.compiler.is_compiling() or has_transforms()):
        refuse_nonfinite(scores)
    scores = scores.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    # `max` returns the first of equal values and a stable sort keeps their order: the lower index wins in both.
    # (`argmax` does too, but takes twenty times as long on a CPU.)
    if num_selected == 1:
        indices = scores.max(dim=1, keepdim=True).indices
    elif num_selected <= _MAX_REPEATED:
        indices = _repeated_max(scores, num_selected)
    else:
        indices = scores.sort(dim=1, descending=True, stable=True).indices[:, :num_selected]
    return indices.to(torch.int32).contiguous()


def _repeated_max(scores: torch.Tensor, num_selected: int) -> torch.Tensor:
    remaining = scores
    is_taken = torch.zeros_like(scores, dtype=torch.bool)
    chosen: list[torch.Tensor] = []
    for _ in range(num_selected):
        best = remaining.max(dim=1, keepdim=True).indices
        # Where all remaining scores are -inf, `max` may return an expert that was taken before.
        free = is_taken.to(torch.uint8).min(dim=1, keepdim=True).indices
        best = torch.where(is_taken.gather(1, best), free, best)
        chosen.append(best)
        # Not in place: an exported program must be functional.
        remaining = remaining.scatter(1, best, -torch.inf)
        is_taken = is_taken.scatter(1, best, True)
    return torch.cat(chosen, dim=1)


def _dense_families(scores: torch.Tensor, num_selected: int, seed: torch.Tensor | None, factor: float) -> torch.Tensor:
    if scores.device.type == "cpu" and not (torch.compiler.is_compiling() or has_transforms()):
        refuse_nonfinite(scores)
    if seed is not None:
        place = torch.arange(scores.shape[1] * scores.shape[2], device=scores.device) & MASK
        bits = scramble((place * PLACE_FACTOR + scramble(seed & MASK)) & MASK)
        noise = (bits & 0xFF) + ((bits >> 8) & 0xFF) + ((bits >> 16) & 0xFF) + (bits >> 24) - 510
        scores = scores + factor * noise.to(scores.dtype).view(1, *scores.shape[1:])
    scores = scores.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    # A family smaller than the largest repeats its first expert, which changes no maximum.
    members = family_members(scores.shape[1], num_selected, device=scores.device)
    best = scores[:, members].max(dim=2, keepdim=True).indices
    experts = members[None, :, :, None].expand(len(scores), -1, -1, scores.shape[2]).gather(2, best)
    return experts[:, :, 0].to(torch.int32).contiguous()


def scramble(bits: torch.Tensor) -> torch.Tensor:
    """A bijection of 32 bits, held in int64, whose outputs pass as random (lowbias32)."""
    bits = bits ^ (bits >> 16)
    bits = (bits * _FACTORS[0]) & MASK
    bits = bits ^ (bits >> 15)
    bits = (bits * _FACTORS[1]) & MASK
    return bits ^ (bits >> 16)


def unscramble(bits: torch.Tensor) -> torch.Tensor:
    """The inverse of `scramble`."""
    bits = bits ^ (bits >> 16)
    bits = (bits * _INVERSES[1]) & MASK
    bits = bits ^ (bits >> 15) ^ (bits >> 30)
    bits = (bits * _INVERSES[0]) & MASK
    return bits ^ (bits >> 16)


def family_members(num_experts: int, num_families: int, device: torch.device | None = None) -> torch.Tensor:
    """Experts of each family, `(E, K)` with the size K of the largest; smaller families repeat their first expert."""
    size, larger = divmod(num_experts, num_families)
    family = torch.arange(num_families, device=device)
    start = family * size + family.clamp(max=larger)
    place = torch.arange(size + (larger > 0), device=device)
    has_place = place < (size + (family < larger).to(torch.int64))[:, None]
    return start[:, None] + torch.where(has_place, place, 0)


def _native(scores: torch.Tensor, num_selected: int) -> torch.Tensor:
    if library_for(scores) is None:
        return _dense(scores, num_selected)
    return _rank_natively("smoe_top_experts", scores, num_selected)


def _native_families(scores: torch.Tensor, num_selected: int, seed: torch.Tensor | None, factor: float) -> torch.Tensor:
    if library_for(scores) is None:
        return _dense_families(scores, num_selected, seed, factor)
    seed = torch.zeros((), dtype=torch.int64) if seed is None else seed
    return _rank_natively("smoe_sample_families", scores, num_selected, seed, ctypes.c_float(factor))


def _rank_natively(name: str, scores: torch.Tensor, num_selected: int, *noise: object) -> torch.Tensor:
    library, scores = native_library(), scores.contiguous()
    assert library is not None
    num_samples, num_experts, num_pixels = scores.shape
    indices = torch.empty(num_samples, num_selected, num_pixels, dtype=torch.int32)
    for sample, ranked in zip(scores, indices, strict=True):
        found = ctypes.c_int64(0)
        sizes = (num_experts, num_selected, num_pixels)
        library.call(name, sample, *sizes, *noise, ranked, ctypes.byref(found), num_threads())
        if found.value:
            refuse_nonfinite(scores)
    return indices


def _fake(scores: torch.Tensor, num_selected: int, *noise: object) -> torch.Tensor:
    del noise
    return scores.new_empty((scores.shape[0], num_selected, scores.shape[2]), dtype=torch.int32)


_rank = register_operator(
    "top_experts(Tensor scores, int num_selected) -> Tensor", dense=_dense, native=_native, fake=_fake
)
best_of_families = register_operator(
    "family_experts(Tensor scores, int num_selected, Tensor? seed, float factor) -> Tensor",
    dense=_dense_families,
    native=_native_families,
    fake=_fake,
)


def refuse_nonfinite(scores: torch.Tensor) -> None:
    """Raises a ValueError with the place of the first score that is not finite, if there is one."""
    is_bad = scores.isfinite().logical_not()
    if is_bad.any():
        sample, expert, pixel = is_bad.nonzero()[0].tolist()
        raise ValueError(
            f"{int(is_bad.sum())} of {scores.numel()} gate scores are not finite, the first, "
            f"{float(scores[sample, expert, pixel])}, for expert {expert} at pixel {pixel} of sample {sample}: they "
            "cannot be ranked; look for a diverged loss or a NaN in the gate's input"
        )


class ErrorSignal:
    """State that a layer shares with its backward passes; both tensors are on the device of the layer.

    Attributes:
        loss_scale: Factor of the loss before its backward, a float64 scalar that is read when backward runs.
        num_nonfinite: Number of backward passes whose error was not finite, an int64 scalar. The gate's gradient is
            zero in these passes.
    """

    def __init__(self, device: torch.device | str | None = None) -> None:
        self.loss_scale = torch.ones((), dtype=torch.float64, device=device)
        self.num_nonfinite = torch.zeros((), dtype=torch.int64, device=device)

    def set_loss_scale(self, scale: torch.Tensor | float) -> None:
        """Sets the factor of the loss, without reading it on the host."""
        # `.data`: a compiled layer has saved this tensor for its backward, and is meant to see the new value.
        if isinstance(scale, torch.Tensor):
            self.loss_scale.data.copy_(scale)
        else:
            self.loss_scale.data.fill_(scale)

    def to(self, device: torch.device) -> None:
        self.loss_scale, self.num_nonfinite = self.loss_scale.to(device), self.num_nonfinite.to(device)
