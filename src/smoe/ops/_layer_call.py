"""A layer by one call of a kernel in each direction: biases of experts, convolution and local affine map."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch

from smoe.ops._conv_kernels import make_problem
from smoe.ops._operators import Geometry, NativeLibrary, native_library, num_threads
from smoe.ops._routed_conv import routed_conv


def mean_response(weight: torch.Tensor, mean: torch.Tensor, family_sizes: Sequence[int]) -> torch.Tensor:
    """Outputs of filters `(X, C, *kernel)` for the mean `(C,)` at every pixel, less those of their family's mean."""
    # One product, which takes a quarter of the time of sums over the taps.
    outputs = weight.flatten(1).to(mean.dtype) @ mean.repeat_interleave(weight[0, 0].numel())
    if len(set(family_sizes)) == 1:
        families = outputs.unflatten(0, (len(family_sizes), -1))
        return (families - families.mean(dim=1, keepdim=True)).flatten()
    return torch.cat([part - part.mean() for part in outputs.split(list(family_sizes))])


class Lesson(Protocol):
    """What a gate learns in the backward pass of the selected outputs."""

    @property
    def numbers(self) -> tuple[torch.Tensor, ...]:
        """The tensors that receive gradients."""
        ...

    @property
    def needs_source(self) -> bool:
        """Whether it needs what made the outputs."""
        ...

    def learn(
        self, error: torch.Tensor, source: torch.Tensor, compared: tuple[torch.Tensor, ...], is_finite: bool | None
    ) -> Sequence[torch.Tensor | None]:
        """The gradients of the numbers, for the error of the outputs `(B, E, *grid)` and what made these."""
        ...


class Bank(NamedTuple):
    """What the output is made of beside the input: `offset + scale * (routed convolution with biases)`.

    Attributes:
        weight: Filters `(X, C, *kernel)`, one output for each expert.
        bias: `(X,)`, or None.
        scale: `(E, *grid)`, or None like `offset`.
        offset: `(E, *grid)`.
        mean: Mean input `(C,)` whose `mean_response` is taken from the biases, or None like `response`.
        response: What is added to them, `(X,)`.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    scale: torch.Tensor | None
    offset: torch.Tensor | None
    mean: torch.Tensor | None
    response: torch.Tensor | None


class _Layer(ctypes.Structure):
    """`smoe_layer` of csrc/layer.cpp."""

    _fields_ = (("geometry", Geometry), ("kernels", ctypes.c_void_p * 5))


class LayerCall:
    """The passes of a layer for inputs of one shape; what follows from the shapes is made once.

    Args:
        library: The kernels.
        input: Input like those of the passes, `(B, C, *grid)`.
        weight: Filters `(X, C, *kernel)`.
        indices: Selected experts `(1, E, P)`.
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
        self._options = (stride, padding_mode)
        is_line = input.ndim == 3  # an image of one row
        shapes = (torch.Size((*each.shape[:2], *(1,) * is_line, *each.shape[2:])) for each in (input, weight))
        problem = make_problem(*shapes, indices.shape, stride, padding_mode, self._threads)
        kernels = problem.kernels
        self._shape = (input.shape[0], indices.shape[1], *problem.grid[is_line:])
        self._has_families = len(kernels["forward"]) > 1
        # The masks of families of two, with the indices that they are of and the version of these.
        self._masks: tuple[torch.Tensor, int, torch.Tensor | None] | None = None
        self._library = library
        names = [kernels["forward"][-1]]
        names += [kernels[way][place] for way in ("input_gradient", "weight_gradient") for place in (0, -1)]
        addresses = [ctypes.cast(getattr(library.functions, name), ctypes.c_void_p).value for name in names]
        self._layer = _Layer(problem.geometry, (ctypes.c_void_p * 5)(*addresses))
        self._address = ctypes.addressof(self._layer)
        self._forward, self._backward = library.functions.smoe_layer_forward, library.functions.smoe_layer_backward
        self._forward.argtypes, self._backward.argtypes = [ctypes.c_void_p] * 13, [ctypes.c_void_p] * 15

    def serves(self, input: torch.Tensor, indices: torch.Tensor) -> bool:
        """Whether the call was made for inputs and routings like these, and this number of threads."""
        is_like = input.shape == self._input_shape and num_threads() == self._threads
        return is_like and indices.dtype is torch.int32 and len(indices) == 1 and indices.is_contiguous()

    def output(self, input: torch.Tensor, indices: torch.Tensor, bank: Bank, lesson: Lesson | None) -> torch.Tensor:
        """The output; its backward pass computes all gradients, and those of the lesson's numbers."""
        if not torch.is_grad_enabled():
            return self.forward(input, indices, bank, keeps_scaled=False)[0]
        numbers = () if lesson is None else lesson.numbers
        return _Pass.apply(self, lesson, indices, bank.mean, bank.response, input, *bank[:4], *numbers)  # type: ignore[return-value]

    def forward(
        self, input: torch.Tensor, indices: torch.Tensor, bank: Bank, *, keeps_scaled: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """The output, what was scaled if it is to be kept, and the biases as they were used."""
        output = input.new_empty(self._shape)
        scaled = torch.empty_like(output) if keeps_scaled else None
        biases = bank.bias if bank.mean is None or bank.bias is None else torch.empty_like(bank.bias)
        masks = self._masks_of(indices) if self._has_families else None
        weight, bias, scale, offset, mean, response = bank
        self._call(
            *(self._forward, input, weight, bias, response, mean, indices, masks, scale, offset),
            *(biases, scaled, output),
        )
        return output, scaled, biases

    def backward(
        self,
        error: torch.Tensor,
        input: torch.Tensor,
        indices: torch.Tensor,
        bank: Bank,
        scaled: torch.Tensor | None,
        needs: Sequence[bool],
        *,
        overwrites: bool,
    ) -> tuple[list[torch.Tensor | None], torch.Tensor, bool]:
        """Gradients of input, weight, bias, scale and offset that are needed, the error of what was scaled.

        Returns:
            They, and whether the error is finite. The error takes the memory of `scaled` if that is overwritten.
        """
        error = error.contiguous()
        weight, bias, scale, offset, mean, _ = bank
        wanted = [*needs]
        wanted[2] = bias is not None and (needs[2] or (mean is not None and needs[1]))
        by_input, by_weight, by_bias, by_scale, by_offset = (
            torch.empty_like(each, memory_format=torch.contiguous_format) if is_wanted and each is not None else None
            for each, is_wanted in zip((input, weight, bias, scale, offset), wanted, strict=True)
        )
        by_scaled = None if scale is None else scaled if overwrites and scaled is not None else torch.empty_like(error)
        is_finite = ctypes.c_int64()
        self._call(
            *(self._backward, error, input, weight, mean, indices, scale, scaled, by_scaled, by_scale, by_offset),
            *(by_bias, by_input, by_weight, is_finite),
        )
        gradients = [by_input, by_weight, by_bias if needs[2] else None, by_scale, by_offset]
        return gradients, error if by_scaled is None else by_scaled, bool(is_finite.value)

    def composed(self, input: torch.Tensor, indices: torch.Tensor, bank: Bank) -> torch.Tensor:
        """The same output by operators, whose derivatives can be differentiated again."""
        weight, bias, scale, offset, mean, response = bank
        if mean is not None and response is not None and bias is not None:
            geometry = self._layer.geometry
            size, larger = divmod(geometry.experts, geometry.selected)
            sizes = [size + (family < larger) for family in range(geometry.selected)]
            bias = bias + (response - mean_response(weight, mean, sizes))
        if input.ndim == 3:
            output = routed_conv(input.unsqueeze(2), weight.unsqueeze(2), indices, 1, *self._options, bias).squeeze(2)
        else:
            output = routed_conv(input, weight, indices, 1, *self._options, bias)
        return output if scale is None or offset is None else torch.addcmul(offset, output, scale)

    def _masks_of(self, indices: torch.Tensor) -> torch.Tensor | None:
        """The masks of a routing of families of two; None if it is another. As a rule, a routing comes again."""
        # The changes in place; tensors of `torch.inference_mode` do not count them.
        version = -1 if indices.is_inference() else indices._version
        kept = self._masks
        if kept is None or kept[0] is not indices or kept[1] != version:
            masks = torch.empty(-(-indices.shape[1] // 16), indices.shape[2], dtype=torch.int16)
            is_made = self._library.call("smoe_family_masks", ctypes.byref(self._layer.geometry), indices, masks)
            kept = self._masks = (indices, version, masks if is_made else None)
        return kept[2]

    def _call(self, function: Any, *arguments: torch.Tensor | ctypes.c_int64 | None) -> None:
        converted: list[int | None] = [self._address]
        # Copies live until the call has ended.
        copies: list[torch.Tensor] = []
        for each in arguments:
            if isinstance(each, torch.Tensor):
                if not each.is_contiguous():
                    each = each.contiguous()
                    copies.append(each)
                converted.append(each.data_ptr())
            else:
                converted.append(None if each is None else ctypes.addressof(each))
        if function(*converted):
            raise MemoryError("the kernel of a layer could not allocate its memory; use a smaller batch")


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx, call, lesson, indices, mean, response, input, weight, bias, scale, offset, *numbers):
        bank = Bank(weight, bias, scale, offset, mean, response)
        output, scaled, biases = call.forward(input, indices, bank, keeps_scaled=ctx.needs_input_grad[8])
        ctx.call, ctx.lesson, ctx.num_numbers = call, lesson, len(numbers)
        ctx.save_for_backward(indices, input, scaled, biases, *bank)
        return output

    @staticmethod
    def backward(ctx, *grad_outputs):
        (error,), (indices, input, scaled, biases, *bank) = grad_outputs, ctx.saved_tensors
        call, lesson, bank, needs = ctx.call, ctx.lesson, Bank(*bank), ctx.needs_input_grad[5:10]
        nothing = (None,) * 5
        if torch.is_grad_enabled():
            arguments: tuple[Any, ...] = (input, *bank[:4])
            wanted = [each for each, is_needed in zip(arguments, needs, strict=True) if is_needed]
            found = iter(torch.autograd.grad(call.composed(input, indices, bank), wanted, error, create_graph=True))
            gradients = [next(found) if is_needed else None for is_needed in needs]
            learned = () if lesson is None else lesson.learn(error, input, (), None)
            return *nothing, *gradients, *learned
        # Nobody else holds what was scaled, and without another pass nobody reads it again.
        overwrites = not torch._C._autograd._get_current_graph_task_keep_graph()  # pyright: ignore
        gradients, error, is_finite = call.backward(error, input, indices, bank, scaled, needs, overwrites=overwrites)
        learned: Sequence[torch.Tensor | None] = ()
        if lesson is not None:
            compared = (bank.weight.detach(), *(() if biases is None else (biases.detach(),)))
            learned = lesson.learn(error, input, compared, is_finite)
        return *nothing, *gradients, *learned


def make_layer_call(
    input: torch.Tensor, weight: torch.Tensor, indices: torch.Tensor, stride: int, padding_mode: str
) -> LayerCall | None:
    """A call for inputs of this shape, or None where the kernels do not serve."""
    library = native_library()
    if library is None or len(indices) != 1 or indices.dtype != torch.int32 or not indices.is_contiguous():
        return None
    if input.numel() == 0 or indices.numel() == 0:
        return None
    return LayerCall(library, input, weight, indices, stride, padding_mode)
