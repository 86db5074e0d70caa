"""A scale and an offset for each channel and pixel."""

from __future__ import annotations

import torch

from smoe.ops._operators import is_observed, library_for, num_threads


def local_affine(input: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    """`offset + scale * input`; gradients reach all three.

    Args:
        input: `(B, ...)`.
        scale: `(...)`, for all samples.
        offset: `(...)`.
    """
    if torch.is_grad_enabled() and not is_observed() and library_for(input, scale, offset) is not None:
        return _LocalAffine.apply(input, scale, offset)  # type: ignore[return-value]
    return torch.addcmul(offset, input, scale)


class _LocalAffine(torch.autograd.Function):
    # PyTorch computes the three gradients one after the other, and stores the product of error and input.

    @staticmethod
    def forward(ctx, input, scale, offset):
        ctx.save_for_backward(input, scale)
        return torch.addcmul(offset, input, scale)

    @staticmethod
    def backward(ctx, *grad_outputs):
        (error,), (input, scale) = grad_outputs, ctx.saved_tensors
        library = library_for(error, input, scale)
        if library is None or torch.is_grad_enabled():
            return error * scale, (error * input).sum(dim=0), error.sum(dim=0)
        error, input, scale = error.contiguous(), input.contiguous(), scale.contiguous()
        by_input, by_scale, by_offset = torch.empty_like(error), torch.empty_like(scale), torch.empty_like(scale)
        sizes = (len(error), scale.numel(), error, input, scale)
        library.call("smoe_local_affine_gradient", *sizes, by_input, by_scale, by_offset, num_threads())
        return by_input, by_scale, by_offset
