"""Every build of every kernel in volumes of odd shapes: output and gradients beside those of float64."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import pytest
import torch

from native_kernels import check_kernels, open_build
from smoe.ops._conv_kernels import BATCH, LIST, PIXEL
from smoe.ops._operators import INSTRUCTION_SETS, NativeLibrary, native_library
from smoe.ops._routed_conv3d import VOLUMES, dense_routed_conv3d, volume_grid

if native_library() is None:
    pytest.skip("the kernels are not built here; python -m smoe.ops.backends says why", allow_module_level=True)


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


def check(library: NativeLibrary, family: str, case: Volume, num_threads: tuple[int, int] = (1, 2)) -> None:
    torch.manual_seed(0)
    num_voxels = math.prod(volume_grid(case.sizes, case.kernel, case.stride, case.mode))
    input, weight = torch.randn(case.B, case.C, *case.sizes), torch.randn(case.X, case.C, *case.kernel)
    indices = torch.rand(1, case.X, num_voxels).topk(case.E, dim=1).indices.int()
    tensors, options = (input, weight, indices), (case.stride, case.mode)
    check_kernels(VOLUMES, dense_routed_conv3d, library, family, case, tensors, options, num_threads)


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
