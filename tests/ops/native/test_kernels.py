"""Every family of kernels, in every build that runs here, on shapes it would not be chosen for too."""

from __future__ import annotations

import ctypes
import random
from dataclasses import dataclass

import pytest
import torch

from smoe.ops.native.library import INSTRUCTION_SETS, Geometry, NativeLibrary, _library_file, native_library, why_not
from smoe.ops.padding import output_grid
from smoe.ops.routed_conv import dense_routed_conv2d
from smoe.ops.routed_conv.native import BATCH, LIST, PIXEL
from smoe.options import PaddingMode

if native_library() is None:
    pytest.skip("the kernels are not built here; smoe bench backends says why", allow_module_level=True)

DIRECTIONS = ("forward", "input_gradient", "weight_gradient")


@dataclass(frozen=True)
class Case:
    B: int
    C: int
    X: int
    E: int
    H: int
    W: int
    kernel: tuple[int, int] = (3, 3)
    stride: int = 1
    mode: PaddingMode = "zeros"


def random_cases(seed: int, count: int) -> list[Case]:
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
                draw.choice([1, 2, 3, 5, 8, 17]),
                draw.choice([1, 2, 3, 5, 8, 15, 16, 17, 33]),
                draw.choice([(1, 1), (3, 3), (3, 3), (5, 5), (7, 7), (3, 5)]),
                draw.choice([1, 1, 2, 3]),
                draw.choice(["zeros", "zeros", "circular", "longitude"]),
            )
        )
    return cases


def open_build(instruction_set: str) -> NativeLibrary:
    reason = why_not(instruction_set)
    if reason is not None:
        pytest.skip(reason)
    return NativeLibrary(instruction_set, ctypes.CDLL(str(_library_file(instruction_set))))


def check(library: NativeLibrary, family: str, case: Case, num_threads: tuple[int, int] = (1, 2)) -> None:
    torch.manual_seed(0)
    grid = output_grid(case.H, case.W, case.stride)
    input, weight = torch.randn(case.B, case.C, case.H, case.W), torch.randn(case.X, case.C, *case.kernel)
    indices = torch.rand(1, case.X, grid[0] * grid[1]).topk(case.E, dim=1).indices.int()
    error = torch.randn(case.B, case.E, *grid)
    exact_input, exact_weight = input.double().requires_grad_(), weight.double().requires_grad_()
    output = dense_routed_conv2d(exact_input, exact_weight, indices, stride=case.stride, padding_mode=case.mode)
    output.backward(error.double())
    expected = {"forward": output.detach(), "input_gradient": exact_input.grad, "weight_gradient": exact_weight.grad}
    arguments = {"forward": (input, weight), "input_gradient": (error, weight), "weight_gradient": (input, error)}
    wraps = (int(case.mode == "circular"), int(case.mode != "zeros"))
    for direction in DIRECTIONS:
        truth = expected[direction]
        assert truth is not None
        results = []
        for threads in num_threads:
            geometry = Geometry(
                *(case.B, case.C, case.X, case.E, case.H, case.W, *grid, *case.kernel, case.stride, *wraps, threads),
                *(1, 1, 1, 0, 0, case.kernel[0] // 2, case.kernel[1] // 2),
            )
            # Prefilled with NaN, so that an element nobody writes shows.
            result = torch.full(truth.shape, torch.nan)
            library.call(
                f"{family}_{direction}",
                *(ctypes.byref(geometry), *arguments[direction], indices.contiguous(), result),
            )
            results.append(result)
        assert torch.equal(*results), f"{direction} of {case} depends on the number of threads"
        scale = float(truth.abs().max().clamp_min(1e-30))
        difference = float((results[0].double() - truth).abs().max()) / scale
        assert difference < 1e-5, f"{direction} of {case}: relative difference {difference}"


@pytest.mark.parametrize("family", [PIXEL, LIST, BATCH])
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_odd_shapes(instruction_set: str, family: str) -> None:
    library = open_build(instruction_set)
    for case in random_cases(1, 40):
        check(library, family, case)


# Too large for one band of the list kernels, in all directions: several bands of a sample, with the border in another
# band than the rows it wraps to; and several samples in a band.
BANDS = [
    Case(1, 16, 16, 12, 130, 600),
    Case(2, 20, 13, 9, 300, 600, (5, 5), 2, "circular"),
    Case(2, 3, 13, 9, 250, 400, (3, 3), 1, "longitude"),
    Case(6, 16, 13, 9, 60, 300, (3, 3), 1, "circular"),
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
    for case in random_cases(2, 400):
        check(library, family, case)


@pytest.mark.parametrize("family", [PIXEL, LIST, BATCH])
@pytest.mark.parametrize(
    "case",
    [
        Case(1, 1, 1, 1, 1, 1),
        Case(4, 3, 5, 5, 6, 7),
        Case(20, 40, 30, 9, 9, 20),
        Case(3, 2, 4, 2, 2, 2, kernel=(7, 7), mode="circular"),
        Case(2, 5, 9, 1, 40, 3, stride=2, mode="longitude"),
        Case(17, 64, 16, 8, 8, 16),
    ],
)
def test_corners(family: str, case: Case) -> None:
    library = native_library()
    assert library is not None
    check(library, family, case)
