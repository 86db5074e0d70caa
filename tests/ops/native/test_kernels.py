"""Every family of kernels, in every build that runs here, on shapes it would not be chosen for too."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch

from native_kernels import check_kernels, open_build
from smoe.ops._conv_kernels import BATCH, LIST, PIXEL, PLANES, dense_routed_conv2d, output_grid
from smoe.ops._operators import INSTRUCTION_SETS, NativeLibrary, native_library
from smoe.options import PaddingMode

if native_library() is None:
    pytest.skip("the kernels are not built here; python -m smoe.ops.backends says why", allow_module_level=True)


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


def check(library: NativeLibrary, family: str, case: Case, num_threads: tuple[int, int] = (1, 2)) -> None:
    torch.manual_seed(0)
    rows, columns = output_grid(case.H, case.W, case.stride)
    input, weight = torch.randn(case.B, case.C, case.H, case.W), torch.randn(case.X, case.C, *case.kernel)
    indices = torch.rand(1, case.X, rows * columns).topk(case.E, dim=1).indices.int()
    tensors, options = (input, weight, indices), (case.stride, case.mode)
    check_kernels(PLANES, dense_routed_conv2d, library, family, case, tensors, options, num_threads)


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
