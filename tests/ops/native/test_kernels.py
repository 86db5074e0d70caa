"""Every family of kernels, in every build that runs here, on shapes it would not be chosen for too, beside float64."""

from __future__ import annotations

import ctypes
import dataclasses
import math
import random
from dataclasses import dataclass

import pytest
import torch

from smoe.ops import routed_conv2d
from smoe.ops._conv_kernels import (
    BATCH,
    CHANNEL,
    FAMILY,
    JOINT,
    LIST,
    PIXEL,
    conv_grid,
    dense_routed_conv,
    make_problem,
)
from smoe.ops._operators import INSTRUCTION_SETS, NativeLibrary, _library_file, native_library, why_not

if native_library() is None:
    pytest.skip("the kernels are not built here; python -m smoe.ops.backends says why", allow_module_level=True)

DIRECTIONS = ("forward", "input_gradient", "weight_gradient", "bias_gradient")
# Of the kernels that serve families only.
SERVED = {FAMILY: ("forward",), JOINT: ("weight_gradient",), CHANNEL: ("input_gradient",)}


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
    bias = torch.randn(case.X) if (case.B + case.C) % 2 else None
    num_pixels = math.prod(case.grid)
    if family in SERVED:
        K = case.X // case.E
        indices = (K * torch.arange(case.E)[:, None] + torch.randint(K, (case.E, num_pixels)))[None].int()
    else:
        indices = torch.rand(1, case.X, num_pixels).topk(case.E, dim=1).indices.int().contiguous()
    exact_input, exact_weight = input.double().requires_grad_(), weight.double().requires_grad_()
    exact_bias = (torch.zeros(case.X) if bias is None else bias).double().requires_grad_()
    output = dense_routed_conv(exact_input, exact_weight, indices, 1, case.stride, case.mode, exact_bias)
    error = torch.randn(output.shape)
    output.backward(error.double())
    truths = (output.detach(), exact_input.grad, exact_weight.grad, exact_bias.grad)
    arguments = ((input, weight, bias), (error, weight), (input, error), (error,))
    for direction, truth, given in zip(DIRECTIONS, truths, arguments, strict=True):
        if direction not in SERVED.get(family, DIRECTIONS):
            continue
        assert truth is not None
        results = []
        for threads in num_threads:
            shapes = (input.shape, weight.shape, indices.shape)
            geometry = make_problem(*shapes, case.stride, case.mode, threads).geometry
            # Prefilled with NaN, so that an element nobody writes shows.
            result = torch.full(truth.shape, torch.nan)
            name = "smoe_bias_gradient" if direction == "bias_gradient" else f"{family}_{direction}"
            assert library.call(name, ctypes.byref(geometry), *given, indices, result)
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


@pytest.mark.parametrize("num_planes", [20, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", [PIXEL, LIST, BATCH])
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_odd_shapes(instruction_set: str, family: str, num_planes: int) -> None:
    library = open_build(instruction_set)
    for case in [*CORNERS, *random_planes(1, num_planes), *random_volumes(2, 15)]:
        check(library, family, case)


def test_families_of_two() -> None:
    library = open_build("avx512")
    volumes = [Case(2, 40, 0, 17, (5, 6, 40), (3, 3, 3)), Case(1, 3, 0, 33, (4, 9, 11), (5, 3, 3), 2, "circular")]
    wide = [Case(1, 130, 0, 40, (50, 70)), Case(5, 70, 0, 40, (20, 66)), *volumes]
    for case in [*CORNERS, *random_planes(3, 30), *random_volumes(4, 15), *wide]:
        check(library, FAMILY, dataclasses.replace(case, X=2 * case.E), (1, 8))


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("num_candidates", [1, 2, 3, 4])
def test_joint_choices_of_families(instruction_set: str, num_candidates: int) -> None:
    library = open_build(instruction_set)
    wide = [Case(1, 130, 0, 40, (50, 70)), Case(2, 20, 0, 9, (150, 400), (5, 5), 2, "circular")]
    for case in [*CORNERS, *random_planes(5, 30), *random_volumes(6, 20), *wide]:
        check(library, JOINT, dataclasses.replace(case, X=num_candidates * case.E), (1, 8))


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("num_candidates", [1, 2, 3, 4])
def test_channels_of_families(instruction_set: str, num_candidates: int) -> None:
    library = open_build(instruction_set)
    wide = [Case(1, 130, 0, 40, (50, 70)), Case(1, 64, 0, 9, (150, 400), (5, 3), 1, "none")]
    # One vector of channels, two, and four; pairs of samples and one that is left.
    wide += [Case(1, 120, 0, 21, (30, 66), (3, 3), 1, "longitude")]
    wide += [Case(1, 16, 0, 16, (9, 40, 70), (3, 3, 3)), Case(3, 33, 0, 20, (4, 20, 66), (3, 3, 3), 1, "circular")]
    for case in [*CORNERS, *random_planes(7, 40), *random_volumes(8, 15), *wide]:
        shape = {"X": num_candidates * case.E, "kernel": (*case.kernel[:-1], 3), "stride": 1}
        if min(dataclasses.replace(case, **shape).grid) < 1:
            continue
        check(library, CHANNEL, dataclasses.replace(case, **shape), (1, 8))


def test_masks_are_in_place_of_indices() -> None:
    library = open_build("avx512")
    if not library.has_family_lanes:
        pytest.skip("the kernels that blend are not fast here")
    input, weight, error = torch.randn(1, 35, 9, 40), torch.randn(74, 35, 3, 3), torch.randn(1, 37, 9, 40)
    indices = (2 * torch.arange(37)[:, None] + torch.randint(2, (37, 360)))[None].int()
    geometry = ctypes.byref(make_problem(input.shape, weight.shape, indices.shape, 1, "zeros", 2).geometry)
    masks = torch.zeros(3, 360, dtype=torch.int16)
    assert library.call("smoe_family_masks", geometry, indices, masks)
    for kernel, way, given in ((JOINT, "weight", (input, error)), (CHANNEL, "input", (error, weight))):
        expected, found = (torch.full_like(weight if way == "weight" else input, torch.nan) for _ in range(2))
        assert library.call(f"{kernel}_{way}_gradient", geometry, *given, indices, expected)
        # The indices are not read.
        assert library.call(f"{kernel}_masked", geometry, *given, torch.zeros_like(indices), masks, found)
        assert torch.equal(found, expected)


@pytest.mark.parametrize("place", [0, 1000, 2 * 9 * 130 - 1])
@pytest.mark.parametrize("kernel", [FAMILY, JOINT, CHANNEL])
def test_the_kernels_of_families_refuse_other_routings(kernel: str, place: int) -> None:
    library = open_build("avx512")
    input, weight = torch.randn(1, 3, 9, 260), torch.randn(4, 3, 3, 3, requires_grad=True)
    indices = torch.tensor([0, 2], dtype=torch.int32)[None, :, None].repeat(1, 1, 9 * 260)
    indices.view(-1)[place] = 3 if place < 9 * 260 else 1
    geometry = ctypes.byref(make_problem(input.shape, weight.shape, indices.shape, 1, "zeros", 1).geometry)
    error = torch.randn(1, 2, 9, 260)
    given = {FAMILY: (input, weight, None), JOINT: (input, error), CHANNEL: (error, weight)}[kernel]
    assert not library.call(f"{kernel}_{SERVED[kernel][0]}", geometry, *given, indices, torch.zeros(2, 4, 9, 260))
    expected = dense_routed_conv(input, weight, indices)
    found = routed_conv2d(input, weight, indices, check_indices=False)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    (true,) = torch.autograd.grad(expected, [weight], error)
    torch.testing.assert_close(torch.autograd.grad(found, [weight], error)[0], true, atol=1e-3, rtol=1e-5)


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
