from __future__ import annotations

import pytest
import torch

from smoe.ops._local_affine import local_affine


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 2, 7), (2, 5, 33, 41)])
@pytest.mark.parametrize("is_strided", [False, True])
def test_outputs_and_derivatives_are_those_of_addcmul(shape, dtype, is_strided) -> None:
    torch.manual_seed(0)
    whole = torch.randn(*shape[:-1], 2 * shape[-1], dtype=dtype)
    x = (whole[..., ::2] if is_strided else whole[..., : shape[-1]].contiguous()).requires_grad_()
    scale, offset = (torch.randn(shape[1:], dtype=dtype, requires_grad=True) for _ in range(2))
    found = []
    for output in (local_affine(x, scale, offset), torch.addcmul(offset, x, scale)):
        first = torch.autograd.grad(output.pow(3).sum(), (x, scale, offset), retain_graph=True)
        graph = torch.autograd.grad(output.pow(3).sum(), (x, scale, offset), create_graph=True)
        second = torch.autograd.grad([each.square().sum() for each in graph], (x, scale, offset))
        found.append((output, *first, *graph, *second))
    for ours, truth in zip(*found, strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-4, atol=1e-4)
