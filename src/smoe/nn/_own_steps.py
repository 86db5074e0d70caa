"""The steps by which gates learn beside the user's optimiser, as batch normalisation keeps statistics.

The numbers of a module that learns so are buffers: no optimiser, learning rate, weight decay or clipping touches them,
and wrappers for several processes treat them as statistics. Backward passes add up their gradients as those of
parameters, in `.grad`. When an optimiser steps that holds a parameter of the layers, the sum of all processes
becomes one step of Adam with a size of its own, which is smaller only towards the end of a schedule, so that everything
comes to rest together. Gradients that the user sets to None are forgotten with those of the layer: only what belongs to
the step counts, with a loss scaler that skips steps, a line search, or two passes for a step.

Local affine maps are parameters, and the optimiser's. Its step is lengthened where its rate is too low for numbers of
which each sees one pixel, and a part of what noise adds to the differences between pixels is taken away again.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from smoe.nn._shared_parameters import SharedModule, StatefulModule, at_least_float32, has_process_group, is_sharded
from smoe.ops._operators import is_observed, library_for, num_threads

if TYPE_CHECKING:
    from smoe.nn._routed_layer import RoutedLayer

# Decay of the mean gradient and of its mean square, and what is added to the root of the latter: where gradients are
# a thousandth of the largest so far, nothing is left to learn, and what is left of them is noise.
_BETAS = (0.9, 0.999)
_EPSILON = 1e-3
# Part of the highest learning rate so far below which own steps become smaller with it.
_LAST_PART = 1.0 / 3.0
# Learning rate of local affine maps, at least, where the rate of the user is that of an optimiser of Adam's kind.
_MAP_RATE = 1e-2
# Part of the variance that noise adds to such maps which is taken away again, and steps after which it is.
_TAKEN_AWAY = 0.4
_STEPS_TOGETHER = 4
_HALF = (torch.float16, torch.bfloat16)

_numbering = itertools.count()
_modules: weakref.WeakValueDictionary[int, SelfOptimizing] = weakref.WeakValueDictionary()


class AdamSteps(StatefulModule):
    """State of the steps of some tensors: Adam in units of the largest gradient so far, so that no scale has an effect.

    Numbers come to rest where their gradients are far below this unit.

    Args:
        numbers: The tensors.
        longest: Length of the longest vector of numbers.
        axis: Axis of such vectors.
    """

    moments: torch.Tensor
    units: torch.Tensor
    num_steps: torch.Tensor

    def __init__(self, numbers: list[torch.Tensor], longest: float = math.inf, axis: int = 0) -> None:
        super().__init__()
        self._longest, self._axis = longest, axis
        first = numbers[0] if numbers else torch.zeros(())
        # Mean gradients and mean squares of all tensors, one behind the other.
        self.register_buffer("moments", first.new_zeros(2, sum(map(torch.numel, numbers)), requires_grad=False))
        self.register_buffer("units", torch.zeros(len(numbers), device=first.device))
        self.register_buffer("num_steps", torch.zeros((), dtype=torch.int64, device=first.device))

    @torch.no_grad()
    def take(self, numbers: list[torch.Tensor], size: float, is_due: torch.Tensor | None = None) -> None:
        """Moves the tensors against their gradients.

        Args:
            numbers: The tensors.
            size: Size of a step.
            is_due: Whether there is a step at all, a scalar that is not read on the host; None if there is.
        """
        self.num_steps.add_(1 if is_due is None else is_due)
        # Neither the kernel nor the fused Adam of PyTorch counts its change.
        torch.autograd.graph.increment_version([values for values in numbers if values.grad is not None])
        if is_due is None and self._take_native(numbers, size):
            return
        moments = self.moments.split([values.numel() for values in numbers], dim=1)
        for values, (mean, square), unit in zip(numbers, moments, self.units, strict=True):
            if values.grad is None:
                continue
            size_found = torch.linalg.vector_norm(values.grad) / math.sqrt(max(1, values.numel()))
            largest = torch.maximum(unit, size_found.nan_to_num(0.0, 0.0, 0.0))
            shrink = torch.where(largest > 0.0, unit / largest, 1.0)  # the moments are in the unit, too
            mean.mul_(shrink)
            square.mul_(shrink).mul_(shrink)
            unit.copy_(largest)
            # No step by a gradient that is not finite, nor by zeros that no other gradient came before.
            is_skipped = (unit == 0.0) | (size_found - size_found != 0.0)
            if is_due is not None:
                is_skipped |= is_due == 0
            torch._fused_adam_(
                *([values], [values.grad], [mean.view_as(values)], [square.view_as(values)], []),
                [self.num_steps.float()],
                lr=size,
                beta1=_BETAS[0],
                beta2=_BETAS[1],
                weight_decay=0.0,
                eps=_EPSILON,
                amsgrad=False,
                maximize=False,
                grad_scale=unit.float(),
                found_inf=is_skipped.float(),
            )
            if math.isfinite(self._longest):
                lengths = torch.linalg.vector_norm(values, dim=self._axis, keepdim=True)
                values.mul_((self._longest / lengths).clamp_(max=1.0))

    def _take_native(self, numbers: list[torch.Tensor], size: float) -> bool:
        """The same by one call of a kernel; False if there is none for these tensors."""
        gradients = [None if values.grad is None else values.grad.contiguous() for values in numbers]
        library = None if is_observed() else library_for(self.moments, self.units, *numbers)
        if library is None or not all(map(torch.Tensor.is_contiguous, numbers)):
            return False
        pointers, counts = ctypes.c_void_p * len(numbers), ctypes.c_int64 * len(numbers)
        shapes = [values.shape[self._axis :] for values in numbers] if math.isfinite(self._longest) else []
        return library.call(
            *("smoe_take_steps", len(numbers), counts(*map(torch.numel, numbers))),
            *(counts(*(shape[0] for shape in shapes)), counts(*(math.prod(shape[1:]) for shape in shapes))),
            pointers(*map(torch.Tensor.data_ptr, numbers)),
            pointers(*(0 if gradient is None else gradient.data_ptr() for gradient in gradients)),
            *(self.moments, self.units, self.num_steps),
            *(ctypes.c_double(size), ctypes.c_double(self._longest), num_threads()),
        )


class SelfOptimizing(SharedModule):
    """A module whose numbers can take steps of their own; `learn_alone` makes buffers of its parameters.

    Modules of this class inside it look after their own numbers.
    """

    _step_size: float = 1e-2
    """Change of a number in one step."""

    _longest: float = math.inf
    """Length of the longest vector of numbers: scores that are their products cannot lead by so much that the others
    have no gradient, and a wrong choice would stay."""

    _vector_axis: int = 0
    """Axis of such vectors."""

    steps: AdamSteps | None

    def __init__(self) -> None:
        super().__init__()
        self.register_module("steps", None)
        # Modules and names of the tensors that take steps, and those of modules inside beside them.
        self._numbers: list[tuple[nn.Module, str]] = []
        self._all_numbers: list[tuple[nn.Module, str]] = []
        # This module and those inside.
        self._optimizing: list[SelfOptimizing] = []
        self._learns = True
        # Whether an optimiser is known that holds parameters of the layers, and the factor of the step size.
        self._is_led = False
        self._step_factor = 1.0
        self._layers: weakref.WeakSet[RoutedLayer] = weakref.WeakSet()
        # Version of a parameter of each layer in its last backward pass, of those that gave gradients.
        self._versions: weakref.WeakKeyDictionary[RoutedLayer, int] = weakref.WeakKeyDictionary()
        self.register_load_state_dict_post_hook(_follow_loading)

    def _learn_alone(self, layer: RoutedLayer) -> None:
        """Makes buffers of the parameters, which take their own steps when an optimiser steps that holds the layer's.

        Args:
            layer: A layer that the module serves.
        """
        for child in self._inside():
            child._layers.add(layer)
            if child.steps is None:
                child._become_buffers()
        self._optimizing = list(self._inside())
        self._all_numbers = [place for child in self._optimizing for place in child._numbers]

    def _become_buffers(self) -> None:
        inner = [child for child in self._inside() if child is not self]
        apart = {id(parameter) for child in inner for parameter in child.parameters()}
        for name, parameter in list(self.named_parameters()):
            if id(parameter) in apart:
                continue
            owner, _, leaf = name.rpartition(".")
            module, values = self.get_submodule(owner), parameter.detach()
            delattr(module, leaf)
            module.register_buffer(leaf, values.float() if values.dtype in _HALF else values)
            self._numbers.append((module, leaf))
            self._learns = self._learns and parameter.requires_grad
            parameter.grad = None
        self._require_gradients()
        self.steps = AdamSteps(self._own_numbers(), self._longest, self._vector_axis)
        self._register()

    def _register(self) -> None:
        if not _hooks:
            _hooks.append(register_optimizer_step_pre_hook(_before_step))
            _hooks.append(register_optimizer_step_post_hook(_after_step))
        _modules[next(_numbering)] = self

    def _inside(self) -> Iterator[SelfOptimizing]:
        return (module for module in self.modules() if isinstance(module, SelfOptimizing))

    def _own_numbers(self) -> list[torch.Tensor]:
        """The tensors that this module itself looks after."""
        return [getattr(module, name) for module, name in self._numbers]

    def _learned_numbers(self) -> list[torch.Tensor]:
        """The tensors that take their own steps, those of modules inside too."""
        found: list[torch.Tensor] = []
        for module, name in self._all_numbers:
            values = getattr(module, name)
            if values.requires_grad:
                found.append(values)
        return found

    def _require_gradients(self) -> None:
        """Lets the numbers collect gradients, as leaves."""
        for module, name in self._numbers:
            module._buffers[name] = getattr(module, name).detach().requires_grad_(self._learns)

    def _replace_numbers(self, name: str, values: torch.Tensor) -> None:
        """Gives a number tensor, parameter or buffer, other values and perhaps another shape, and resets its steps."""
        if (self, name) not in self._numbers:
            setattr(self, name, nn.Parameter(values, getattr(self, name).requires_grad))
            return
        self._buffers[name] = values.detach()
        self._require_gradients()
        self.steps = AdamSteps(self._own_numbers(), self._longest, self._vector_axis)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Whether the module learns, by its own steps or by gradients."""
        super().requires_grad_(requires_grad)
        for child in self._inside():
            child._learns = requires_grad
            child._require_gradients()
        return self

    def _note_pass(self, layer: RoutedLayer, trained: nn.Parameter | None) -> None:
        """Called in a backward pass of a layer, with its `_trained_parameter`."""
        for child in self._optimizing:
            child._versions[layer] = -1 if trained is None else trained._version

    def _begin_pass(self) -> None:
        """Forgets gradients that the user has dropped, and takes the step that follows an update by hand."""
        for module, name in self._all_numbers:
            if getattr(module, name).grad is not None:
                break
        else:
            return
        if torch._C._current_graph_task_id() != -1:  # activations are computed again within a backward pass
            return
        for child in self._optimizing:
            if not child._has_gradient():
                continue
            if not child._is_led and child._is_updated():
                _take_steps([child])
                child._after_step(is_taken=True)
            elif all(map(_has_no_gradient, child._layers)):
                child._forget()

    def _is_updated(self) -> bool:
        """Whether parameters of the layers have changed since their backward passes."""
        trained = ((layer._trained_parameter(), version) for layer, version in self._versions.items())
        return any(parameter is not None and parameter._version != version for parameter, version in trained)

    def _forget(self) -> None:
        self._versions.clear()
        for values in self._own_numbers():
            values.grad = None

    def _after_step(self, *, is_taken: bool) -> None:
        """Called after each step of an optimiser that holds parameters of the layers.

        Args:
            is_taken: Whether the module has taken a step too.
        """

    def _has_gradient(self) -> bool:
        return any(values.grad is not None for values in self._own_numbers())

    def _group(self, groups: dict[int, dict[str, Any]]) -> dict[str, Any] | None:
        """The group, among those of parameters by their `id`, that holds a parameter of the layers."""
        for layer in self._layers:
            trained = layer._trained_parameter()
            if id(trained) in groups:
                return groups[id(trained)]
        others = (parameter for layer in self._layers for parameter in layer.parameters())
        return next((groups[id(each)] for each in others if id(each) in groups), None)

    def _may_learn(self) -> bool:
        return self._learns and any(
            layer.training and any(parameter.requires_grad for parameter in layer.parameters())
            for layer in self._layers
        )

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        for layer in list(self._layers):
            layer._begin_pass()
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        if self.steps is None:
            return super()._apply(fn, recurse)
        # A step would be lost in half precision.
        super()._apply(lambda values: at_least_float32(fn, values), recurse)
        self._require_gradients()
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_layers": None, "_versions": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_layers": weakref.WeakSet(), "_versions": weakref.WeakKeyDictionary()})
        if self.steps is not None:
            self._register()


def _follow_loading(module: SelfOptimizing, incompatible_keys: object) -> None:
    """Load hook: tensors that were assigned collect no gradients yet."""
    del incompatible_keys
    module._require_gradients()


_hooks: list[RemovableHandle] = []


class _MovedMap(NamedTuple):
    """A local affine map during a step of an optimiser of Adam's kind.

    Attributes:
        values: The map, `(C, *grid)`.
        before: Its values before the step; None if it will not change further.
        factor: Factor by which the step is lengthened.
        group: The optimiser's group of parameters, which counts the steps.
        num_steps: Steps after this one since noise was taken away; 0 where it is taken away now.
    """

    values: torch.Tensor
    before: torch.Tensor | None
    factor: float
    group: dict[str, Any]
    num_steps: int

    def follow(self) -> None:
        """Changes the map after the step."""
        values, before, factor, group, num_steps = self
        group["map_steps"] = num_steps
        if before is None:
            return
        if factor > 1.0:
            values.add_(values - before, alpha=factor - 1.0)
        if num_steps == 0:
            rate, momentum = factor * float(group["lr"]), float(group["betas"][0])
            pixels = tuple(range(1, values.dim()))
            # A mean gradient that is noise has (1 - momentum) / (1 + momentum) of its variance: so large are the steps,
            # and their sum grows by the square of the rate.
            noise = (values - before).float().square().mean(pixels, keepdim=True) * ((1 + momentum) / (1 - momentum))
            take_noise(values, noise.clamp(max=rate**2))


def take_noise(values: torch.Tensor, noise: torch.Tensor) -> None:
    """Takes from a map `(C, *grid)` a part of what noise has added to the differences between its pixels.

    The deviations of each channel from its mean shrink by that part of the variance that noise alone adds to them in
    some steps, over the variance that they have. A channel that has learned how pixels differ is hardly changed, and
    one that follows noise stays near its mean.

    Args:
        values: The map, which is changed.
        noise: Variance that noise adds in a step, `(C, 1, ...)`.
    """
    pixels = tuple(range(1, values.dim()))
    mean = values.float().mean(pixels, keepdim=True)
    variance = (values - mean).square().mean(pixels, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    share = (_TAKEN_AWAY * _STEPS_TOGETHER * noise / variance).clamp(max=1.0)
    values.lerp_(mean.to(values.dtype).expand_as(values), share.to(values.dtype).expand_as(values))


class _Stepping(threading.local):
    """During a step of an optimiser: local affine maps that it will move."""

    maps: Sequence[_MovedMap] = ()


_stepping = _Stepping()
# And the modules that it leads, in their order, with its groups of parameters.
_led: weakref.WeakKeyDictionary[torch.optim.Optimizer, list[tuple[SelfOptimizing, dict[str, Any]]]] = (
    weakref.WeakKeyDictionary()
)


def _registered() -> list[SelfOptimizing]:
    """All modules, in the order in which they were made; other threads may be making some."""
    found = (reference() for reference in _modules.valuerefs())
    return [module for module in found if module is not None]


def _groups(optimizer: torch.optim.Optimizer) -> dict[int, dict[str, Any]]:
    return {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}


def _highest_rate(group: dict[str, Any]) -> float:
    """The highest learning rate of a group so far; 0 if it has none, or one that a device would have to be asked for.

    It is stored in the group, as schedulers store `initial_lr`: it is saved with the optimiser, and a new optimiser
    starts without it.
    """
    rate = group.get("lr")
    if rate is None or (isinstance(rate, torch.Tensor) and not rate.is_cpu):
        return 0.0
    group["highest_lr"] = highest = max(float(rate), group.get("highest_lr", 0.0))
    return highest


def _step_factor_of(group: dict[str, Any]) -> float:
    """Factor of the step size: 1, and less once the learning rate of the group is below a third of its highest."""
    highest = _highest_rate(group)
    return min(1.0, float(group["lr"]) / (_LAST_PART * highest)) if highest > 0.0 else 1.0


@torch.no_grad()
def _moved_maps(groups: dict[int, dict[str, Any]]) -> Iterator[_MovedMap]:
    """Local affine maps that an optimiser of Adam's kind will move, for `_stepping`."""
    layers = {layer for module in _registered() for layer in list(module._layers)}
    affine = (getattr(layer, "_affine", None) for layer in layers)
    for values in (values for each in affine if each is not None for values in each.parameters()):
        group = groups.get(id(values), {})
        if "betas" not in group:  # the rate of other optimisers, such as SGD, is not the size of a step
            continue
        highest = _highest_rate(group)
        factor = max(1.0, _MAP_RATE / highest) if highest > 0.0 else 1.0
        num_steps = (group.get("map_steps", 0) + 1) % _STEPS_TOGETHER
        before = None
        if highest > 0.0 and (factor > 1.0 or num_steps == 0):
            # Weight decay stays as it is.
            decay = group.get("weight_decay", 0.0) if group.get("decoupled_weight_decay") else 0.0
            before = values * (1.0 - float(group["lr"]) * decay)
        yield _MovedMap(values, before, factor, group, num_steps)


def _before_step(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
    del args, kwargs
    if not _modules:
        return
    groups = _groups(optimizer)
    found = [(module, module._group(groups)) for module in _registered()]
    _led[optimizer] = led = [(module, group) for module, group in found if group is not None]
    for module, _ in led:
        if not module._is_led:  # an assignment to a module is slow
            module._is_led = True
    # Of an optimiser that calls another one, the step of that one counts.
    _stepping.maps = list(_moved_maps(groups)) if any("betas" in group for group in optimizer.param_groups) else ()


def _after_step(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
    del args, kwargs
    with torch.no_grad():
        for each in _stepping.maps:
            if each.values.grad is not None:  # which a closure may have computed within the step
                each.follow()
    _stepping.maps = ()
    modules = []
    for module, group in _led.pop(optimizer, ()):
        factor = _step_factor_of(group)
        if module._step_factor != factor:
            module._step_factor = factor
        modules.append(module)
    # Alike in all processes, also if one of them has seen nothing.
    is_due = [module._may_learn() if has_process_group() else module._has_gradient() for module in modules]
    _take_steps([module for module, is_taken in zip(modules, is_due, strict=True) if is_taken])
    for module, is_taken in zip(modules, is_due, strict=True):
        module._after_step(is_taken=is_taken)


def _has_no_gradient(layer: RoutedLayer) -> bool:
    """Whether the user has dropped the gradients of a layer; not known of a sharded one."""
    parameter = layer._trained_parameter()
    return parameter is None or (parameter.grad is None and parameter.is_leaf and not is_sharded(layer))


@torch.no_grad()
def _take_steps(modules: list[SelfOptimizing]) -> None:
    if not has_process_group():
        for module in modules:
            assert module.steps is not None
            module.steps.take(module._own_numbers(), module._step_factor * module._step_size)
            module._forget()
        return
    if not modules:
        return
    parts: list[torch.Tensor] = []
    for module in modules:
        numbers = module._own_numbers()
        gradients = [torch.zeros_like(values) if values.grad is None else values.grad for values in numbers]
        parts.append(torch.full((1,), float(module._has_gradient()), device=numbers[0].device))
        parts += [gradient.flatten().float() for gradient in gradients]
    everything = torch.cat(parts)
    torch.distributed.all_reduce(everything)
    found = iter(everything.split([len(part) for part in parts]))
    for module in modules:
        assert module.steps is not None
        is_due = (next(found)[0] > 0.0).to(torch.int64)
        numbers = module._own_numbers()
        for values in numbers:
            values.grad = next(found).view_as(values).to(values.dtype)
        module.steps.take(numbers, module._step_factor * module._step_size, is_due)
        module._forget()
