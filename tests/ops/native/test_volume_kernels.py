"""Every build of every kernel in volumes of odd shapes: output and gradients beside those of float64."""

from __future__ import annotations

import ctypes
import random
from dataclasses import dataclass

import pytest
import torch

from smoe.ops.native.library import INSTRUCTION_SETS, NativeLibrary, _library_file, native_library, why_not
from smoe.ops.routed_conv.native import BATCH, LIST, PIXEL
from smoe.ops.routed_conv3d.dense import dense_routed_conv3d
from smoe.ops.routed_conv3d.grid import volume_grid
from smoe.ops.routed_conv3d.native import make_volume_problem

if native_library() is None:
    pytest.skip("the kernels are not built here; smoe bench backends says why", allow_module_level=True)

DIRECTIONS = ("forward", "input_gradient", "weight_gradient")


@dataclass(frozen=True)
class Volume:
    """A routed convolution of a volume."""

    B: int
    C: int
    X: int
    E: int
    sizes: tuple[int, int, int]
    kernel: tuple[int, int, int] = (3, 3, 3)
    stride: int = 1
    mode: str = "zeros"


def random_volumes(seed: int, number: int) -> list[Volume]:
    draw = random.Random(seed)
    cases: list[Volume] = []
    while len(cases) < number:
        X = draw.randint(1, 20)
        sizes = (draw.randint(1, 6), draw.randint(1, 11), draw.randint(1, 21))
        kernel = (draw.choice((1, 3, 5)), draw.choice((1, 3, 5)), draw.choice((1, 3, 5)))
        case = Volume(
            *(draw.randint(1, 20), draw.choice((1, 2, 3, 16, 17, 37)), X, draw.randint(1, X), sizes, kernel),
            *(draw.choice((1, 1, 2, 3)), draw.choice(("zeros", "circular", "none"))),
        )
        if min(volume_grid(case.sizes, case.kernel, case.stride, case.mode)) > 0:
            cases.append(case)
    return cases


def open_build(instruction_set: str) -> NativeLibrary:
    reason = why_not(instruction_set)
    if reason is not None:
        pytest.skip(reason)
    return NativeLibrary(instruction_set, ctypes.CDLL(str(_library_file(instruction_set))))


def check(library: NativeLibrary, family: str, case: Volume, num_threads: tuple[int, int] = (1, 2)) -> None:
    torch.manual_seed(0)
    grid = volume_grid(case.sizes, case.kernel, case.stride, case.mode)
    input, weight = torch.randn(case.B, case.C, *case.sizes), torch.randn(case.X, case.C, *case.kernel)
    indices = torch.rand(1, case.X, grid[0] * grid[1] * grid[2]).topk(case.E, dim=1).indices.int().contiguous()
    error = torch.randn(case.B, case.E, *grid)
    exact_input, exact_weight = input.double().requires_grad_(), weight.double().requires_grad_()
    output = dense_routed_conv3d(exact_input, exact_weight, indices, 1, case.stride, case.mode)
    output.backward(error.double())
    expected = {"forward": output.detach(), "input_gradient": exact_input.grad, "weight_gradient": exact_weight.grad}
    arguments = {"forward": (input, weight), "input_gradient": (error, weight), "weight_gradient": (input, error)}
    geometry = make_volume_problem(library, input, weight, indices, 1, case.stride, case.mode).geometry
    for direction in DIRECTIONS:
        truth = expected[direction]
        assert truth is not None
        results = []
        for threads in num_threads:
            geometry.threads = threads
            # Prefilled with NaN, so that an element nobody writes shows.
            result = torch.full(truth.shape, torch.nan)
            library.call(f"{family}_{direction}", *(ctypes.byref(geometry), *arguments[direction], indices, result))
            results.append(result)
        assert torch.equal(*results), f"{direction} of {case} depends on the number of threads"
        scale = float(truth.abs().max().clamp_min(1e-30))
        difference = float((results[0].double() - truth).abs().max()) / scale
        assert difference < 1e-5, f"{direction} of {case}: relative difference {difference}"


@pytest.mark.parametrize("family", [PIXEL, LIST, BATCH])
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_odd_volumes(instruction_set: str, family: str) -> None:
    library = open_build(instruction_set)
    for case in random_volumes(2, 30):
        check(library, family, case)


# Several bands of a sample, with slices in another band than the slices that read them, and several passes of a tile.
BANDS = [
    Volume(1, 16, 16, 12, (5, 60, 150)),
    Volume(2, 20, 13, 9, (6, 41, 300), (3, 5, 5), 2, "circular"),
    Volume(2, 3, 13, 9, (12, 34, 90), (1, 3, 3), 1, "none"),
    Volume(3, 40, 13, 9, (7, 25, 40), (5, 3, 3), 1, "zeros"),
]


@pytest.mark.parametrize("case", BANDS)
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_bands(instruction_set: str, case: Volume) -> None:
    # Bands grow with the number of threads: eight have other ones than one has.
    check(open_build(instruction_set), LIST, case, (1, 8))
