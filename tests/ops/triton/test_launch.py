from __future__ import annotations

import pytest
import torch

from smoe.ops.triton.launch import MAX_PROGRAMS_ACROSS, launch, record_launches

# More samples than programs along the second and third axis of a grid.
BATCH, CHANNELS, EXPERTS, SELECTED, PIXELS = MAX_PROGRAMS_ACROSS + 1, 2, 3, 2, 4


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def test_grid_that_is_too_large_is_refused():
    def kernel() -> None: ...

    with record_launches(), pytest.raises(ValueError, match=r"kernel has a grid of \(1, 65536\), larger than CUDA"):
        launch(kernel, (1, 65_536))


@pytest.mark.parametrize("has_own_routings", [False, True])
def test_any_number_of_samples_fits_the_grid(has_own_routings):
    pytest.importorskip("triton", reason="Triton is not installed")
    from smoe.ops.triton.error_quantile import triton_error_quantile
    from smoe.ops.triton.family_experts import triton_family_experts
    from smoe.ops.triton.gather_experts import triton_gather_channels, triton_scatter_channels
    from smoe.ops.triton.top_experts import triton_top_experts
    from smoe.ops.triton.train_routing import triton_train_routing_backward

    num_routings = BATCH if has_own_routings else 1
    scores = meta(num_routings, EXPERTS, PIXELS)
    indices, error = meta(num_routings, SELECTED, PIXELS, dtype=torch.int32), meta(BATCH, SELECTED, PIXELS)
    scale, counter = meta(dtype=torch.float64), meta(dtype=torch.int64)
    with record_launches() as launches:
        triton_top_experts(scores, SELECTED)
        triton_family_experts(scores, SELECTED)
        triton_error_quantile(error, 0.5)
        triton_scatter_channels(triton_gather_channels(meta(BATCH, EXPERTS, PIXELS), indices), indices, EXPERTS)
        rule = (1, True, 1.0, 0.3, 0.1, 0.0, 0.0)
        triton_train_routing_backward(error, scores, indices, None, scale, counter, *rule)
    assert len(launches) > 20


def test_any_number_of_samples_fits_the_grid_of_the_convolution():
    pytest.importorskip("triton", reason="Triton is not installed")
    from smoe.ops.triton.routed_conv import triton_routed_conv2d, triton_routed_conv2d_backward

    batch = 128 * BATCH
    tensors = meta(batch, CHANNELS, 2, 2), meta(EXPERTS, CHANNELS, 1, 1), meta(1, SELECTED, 4, dtype=torch.int32)
    with record_launches() as launches:
        triton_routed_conv2d(*tensors, 1, 1, "zeros")
        triton_routed_conv2d_backward(meta(batch, SELECTED, 2, 2), *tensors, 1, 1, "zeros", True, True)
    names = [launched.kernel.__name__ for launched in launches]
    assert names == ["forward_kernel", "input_gradient_kernel", "slot_kernel", "masked_kernel"]
