"""Where in a network the place matters: a measurement that says which layers to convert first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from smoe.nn._conversion_plan import evaluation_mode, filters_of, is_linear

Loss = Callable[[Any, Any], torch.Tensor]
# Fields of random signs by which the gradients of the places are told apart.
_NUM_FIELDS = 8


def place_scores(
    model: nn.Module, names: Sequence[str], batches: Iterable[tuple[Any, Any]], loss: Loss
) -> dict[str, float]:
    """How much the gradient of a layer's filters differs from place to place, in the same way in all samples.

    Filters that are the same everywhere receive the sum of what all places ask for. Where places ask for different
    changes, a layer that knows the place can follow each of them. Each batch is halved: what two halves agree on is no
    noise of the samples. With a random sign s(p) for each output pixel, the products of both halves' gradients of
    `sum s(p) loss(p)` are, on average, the sum over places of the products of their gradients there; the part that all
    places have in common is taken off. Its root, times the root of the number of weights, is about how fast an
    optimiser with steps of one size, such as Adam, lowers the loss by letting places differ.

    Args:
        model: A network, not converted, best after some training. It is run in evaluation mode and not changed.
        names: Names of its convolutions or other layers that `smoe.convert` can replace.
        batches: A few pairs of input and target, as the loss takes them; of several samples each.
        loss: Function of output and target that returns a scalar.

    Returns:
        A score for each name, at least 0.
    """
    modules = {name: model.get_submodule(name) for name in names}
    totals = dict.fromkeys(names, 0.0)
    number = 0
    with evaluation_mode(model):
        for input, target in batches:
            number += 1
            for name, found in _products(model, modules, input, target, loss).items():
                totals[name] += found
    if number == 0:
        raise ValueError("batches is empty: give a few pairs of input and target")
    return {
        name: math.sqrt(max(total, 0.0) / number * filters_of(modules[name])[0].numel())
        for name, total in totals.items()
    }


def _products(model: nn.Module, modules: dict[str, nn.Module], input: Any, target: Any, loss: Loss) -> dict[str, float]:
    """The sum over places of the products of two halves' gradients, without what all places have in common."""
    calls: dict[str, list[tuple[tuple[Any, ...], dict[str, Any], torch.Tensor]]] = {name: [] for name in modules}

    def note_call(name: str) -> Callable[..., None]:
        def note(module: nn.Module, args: Any, kwargs: Any, output: torch.Tensor) -> None:
            if output.requires_grad and _filters(module):
                calls[name].append((args, kwargs, output))

        return note

    handles = [
        module.register_forward_hook(note_call(name), with_kwargs=True)  # type: ignore[arg-type]
        for name, module in modules.items()
    ]
    try:
        with torch.enable_grad():
            value = loss(model(input), target)
    finally:
        for handle in handles:
            handle.remove()
    outputs = [output for found in calls.values() for *_, output in found]
    if not outputs:
        return {}
    errors = iter(torch.autograd.grad(value, outputs, allow_unused=True))
    products = dict.fromkeys(modules, 0.0)
    for name, module in modules.items():
        parameters = _filters(module)
        for args, kwargs, output in calls[name]:
            error = next(errors)
            if error is not None and len(output) > 1:
                products[name] += _between_places(module, parameters, args, kwargs, output, error)
    return products


def _filters(module: nn.Module) -> list[nn.Parameter]:
    """Parameters that learn, without biases."""
    return [parameter for parameter in module.parameters() if parameter.ndim > 1 and parameter.requires_grad]


def _between_places(
    module: nn.Module,
    parameters: list[nn.Parameter],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    output: torch.Tensor,
    error: torch.Tensor,
) -> float:
    args = tuple(part.detach() if isinstance(part, torch.Tensor) else part for part in args)
    kwargs = {name: part.detach() if isinstance(part, torch.Tensor) else part for name, part in kwargs.items()}
    with torch.enable_grad():
        again = module(*args, **kwargs)
    # Channels are last in linear layers, and second elsewhere.
    channel = output.ndim - 1 if is_linear(module) else 1
    shape = [1 if axis in (0, channel) else size for axis, size in enumerate(output.shape)]
    half = len(output) // 2
    generator = torch.Generator().manual_seed(0)

    def gradients(field: torch.Tensor) -> float:
        found = []
        for part in (slice(0, half), slice(half, 2 * half)):
            masked = torch.zeros_like(error)
            masked[part] = error[part] * field
            found.append(torch.autograd.grad(again, parameters, masked, retain_graph=True))
        return sum(float((one * other).sum()) for one, other in zip(*found, strict=True))

    signs = [
        (torch.randint(0, 2, shape, generator=generator) * 2 - 1).to(error.device, error.dtype)
        for _ in range(_NUM_FIELDS)
    ]
    common = gradients(torch.ones(shape, device=error.device, dtype=error.dtype))
    return sum(map(gradients, signs)) / _NUM_FIELDS - common / math.prod(shape)
