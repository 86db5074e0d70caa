"""A layer by one call of a kernel in each direction: biases of experts, convolution and local affine map."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch

from smoe.ops._conv_kernels import make_problem
from smoe.ops._families import family_sizes
from smoe.ops._operators import Geometry, is_observed, native_library, num_threads
from smoe.ops._routed_conv import routed_conv


def mean_response(weight: torch.Tensor, mean: torch.Tensor, num_families: int) -> torch.Tensor:
    """Outputs of filters `(X, C, *kernel)` for the mean `(C,)` at every pixel, less those of their family's mean."""
    # One product, which takes a quarter of the time of sums over the taps.
    outputs = weight.flatten(1).to(mean.dtype) @ mean.repeat_interleave(weight[0, 0].numel())
    if len(weight) % num_families == 0:
        families = outputs.unflatten(0, (num_families, -1))
        return (families - families.mean(dim=1, keepdim=True)).flatten()
    return torch.cat([part - part.mean() for part in outputs.split(family_sizes(len(weight), num_families))])


class Lesson(Protocol):
    """What a gate learns in the backward pass of the selected outputs; `numbers` receive the gradients."""

    numbers: tuple[torch.Tensor, ...]
    needs_source: bool

    def learn(
        self, error: torch.Tensor, source: torch.Tensor, compared: tuple[torch.Tensor, ...], is_finite: bool | None
    ) -> Sequence[torch.Tensor | None]:
        """The gradients, for the error of the outputs `(B, E, *grid)` and what these were made of."""
        ...


class Bank(NamedTuple):
    """What an output is made of beside the input: `offset + scale * (convolution with weight, and bias)`.

    With a mean input, `response - mean_response(weight, mean)` is added to the biases of the experts.
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


class BoundCall:
    """Forward passes without gradients of a layer that has decided: the addresses of all but input and output.

    A small layer takes no longer than a convolution so. Nothing is copied: values that change in place count.

    Args:
        call: The layer's call.
        indices: Selected experts.
        bank: Filters and biases, without a mean.
        places: Where the four of these and the indices are kept, and whatever else must not be replaced: dictionaries
            and names.
    """

    def __init__(
        self, call: LayerCall, indices: torch.Tensor, bank: Bank, places: Sequence[tuple[dict[str, Any], str]]
    ) -> None:
        self._shape, self._output_shape, self._threads = call._input_shape, call._shape, call._threads
        self._indices, self._version, masks = indices, indices._version, call._masks_of(indices)
        tensors = (*bank[:4], indices)
        # Memory that is held is not given to other tensors: equal addresses are the same memory. The call itself, which
        # keeps this one, is not held: a layer that is dropped is freed at once.
        self._held = (call._layer, masks, *(None if each is None else each.detach() for each in tensors))
        *addresses, of_indices, of_masks = (None if each is None else each.data_ptr() for each in (*tensors, masks))
        self._found = [(owner, name, owner.get(name)) for owner, name in places]
        self._places = [(each, each.data_ptr()) for each in tensors if each is not None]
        bound = (ctypes.addressof(call._layer), *addresses[:2], of_indices, of_masks, *addresses[2:])
        self._bound = (ctypes.c_void_p * 7)(*bound)
        self._address, self._run = ctypes.addressof(self._bound), call._library.functions.smoe_bound_forward
        self._run.argtypes = [ctypes.c_void_p] * 3

    def __call__(self, input: torch.Tensor) -> torch.Tensor | None:
        """The output; None where anything is not as it was, or PyTorch has to see what happens."""
        if is_observed() or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
            return None
        if type(input) is not torch.Tensor or input.dtype is not torch.float32 or not input.is_cpu:
            return None
        if input.shape != self._shape or not input.is_contiguous():
            return None
        if num_threads() != self._threads or self._indices._version != self._version:
            return None
        for owner, name, value in self._found:
            if owner.get(name) is not value:
                return None
        for tensor, address in self._places:
            if tensor.data_ptr() != address or not tensor.is_contiguous():
                return None
        output = input.new_empty(self._output_shape)
        if self._run(self._address, input.data_ptr(), output.data_ptr()) != 0:
            raise MemoryError("the kernel of a layer could not allocate its memory; use a smaller batch")
        return output


class LayerCall:
    """The passes of a layer, with one output for each expert, for inputs of one shape.

    Args:
        input: Input like those of the passes, `(B, C, ...)`; float32 on a CPU, like all but the indices.
        source: The same as an input of `routed_conv`, like all arguments below.
        weight: Filters `(X, C, *kernel)`; those of the passes may have another shape, too.
        stride: Stride of all axes.
        padding_mode: What is beyond the borders.
        indices: Selected experts `(1, E, P)`.
    """

    def __init__(
        self,
        input: torch.Tensor,
        source: torch.Tensor,
        weight: torch.Tensor,
        stride: int,
        padding_mode: str,
        indices: torch.Tensor,
    ) -> None:
        library = native_library()
        assert library is not None
        self._library, self._options, self._threads = library, (1, stride, padding_mode), num_threads()
        self._input_shape, self._shapes = input.shape, (source.shape, weight.shape)
        problem = make_problem(*self._shapes, indices.shape, stride, padding_mode, self._threads)
        kernels = problem.kernels
        grid = problem.grid if input.ndim == source.ndim else (indices.shape[2],)
        self._shape = (input.shape[0], indices.shape[1], *grid)
        self._has_families = len(kernels["forward"]) > 1
        # Indices, their version, and their masks if they are of families of two.
        self._masks: tuple[torch.Tensor, int, torch.Tensor | None] | None = None
        names = [kernels[way][place] for way in ("input_gradient", "weight_gradient") for place in (0, -1)]
        functions = [getattr(library.functions, name) for name in (kernels["forward"][-1], *names)]
        addresses = [ctypes.cast(each, ctypes.c_void_p).value for each in functions]
        self._layer = _Layer(problem.geometry, (ctypes.c_void_p * 5)(*addresses))
        library.functions.smoe_layer_forward.argtypes = [ctypes.c_void_p] * 13
        library.functions.smoe_layer_backward.argtypes = [ctypes.c_void_p] * 19
        self.bound: BoundCall | None = None
        # Whether outputs were changed in place, as by `nn.ReLU(inplace=True)`: what was scaled cannot be found again.
        self.keeps_scaled = False

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        # What the kernels made belongs to its layer and process: a copy is None.
        return type(None), ()

    def serves(self, input: torch.Tensor) -> bool:
        """Whether the call was made for inputs like this, and this number of threads."""
        return input.shape == self._input_shape and num_threads() == self._threads

    def output(self, input: torch.Tensor, indices: torch.Tensor, bank: Bank, lesson: Lesson | None) -> torch.Tensor:
        """The output; its backward pass computes all gradients, and those of the lesson's numbers."""
        if not torch.is_grad_enabled():
            return self.forward(input, indices, bank, is_scaled_kept=False)[0]
        numbers = () if lesson is None else lesson.numbers
        return _Pass.apply(self, lesson, indices, bank.mean, bank.response, input, *bank[:4], *numbers)  # type: ignore[return-value]

    def forward(
        self, input: torch.Tensor, indices: torch.Tensor, bank: Bank, *, is_scaled_kept: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """The output, what was scaled if it is to be kept, and the biases as they were used."""
        weight, bias, scale, offset, mean, response = bank
        output = input.new_empty(self._shape)
        scaled = torch.empty_like(output) if is_scaled_kept else None
        biases = bias if mean is None or bias is None else torch.empty_like(bias)
        parts = (input, weight, bias, response, mean, indices, self._masks_of(indices), scale, offset)
        self._call("smoe_layer_forward", *parts, biases, scaled, output)
        return output, scaled, biases

    def backward(
        self,
        error: torch.Tensor,
        input: torch.Tensor,
        indices: torch.Tensor,
        bank: Bank,
        biases: torch.Tensor | None,
        kept: tuple[torch.Tensor | None, torch.Tensor | None],
        gradients: Sequence[torch.Tensor | None],
        *,
        is_last: bool,
    ) -> tuple[torch.Tensor, bool]:
        """Fills the gradients of input, weight, bias, scale and offset that are not None.

        Args:
            error: Gradient of the output.
            input: Input of the layer.
            indices: Selected experts.
            bank: As for the output.
            biases: The biases as they were used.
            kept: What was scaled, or the output, from which it is found; it may be overwritten in the last pass.
            gradients: Tensors to fill.
            is_last: Whether nobody reads what was kept again.

        Returns:
            The error of what was scaled, and whether it is finite.
        """
        by_input, by_weight, by_bias, *by_affine = gradients
        (scaled, output), finite, error = kept, ctypes.c_int64(), error.contiguous()
        by_scaled = (
            None if bank.scale is None else scaled if scaled is not None and is_last else torch.empty_like(error)
        )
        masks = self._masks_of(indices)
        while True:
            parts = (error, input, bank.weight, biases, bank.mean, indices, masks, bank.scale, bank.offset)
            found = (None if scaled is not None else output, scaled, by_scaled)
            done = (*parts, *found, *by_affine, by_bias, by_input, by_weight, finite)
            if not self._call("smoe_layer_backward", *done):
                return error if by_scaled is None else by_scaled, bool(finite.value)
            # Scales near zero, or offsets far from it: the output does not tell what was scaled.
            scaled = self.scaled_of(input, indices, bank, biases)

    def scaled_of(
        self, input: torch.Tensor, indices: torch.Tensor, bank: Bank, biases: torch.Tensor | None
    ) -> torch.Tensor:
        """What is scaled, computed again."""
        return self.forward(input, indices, Bank(bank.weight, biases, *(None,) * 4), is_scaled_kept=False)[0]

    def composed(self, input: torch.Tensor, indices: torch.Tensor, bank: Bank) -> torch.Tensor:
        """The same output by operators, whose derivatives can be differentiated again."""
        weight, bias, scale, offset, mean, response = bank
        if mean is not None and response is not None and bias is not None:
            bias = bias + (response - mean_response(weight, mean, indices.shape[1]))
        source, filters = input.reshape(self._shapes[0]), weight.reshape(self._shapes[1])
        output = routed_conv(source, filters, indices, *self._options, bias).reshape(self._shape)
        return output if scale is None or offset is None else torch.addcmul(offset, output, scale)

    def _masks_of(self, indices: torch.Tensor) -> torch.Tensor | None:
        """The masks of a routing of families of two; None if it is another. As a rule, a routing comes again."""
        if not self._has_families:
            return None
        # The changes in place; tensors of `torch.inference_mode` do not count them.
        kept, version = self._masks, -1 if indices.is_inference() else indices._version
        if kept is None or kept[0] is not indices or kept[1] != version:
            masks = torch.empty(-(-indices.shape[1] // 16), indices.shape[2], dtype=torch.int16)
            is_made = self._library.call("smoe_family_masks", ctypes.byref(self._layer.geometry), indices, masks)
            kept = self._masks = (indices, version, masks if is_made else None)
        return kept[2]

    def _call(self, name: str, *arguments: torch.Tensor | ctypes.c_int64 | None) -> bool:
        """Calls a function of csrc/layer.cpp; what it writes to must be contiguous. True: it needs what was scaled."""
        pointers: list[int | None] = [ctypes.addressof(self._layer)]
        copies: list[torch.Tensor] = []  # which live until the call has ended
        for each in arguments:
            if each is None:
                pointers.append(None)
            elif isinstance(each, ctypes.c_int64):
                pointers.append(ctypes.addressof(each))
            elif each.is_contiguous():
                pointers.append(each.data_ptr())
            else:
                copies.append(each.contiguous())
                pointers.append(copies[-1].data_ptr())
        code = getattr(self._library.functions, name)(*pointers)
        if code not in (0, 3):
            raise MemoryError("the kernel of a layer could not allocate its memory; use a smaller batch")
        return code == 3


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx, call, lesson, indices, mean, response, input, weight, bias, scale, offset, *numbers):
        del numbers
        bank = Bank(weight, bias, scale, offset, mean, response)
        # The output tells what was scaled, and as a rule the next layer keeps it: its memory is not a layer's own.
        # Hooks that move or drop what is saved are given a tensor of ours.
        is_needed = ctx.needs_input_grad[8]
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)  # pyright: ignore[reportAttributeAccessIssue]
        keeps_scaled = call.keeps_scaled or hooks is not None
        output, scaled, biases = call.forward(input, indices, bank, is_scaled_kept=is_needed and keeps_scaled)
        ctx.call, ctx.lesson = call, lesson
        # Not saved by PyTorch, which would refuse changes in place.
        ctx.output = (output.detach(), output._version) if is_needed and scaled is None else None
        ctx.save_for_backward(indices, input, scaled, biases, *bank)
        return output

    @staticmethod
    def backward(ctx, *grad_outputs):
        (error,), (indices, input, scaled, biases, *saved) = grad_outputs, ctx.saved_tensors
        bank, lesson, needs = Bank(*saved), ctx.lesson, list(ctx.needs_input_grad[5:10])
        made_of: tuple[Any, ...] = (input, *bank[:4])
        compared, is_finite = (), None
        if torch.is_grad_enabled():
            wanted = [each for each, is_needed in zip(made_of, needs, strict=True) if is_needed]
            found = iter(torch.autograd.grad(ctx.call.composed(input, indices, bank), wanted, error, create_graph=True))
            gradients = [next(found) if is_needed else None for is_needed in needs]
        else:
            # The gradient of the filters contains that of the biases.
            computed = [*needs[:2], needs[2] or (bank.mean is not None and needs[1]), *needs[3:]]
            gradients = [
                torch.empty_like(each, memory_format=torch.contiguous_format) if is_computed else None
                for each, is_computed in zip(made_of, computed, strict=True)
            ]
            is_last = not torch._C._autograd._get_current_graph_task_keep_graph()  # pyright: ignore[reportAttributeAccessIssue]
            output, version = ctx.output or (None, 0)
            if output is not None and output._version != version:
                ctx.call.keeps_scaled = True
                scaled = ctx.call.scaled_of(input, indices, bank, biases)
            if is_last:
                ctx.output = None
            error, is_finite = ctx.call.backward(
                *(error, input, indices, bank, biases, (scaled, output), gradients), is_last=is_last
            )
            gradients[2] = gradients[2] if needs[2] else None
            compared = tuple(each.detach() for each in (bank.weight, biases) if each is not None)
        learned = () if lesson is None else lesson.learn(error, input, compared, is_finite)
        return *(None,) * 5, *gradients, *learned
