"""Every family of kernels, in every build that runs here, on shapes it would not be chosen for too, beside float64."""

from __future__ import annotations

import ctypes
import math
import random
from dataclasses import dataclass

import pytest
import torch

from smoe.ops._conv_kernels import BATCH, LIST, PIXEL, conv_grid, dense_routed_conv, make_problem
from smoe.ops._operators import INSTRUCTION_SETS, NativeLibrary, _library_file, native_library, why_not

if native_library() is None:
    pytest.skip("the kernels are not built here; python -m smoe.ops.backends says why", allow_module_level=True)

DIRECTIONS = ("forward", "input_gradient", "weight_gradient")


@dataclass(frozen=True)
class Case:
    B: int
    C: int
    X: int
    E: int
    sizes: tuple[int, ...]
    kernel: tuple[int, ...] = (3, 3)
    stride: int = 1
    mode: str = "zeros"

    @property
    def grid(self) -> tuple[int, ...]:
        return conv_grid(self.sizes, self.kernel, self.stride, self.mode)


def random_planes(seed: int, count: int) -> list[Case]:
    draw = random.Random(seed)
    cases = []
    for _ in range(count):
        experts = draw.choice([1, 2, 3, 6, 7, 13, 24, 40])
        cases.append(
            Case(
                draw.choice([1, 2, 3, 5, 7, 8, 12, 15, 16, 17, 33]),
                draw.choice([1, 2, 3, 7, 8, 16, 17, 33]),
                experts,
                draw.randint(1, experts),
                (draw.choice([1, 2, 3, 5, 8, 17]), draw.choice([1, 2, 3, 5, 8, 15, 16, 17, 33])),
                draw.choice([(1, 1), (3, 3), (3, 3), (5, 5), (7, 7), (3, 5)]),
                draw.choice([1, 1, 2, 3]),
                draw.choice(["zeros", "zeros", "circular", "longitude"]),
            )
        )
    return cases


def random_volumes(seed: int, count: int) -> list[Case]:
    draw = random.Random(seed)
    cases: list[Case] = []
    while len(cases) < count:
        X = draw.randint(1, 20)
        sizes = (draw.randint(1, 6), draw.randint(1, 11), draw.randint(1, 21))
        kernel = (draw.choice((1, 3, 5)), draw.choice((1, 3, 5)), draw.choice((1, 3, 5)))
        case = Case(
            *(draw.randint(1, 20), draw.choice((1, 2, 3, 16, 17, 37)), X, draw.randint(1, X), sizes, kernel),
            *(draw.choice((1, 1, 2, 3)), draw.choice(("zeros", "circular", "none"))),
        )
        if min(case.grid) > 0:
            cases.append(case)
    return cases


def open_build(instruction_set: str) -> NativeLibrary:
    reason = why_not(instruction_set)
    if reason is not None:
        pytest.skip(reason)
    return NativeLibrary(instruction_set, ctypes.CDLL(str(_library_file(instruction_set))))


def check(library: NativeLibrary, family: str, case: Case, num_threads: tuple[int, int] = (1, 2)) -> None:
    """Compares output and gradients with those of float64, for two numbers of threads, which must agree bit by bit."""
    torch.manual_seed(0)
    input, weight = torch.randn(case.B, case.C, *case.sizes), torch.randn(case.X, case.C, *case.kernel)
    indices = torch.rand(1, case.X, math.prod(case.grid)).topk(case.E, dim=1).indices.int().contiguous()
    exact_input, exact_weight = input.double().requires_grad_(), weight.double().requires_grad_()
    output = dense_routed_conv(exact_input, exact_weight, indices, 1, case.stride, case.mode)
    error = torch.randn(output.shape)
    output.backward(error.double())
    expected = {"forward": output.detach(), "input_gradient": exact_input.grad, "weight_gradient": exact_weight.grad}
    arguments = {"forward": (input, weight), "input_gradient": (error, weight), "weight_gradient": (input, error)}
    for direction in DIRECTIONS:
        truth = expected[direction]
        assert truth is not None
        results = []
        for threads in num_threads:
            shapes = (input.shape, weight.shape, indices.shape)
            geometry = make_problem(*shapes, case.stride, case.mode, threads).geometry
            # Prefilled with NaN, so that an element nobody writes shows.
            result = torch.full(truth.shape, torch.nan)
            library.call(f"{family}_{direction}", ctypes.byref(geometry), *arguments[direction], indices, result)
            results.append(result)
        assert torch.equal(*results), f"{direction} of {case} depends on the number of threads"
        scale = float(truth.abs().max().clamp_min(1e-30))
        difference = float((results[0].double() - truth).abs().max()) / scale
        assert difference < 1e-5, f"{direction} of {case}: relative difference {difference}"


CORNERS = [
    Case(1, 1, 1, 1, (1, 1)),
    Case(4, 3, 5, 5, (6, 7)),
    Case(20, 40, 30, 9, (9, 20)),
    Case(3, 2, 4, 2, (2, 2), kernel=(7, 7), mode="circular"),
    Case(2, 5, 9, 1, (40, 3), stride=2, mode="longitude"),
    Case(17, 64, 16, 8, (8, 16)),
]


@pytest.mark.parametrize("family", [PIXEL, LIST, BATCH])
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_odd_shapes(instruction_set: str, family: str) -> None:
    library = open_build(instruction_set)
    for case in [*CORNERS, *random_planes(1, 40), *random_volumes(2, 30)]:
        check(library, family, case)


# Too large for one band of the list kernels, in all directions: several bands of a sample, with the border in another
# band than the rows or slices it wraps to; and several samples in a band.
BANDS = [
    Case(1, 16, 16, 12, (130, 600)),
    Case(2, 20, 13, 9, (300, 600), (5, 5), 2, "circular"),
    Case(2, 3, 13, 9, (250, 400), (3, 3), 1, "longitude"),
    Case(6, 16, 13, 9, (60, 300), (3, 3), 1, "circular"),
    Case(1, 16, 16, 12, (5, 60, 150), (3, 3, 3)),
    Case(2, 20, 13, 9, (6, 41, 300), (3, 5, 5), 2, "circular"),
    Case(2, 3, 13, 9, (12, 34, 90), (1, 3, 3), 1, "none"),
    Case(3, 40, 13, 9, (7, 25, 40), (5, 3, 3), 1, "zeros"),
]


@pytest.mark.parametrize("case", BANDS)
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_bands(instruction_set: str, case: Case) -> None:
    # Bands grow with the number of threads: eight have other ones than one has.
    check(open_build(instruction_set), LIST, case, (1, 8))


@pytest.mark.slow
@pytest.mark.parametrize("family", [PIXEL, LIST, BATCH])
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_many_odd_shapes(instruction_set: str, family: str) -> None:
    library = open_build(instruction_set)
    for case in random_planes(2, 400):
        check(library, family, case)
