from __future__ import annotations

import itertools

import pytest
import torch

from routed_conv_cases import Case, assert_near, make_problem
from smoe.ops._operators import format_of
from smoe.ops.triton._choice import Tile
from smoe.options import PADDING_MODES

# Blocks as small as they may be, so that small problems have several of them.
SMALL = Tile(16, 16, 16, num_warps=2, num_stages=2)


def compare_with_definition(
    case: Case, dtype: torch.dtype, device: torch.device, *, tile: Tile | None = SMALL, channels_last: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    from smoe.ops.triton._kernels import triton_routed_conv2d, triton_routed_conv2d_backward

    problem = make_problem(case, dtype, device)
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    input, weight, error = (
        tensor.contiguous(memory_format=memory_format) for tensor in (problem.input, problem.weight, problem.error)
    )
    options = (case.expert_channels, case.stride, case.padding_mode)
    output = triton_routed_conv2d(input, weight, problem.indices, *options, tile=tile)
    gradients = triton_routed_conv2d_backward(error, input, weight, problem.indices, *options, True, True, tile=tile)
    results = (output, *gradients)
    for name, actual, expected, like in zip(
        ("output", "input gradient", "weight gradient"), results, problem.truth, (input, input, weight), strict=True
    ):
        assert actual.dtype == dtype
        promised = torch.empty(actual.shape).contiguous(memory_format=format_of(like))
        assert actual.stride() == promised.stride()
        assert_near(name, actual, expected)
    return results


@pytest.fixture(autouse=True)
def _exact_products():
    with torch.backends.cudnn.flags(allow_tf32=False):
        yield


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        (Case(stride=2), torch.float32),
        (Case(padding_mode="circular"), torch.float16),
        (Case(padding_mode="longitude"), torch.float32),
        (Case(2, 3, grid=(2, 2), kernel=(1, 1)), torch.float32),
        (Case(2, 3, grid=(3, 2), kernel=(1, 1), stride=2, padding_mode="circular"), torch.float32),
        (Case(2, 3, grid=(2, 2), kernel=(5, 5), padding_mode="longitude"), torch.float32),
        (Case(2, 3, grid=(3, 2), kernel=(5, 1), stride=2, padding_mode="circular"), torch.float32),
        # Pixels, samples, channels, experts and selected filters: none is a multiple of the block of 16.
        (Case(18, 19, 23, 9, (2, 1), (3, 1), expert_channels=2), torch.float32),
    ],
)
def test_borders_strides_and_sizes(case, dtype, device):
    compare_with_definition(case, dtype, device)


def test_pixels_in_several_shares(device, monkeypatch):
    # Nine pixels in shares of four: the last share is smaller.
    monkeypatch.setattr("smoe.ops.triton._kernels._MIN_PIXELS_PER_PROGRAM", 3)
    compare_with_definition(Case(2, 3, 3, 2, (3, 3), (1, 1)), torch.float32, device)


def test_one_tile_that_is_chosen_by_shape(device):
    case = Case(5, 33, 40, 36, (2, 2), (1, 1))
    compare_with_definition(case, torch.float16, device, tile=None, channels_last=True)


def test_expert_that_is_selected_nowhere_has_no_gradient(device):
    _, _, gradient = compare_with_definition(Case(usable=4, expert_channels=2), torch.float32, device)
    assert gradient[:8].abs().amin() > 0
    assert gradient[8:].abs().amax() == 0


def test_empty_batch(device):
    output, by_input, by_weight = compare_with_definition(Case(batch=0), torch.float32, device)
    assert output.shape == (0, 3, 2, 3) and by_input.shape == (0, 5, 2, 3)
    assert by_weight.abs().amax() == 0


def test_gradients_that_are_not_needed_are_empty(device):
    from smoe.ops.triton._kernels import triton_routed_conv2d_backward

    problem = make_problem(Case(kernel=(1, 1)), torch.float32, device)
    tensors = (problem.error, problem.input, problem.weight, problem.indices)
    by_input, by_weight = triton_routed_conv2d_backward(*tensors, 1, 1, "zeros", False, False)
    assert by_input.shape == by_weight.shape == (0,)


def test_grid_that_is_too_large_is_refused(device):
    from smoe.ops.triton._kernels import launch, record_launches

    def kernel() -> None: ...

    with record_launches(), pytest.raises(ValueError, match=r"kernel has a grid of \(1, 65536\), larger than CUDA"):
        launch(kernel, (1, 65_536))


def test_any_number_of_samples_fits_the_grid(device):
    from smoe.ops.triton._kernels import record_launches, triton_routed_conv2d, triton_routed_conv2d_backward

    # More samples than programs along the second and third axis of a grid.
    batch = 128 * 65_536
    input, error = (torch.empty(batch, 2, 2, 2, device="meta") for _ in range(2))
    weight = torch.empty(3, 2, 1, 1, device="meta")
    indices = torch.empty(1, 2, 4, dtype=torch.int32, device="meta")
    with record_launches() as launches:
        triton_routed_conv2d(input, weight, indices, 1, 1, "zeros")
        triton_routed_conv2d_backward(error, input, weight, indices, 1, 1, "zeros", True, True)
    names = [launched.kernel.__name__ for launched in launches]
    assert names == ["forward_kernel", "input_gradient_kernel", "masked_kernel"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "stride", "padding_mode", "expert_channels", "dtype"),
    list(
        itertools.product(
            ((1, 1), (3, 3), (5, 5), (3, 5)), (1, 2, 3), PADDING_MODES, (1, 3), (torch.float32, torch.float16)
        )
    ),
)
def test_every_option(kernel, stride, padding_mode, expert_channels, dtype, device):
    case = Case(3, 5, 6, 2, (3, 4), kernel, expert_channels, stride, padding_mode)
    compare_with_definition(case, dtype, device)
