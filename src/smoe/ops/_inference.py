"""A layer in inference, by one call of a kernel: convolution, bias of experts and local affine map."""

from __future__ import annotations

import ctypes

import torch

from smoe.ops._conv_kernels import make_problem
from smoe.ops._operators import NativeLibrary, is_observed, native_library, num_threads


def is_unobserved(*tensors: torch.Tensor) -> bool:
    """Whether a kernel may work on tensors beside PyTorch: nothing observes it, and they are plain float32 on a CPU."""
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or is_observed():
        return False
    kinds = (torch.Tensor, torch.nn.Parameter)
    return all(type(each) in kinds and each.is_cpu and each.dtype is torch.float32 for each in tensors)


def is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """As `torch.equal`, of tensors on a CPU, and several times faster; NaN equals itself."""
    library = native_library()
    if library is None or one.dtype != other.dtype or not (one.is_contiguous() and other.is_contiguous()):
        return torch.equal(one, other)
    return one.shape == other.shape and library.call("smoe_equal", one, other, one.nbytes)


class InferenceCall:
    """Computes `offset + scale * (routed convolution + bias)` for inputs of one shape and one routing.

    What follows from the shapes and from the routing is kept: to make it would take longer than the kernel of a small
    layer. Filters, bias, scale and offset are read in each call.

    Args:
        library: The kernels.
        input: Input like those of the calls, `(B, C, *grid)`.
        weight: Filters `(X, C, *kernel)`, one output for each expert.
        indices: Selected experts `(1, E, P)`, int32 and contiguous.
        stride: Stride of all axes.
        padding_mode: As for `routed_conv2d`.
    """

    def __init__(
        self,
        library: NativeLibrary,
        input: torch.Tensor,
        weight: torch.Tensor,
        indices: torch.Tensor,
        stride: int,
        padding_mode: str,
    ) -> None:
        self._input_shape, self._threads = input.shape, num_threads()
        problem = make_problem(input.shape, weight.shape, indices.shape, stride, padding_mode, self._threads)
        self._indices, self._version = indices, _version(indices)
        self._shape = (input.shape[0], indices.shape[1], *problem.grid)
        self._masks: torch.Tensor | None = None
        family, forward = problem.kernels["forward"][:-1], problem.kernels["forward"][-1]
        if family:
            masks = torch.empty(-(-indices.shape[1] // 16), indices.shape[2], dtype=torch.int16)
            if library.call("smoe_family_masks", ctypes.byref(problem.geometry), indices, masks):
                self._masks = masks
        self._geometry = problem.geometry
        self._run = library.functions.smoe_infer
        self._run.argtypes = [ctypes.c_void_p] * 10
        self._forward = ctypes.cast(getattr(library.functions, forward), ctypes.c_void_p).value

    def serves(self, input: torch.Tensor, indices: torch.Tensor) -> bool:
        """Whether the call was made for this shape, this routing and this number of threads."""
        is_same = indices is self._indices and _version(indices) == self._version
        return is_same and input.shape == self._input_shape and num_threads() == self._threads

    def __call__(
        self,
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        scale: torch.Tensor | None,
        offset: torch.Tensor | None,
    ) -> torch.Tensor:
        output = input.new_empty(self._shape)
        given = [each if each is None else each.contiguous() for each in (input, weight, bias, scale, offset)]
        of_input, of_weight, of_bias, of_scale, of_offset = (
            None if each is None else each.data_ptr() for each in given
        )
        masks = None if self._masks is None else self._masks.data_ptr()
        code = self._run(
            *(self._forward, ctypes.addressof(self._geometry), of_input, of_weight, of_bias),
            *(self._indices.data_ptr(), masks, of_scale, of_offset, output.data_ptr()),
        )
        if code:
            raise MemoryError("the kernel of a layer could not allocate its memory; use a smaller batch")
        return output


def make_inference_call(
    input: torch.Tensor, weight: torch.Tensor, indices: torch.Tensor, stride: int, padding_mode: str
) -> InferenceCall | None:
    """A call for inputs of this shape, or None where the kernels do not serve."""
    library = native_library()
    if library is None or len(indices) != 1 or indices.dtype != torch.int32 or not indices.is_contiguous():
        return None
    if input.numel() == 0 or indices.numel() == 0:
        return None
    return InferenceCall(library, input, weight, indices, stride, padding_mode)


def _version(tensor: torch.Tensor) -> int:
    """The number of changes in place; tensors of `torch.inference_mode` do not count them."""
    return -1 if tensor.is_inference() else tensor._version
