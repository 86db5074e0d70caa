"""The kernels that rank experts write every rank, whatever the scores are, in every build that runs here."""

from __future__ import annotations

import ctypes

import pytest
import torch

from definitions import loop_top_experts
from smoe.ops._operators import INSTRUCTION_SETS, NativeLibrary, _library_file, native_library, why_not

if native_library() is None:
    pytest.skip("the kernels are not built here; python -m smoe.ops.backends says why", allow_module_level=True)

UNWRITTEN = -(2**31)


def rank(instruction_set: str, name: str, scores: torch.Tensor, num_selected: int, threads: int):
    """Indices `(E, P)` of scores `(X, P)`, and whether the kernel reports a score that is not finite."""
    reason = why_not(instruction_set)
    if reason is not None:
        pytest.skip(reason)
    library = NativeLibrary(instruction_set, ctypes.CDLL(str(_library_file(instruction_set))))
    indices = torch.full((num_selected, scores.shape[1]), UNWRITTEN, dtype=torch.int32)
    found = ctypes.c_int64(0)
    sizes = [ctypes.c_int64(size) for size in (scores.shape[0], num_selected, scores.shape[1])]
    library.call(name, scores, *sizes, indices, ctypes.byref(found), ctypes.c_int64(threads))
    return indices, bool(found.value)


def spoil(scores: torch.Tensor, kind: str) -> torch.Tensor:
    if kind == "ties":
        # Many zeros among them, of either sign.
        scores = scores.round()
    elif kind == "zeros of both signs":
        scores = torch.where(scores > 0.5, scores, 0.0 * scores)
    elif kind == "wide":
        scores = scores.sign() * torch.exp(40 * scores.abs()).clamp(max=3e38)
    elif kind == "close":
        scores = 1.0 + 2.0**-23 * torch.randint(0, 2 * len(scores), scores.shape)
    elif kind == "one nan":
        scores[-1, -1] = torch.nan
    elif kind == "all nan":
        scores.fill_(torch.nan)
    elif kind == "nan pixels":
        scores[:, ::3] = torch.nan
    elif kind == "nan experts":
        scores[::2] = torch.nan
    elif kind == "infinities":
        scores[1::2, ::2] = -torch.inf
        scores[::4, 1::2] = torch.inf
    elif kind == "everything":
        scores[torch.rand(scores.shape) < 0.3] = torch.nan
        scores[torch.rand(scores.shape) < 0.2] = torch.inf
        scores[torch.rand(scores.shape) < 0.2] = -torch.inf
    return scores


FINITE = ("finite", "ties", "zeros of both signs", "wide", "close")
KINDS = (*FINITE, "one nan", "all nan", "nan pixels", "nan experts", "infinities", "everything")
# The best alone; networks of every size, with groups that are not full; more than networks sort: counted, and sorted.
SIZES = ((2, 1), (3, 2), (9, 9), (11, 3), (40, 8), (41, 16), (64, 1), (70, 33), (33, 32), (64, 64), (100, 99), (600, 5),
         (600, 65))  # fmt: skip


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_every_rank_is_written_and_nan_is_last(instruction_set):
    for number, (num_experts, num_selected) in enumerate(SIZES):
        # Each size meets four kinds, and each kind several sizes.
        for kind in ("everything", *(KINDS[(number + step) % len(KINDS)] for step in (0, 3, 6))):
            torch.manual_seed(num_experts)
            scores = spoil(torch.randn(num_experts, 69), kind)
            as_lowest = torch.where(scores.isnan(), -torch.inf, scores)
            for threads in (1, 2):
                indices, is_nonfinite = rank(instruction_set, "smoe_top_experts", scores, num_selected, threads)
                assert is_nonfinite == (kind not in FINITE), (num_experts, num_selected, kind)
                expected = loop_top_experts(as_lowest[None], num_selected)[0]
                assert torch.equal(indices, expected), (num_experts, num_selected, kind)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_every_family_has_an_expert_of_its_own(instruction_set):
    for num_experts, num_families in ((3, 3), (9, 2), (64, 7), (600, 5)):
        for kind in ("finite", "one nan", "all nan", "nan experts", "everything"):
            torch.manual_seed(num_experts)
            scores = spoil(torch.randn(num_experts, 37), kind)
            as_lowest = torch.where(scores.isnan(), -torch.inf, scores)
            parts = torch.arange(num_experts).tensor_split(num_families)
            for threads in (1, 2):
                indices, is_nonfinite = rank(instruction_set, "smoe_family_experts", scores, num_families, threads)
                assert is_nonfinite == (kind != "finite"), (num_experts, num_families, kind)
                for family, part in enumerate(parts):
                    best = loop_top_experts(as_lowest[None, part], 1)[0, 0] + part[0]
                    assert torch.equal(indices[family], best), (num_experts, num_families, kind)
