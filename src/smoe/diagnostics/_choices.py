"""What gates choose: their certainty and changes; use, regions, neighbours and matching of choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from smoe.diagnostics._routing_gain import RoutingGain
from smoe.nn._conversion_plan import evaluation_mode, run_example
from smoe.nn._gate import SpatialGate
from smoe.nn._routed_layer import RoutedLayer
from smoe.ops._routing import Routing, family_members
from smoe.rules import Frozen, StraightThrough

Choices = np.ndarray | Tensor
"""Experts chosen at each pixel, integers `(E, ...)`: a line `(E, L)`, a map `(E, H, W)`, nodes of a mesh `(E, P)`."""


def as_choices(routing: Choices, num_experts: int) -> np.ndarray:
    """Returns a routing as an array, after checking it."""
    array = as_array(routing)
    if array.ndim < 2 or array.size == 0 or array.dtype.kind not in "iu":
        raise ValueError(f"a routing must hold integers of shape (E, ...), got {array.dtype} of shape {array.shape}")
    if array.min() < 0 or array.max() >= num_experts:
        raise ValueError(f"a routing must be in [0, {num_experts - 1}], got [{array.min()}, {array.max()}]")
    return array


def as_regions(regions: Choices, pixels: tuple[int, ...]) -> np.ndarray:
    """Returns the region of each pixel as an array, after checking it."""
    array = as_array(regions)
    if array.dtype.kind not in "iu":
        raise ValueError(f"regions must be integers, got {array.dtype}")
    if array.shape != pixels:
        raise ValueError(f"regions have the shape {array.shape}, but the routing's pixels {pixels}")
    if array.min() < 0:
        raise ValueError(f"regions must be 0, 1, ..., got {array.min()}")
    return array


def as_pixel_weights(pixel_weights: np.ndarray | Tensor | None, pixels: tuple[int, ...]) -> np.ndarray:
    """Returns how much each pixel counts, of sum 1, float64, in the shape of the grid."""
    weights = np.ones(1) if pixel_weights is None else as_array(pixel_weights).astype(np.float64)
    try:
        weights = np.broadcast_to(weights, pixels)
    except ValueError:
        raise ValueError(f"pixel_weights of shape {weights.shape} do not fit pixels of shape {pixels}") from None
    total = weights.sum()
    if not (weights.min() >= 0 and 0 < total < np.inf):
        raise ValueError(
            f"pixel_weights must not be negative and must have a finite sum above 0, got a sum of {total:g}"
        )
    return weights / total


def as_array(values: np.ndarray | Tensor) -> np.ndarray:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def new_choices(routing: Choices, before: Choices) -> np.ndarray:
    """Returns whether each chosen expert was not among the experts of its pixel before, bool, `(E, ...)`."""
    now, then = as_array(routing), as_array(before)
    if now.shape != then.shape:
        raise ValueError(f"routings of different shapes cannot be compared: {now.shape} and {then.shape}")
    # One slot after the other: a comparison of all with all would take E times the memory.
    return np.stack([(then != slot).all(axis=0) for slot in now])


def selections(routing: Choices, num_experts: int) -> np.ndarray:
    """Returns whether each expert is among those chosen at a pixel, bool, `(X, ...)`."""
    choices = as_choices(routing, num_experts)
    is_selected = np.zeros((num_experts, *choices.shape[1:]), dtype=bool)
    np.put_along_axis(is_selected, choices.astype(np.int64), True, axis=0)
    return is_selected


def expert_use(routing: Choices, num_experts: int, pixel_weights: np.ndarray | Tensor | None = None) -> np.ndarray:
    """Returns the share of the pixels that each expert serves, `(X,)`. The sum is E."""
    choices = as_choices(routing, num_experts)
    weights = as_pixel_weights(pixel_weights, choices.shape[1:])
    repeated = np.broadcast_to(weights, choices.shape)
    return np.bincount(choices.ravel(), weights=repeated.ravel(), minlength=num_experts)


def neighbour_agreement(routing: Choices, num_experts: int) -> np.ndarray:
    """Returns the share of each pixel's experts that also serve a neighbour, averaged over its neighbours.

    Neighbours are one step apart along one axis of the grid: two on a line, four on a map, six in a volume, fewer at
    the edges. White noise is near E / X everywhere; regions have borders. 0 for a grid of one pixel.
    """
    is_selected = selections(routing, num_experts)
    num_selected = as_choices(routing, num_experts).shape[0]
    sums = np.zeros(is_selected.shape[1:])
    counts = np.zeros_like(sums)
    for axis in range(sums.ndim):
        before = (slice(None),) * axis + (slice(None, -1),)
        after = (slice(None),) * axis + (slice(1, None),)
        shared = (is_selected[(slice(None), *before)] & is_selected[(slice(None), *after)]).sum(axis=0) / num_selected
        for side in (before, after):
            sums[side] += shared
            counts[side] += 1
    return sums / np.maximum(counts, 1)


def similarity_colours(
    routing: Choices, num_experts: int, pixel_weights: np.ndarray | Tensor | None = None
) -> np.ndarray:
    """Returns colours from 0 to 1, `(..., 3)`, such that pixels which share many experts look alike.

    The first three principal components of the pixels' sets of experts are red, green and blue, of which 2.2 standard
    deviations of the first span the colours; grey where all pixels have the same experts.
    """
    choices = as_choices(routing, num_experts)
    weights = as_pixel_weights(pixel_weights, choices.shape[1:])
    pixels = selections(choices, num_experts).reshape(num_experts, -1).T
    base, directions = colour_map(pixels, weights)
    return np.clip(base + pixels @ directions, 0.0, 1.0).reshape(*choices.shape[1:], 3)


def colour_map(pixels: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns base `(3,)` and directions `(n, 3)` that make colours `base + pixels @ directions` of features `(P, n)`.

    See `similarity_colours`.
    """
    flat, pixels = weights.ravel(), pixels.astype(np.float64)
    mean = flat @ pixels
    centred = pixels - mean
    variances, directions = np.linalg.eigh((centred * flat[:, None]).T @ centred)
    # The largest variances come last. The sign of a component is such that its largest coefficient is positive.
    leading = directions[:, :-4:-1] * (variances[:-4:-1] > 1e-12)
    leading = leading * np.sign(np.take_along_axis(leading, np.abs(leading).argmax(axis=0)[None], axis=0))
    leading = np.pad(leading, ((0, 0), (0, 3 - leading.shape[1])))
    # One scale for all: a component of little variance must not look like a strong one.
    leading *= 0.5 / 2.2 / (np.sqrt(np.square(centred @ leading[:, 0]) @ flat) or 1.0)
    return 0.5 - mean @ leading, leading


def region_information(routing: Choices, regions: Choices, num_experts: int) -> float:
    """Returns how much one of a pixel's experts, drawn at random, tells of the region in which the pixel lies.

    This is the mutual information of expert and region over the entropy of the regions: 0 if all experts serve all
    regions alike, 1 if no expert serves two of them.
    """
    counts = _counts(routing, regions, num_experts)
    joint = counts / counts.sum()
    of_regions = _entropy(joint.sum(axis=0))
    if of_regions == 0.0:
        return 0.0
    return (of_regions + _entropy(joint.sum(axis=1)) - _entropy(joint)) / of_regions


def regions_of_experts(routing: Choices, regions: Choices, num_experts: int) -> np.ndarray:
    """Returns for each expert the region in which most of its pixels lie; the lowest one if several have as many.

    Several experts may share a region, and a region may have none.

    Returns:
        Regions, -1 for an expert that no pixel chose, int64, `(X,)`.
    """
    counts = _counts(routing, regions, num_experts)
    return np.where(counts.any(axis=1), counts.argmax(axis=1), -1)


def region_agreement(routing: Choices, regions: Choices, num_experts: int) -> float:
    """Returns the share of the choices whose expert belongs to the region of the pixel, in [0, 1]."""
    counts = _counts(routing, regions, num_experts)
    return int(counts.max(axis=1).sum()) / int(counts.sum())


def _counts(routing: Choices, regions: Choices, num_experts: int) -> np.ndarray:
    """Number of pixels of each region that each expert serves, `(X, R)`."""
    choices = as_choices(routing, num_experts)
    numbers = as_regions(regions, choices.shape[1:])
    num_regions = int(numbers.max()) + 1
    # In int64, since a map in a small type would overflow here.
    pairs = choices.astype(np.int64) * num_regions + numbers.astype(np.int64)
    counts = np.bincount(pairs.ravel(), minlength=num_experts * num_regions)
    return counts.reshape(num_experts, num_regions)


def _entropy(shares: np.ndarray) -> float:
    positive = shares[shares > 0]
    return float(-(positive * np.log(positive)).sum())


_PIXELS_AT_ONCE = 65_536


def match_experts(routing: Choices, other: Choices, num_experts: int) -> np.ndarray:
    """Pairs the experts of two routings one to one, such that pairs serve as many pixels together as possible.

    Needs scipy, which the extra `fit` installs.

    Returns:
        For each expert of `routing`, its partner in `other`, int64, `(X,)`.
    """
    from scipy.optimize import linear_sum_assignment

    return linear_sum_assignment(_overlap(routing, other, num_experts), maximize=True)[1]


def shared_choices(routing: Choices, other: Choices, num_experts: int) -> float:
    """Returns the share of the choices of a routing that another one shares, in [0, 1], after matching the experts."""
    overlap = _overlap(routing, other, num_experts)
    num_shared = overlap[np.arange(num_experts), match_experts(routing, other, num_experts)].sum()
    return int(num_shared) / as_choices(routing, num_experts).size


def _overlap(routing: Choices, other: Choices, num_experts: int) -> np.ndarray:
    """Number of pixels that an expert of one routing (rows) and one of the other (columns) serve, `(X, X)`."""
    first, second = selections(routing, num_experts), selections(other, num_experts)
    if first.shape != second.shape:
        raise ValueError(f"the routings have pixels of different shapes: {first.shape[1:]} and {second.shape[1:]}")
    first, second = first.reshape(num_experts, -1), second.reshape(num_experts, -1)
    overlap = np.zeros((num_experts, num_experts), dtype=np.int64)
    # In pieces, for which float32 counts exactly; a product of integers is many times slower.
    for start in range(0, first.shape[1], _PIXELS_AT_ONCE):
        piece = slice(start, start + _PIXELS_AT_ONCE)
        overlap += (first[:, piece].astype(np.float32) @ second[:, piece].astype(np.float32).T).astype(np.int64)
    return overlap


_SCORED_AT_ONCE = 1 << 16


def layers_by_gate(model: nn.Module) -> dict[SpatialGate, dict[str, RoutedLayer]]:
    """Returns each gate of a model with the layers that use it, by name, in the order of the model."""
    found: dict[SpatialGate, dict[str, RoutedLayer]] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, RoutedLayer):
            found.setdefault(layer.gate, {})[name] = layer
    return found


def fixed_gates(model: nn.Module) -> dict[str, SpatialGate]:
    """Returns each gate whose choices do not depend on the input, by the name of the first layer that uses it."""
    return {next(iter(layers)): gate for gate, layers in layers_by_gate(model).items() if not gate.looks_at_input}


def fixed_choices(model: nn.Module) -> dict[str, Tensor]:
    """Returns the experts that each gate of `fixed_gates` chooses, without noise, `(E, ...)`, int32 on the CPU.

    They are in the order of the first layer that uses the gate. The modes of the gates do not change.
    """
    choices: dict[str, Tensor] = {}
    with torch.no_grad():
        for gate, layers in layers_by_gate(model).items():
            if gate.looks_at_input:
                continue
            name, layer = next(iter(layers.items()))
            was_training = gate.training
            # In evaluation mode a noisy gate is without noise.
            gate.eval()
            choices[name] = layer.routing().indices.to("cpu", torch.int32)
            gate.train(was_training)
    return choices


def layer_inputs(model: nn.Module, input: Tensor) -> dict[str, Tensor]:
    """Returns the inputs of the layers whose gates depend on their input, by the names of the layers.

    The model is run in evaluation mode, once, if it has such a layer; its mode does not change.

    Args:
        model: Model with SMoE layers.
        input: Input of the model.
    """
    looking = (layer for layer in model.modules() if isinstance(layer, RoutedLayer) and layer.gate.looks_at_input)
    names, inputs = {layer: name for name, layer in model.named_modules()}, dict[str, Tensor]()

    def keep(layer: nn.Module, args: tuple[Tensor, ...], kwargs: object, output: object) -> None:
        del kwargs, output
        inputs[names[layer]] = args[0]

    hooks: dict[nn.Module, Callable[..., None]] = dict.fromkeys(looking, keep)
    if hooks:
        run_example(model, input, hooks)
    return inputs


def routing_certainty(routing: Routing, *, families: bool, temperature: float = 1.0) -> float:
    """Returns how far the selected experts are ahead of their strongest rivals, in [0, 1].

    This is the mean over pixels and slots of `tanh(margin / (2 * temperature))`: p - q for the probabilities p and q
    that a softmax over the two gives them. It is 0 for a tie and 1 for a gate that no step can change. The rival is the
    best other expert of the family, or the best expert that is not selected. Without rivals the certainty is 1.

    Args:
        routing: Routing of a gate.
        families: Whether the gate selects one expert of each family.
        temperature: Temperature of the softmax.
    """
    num_experts, num_selected = routing.scores.shape[1], routing.indices.shape[1]
    members = family_members(num_experts, num_selected, device=routing.scores.device) if families else None
    total = 0.0
    # In pieces: a gate of many experts on a large grid has scores of gigabytes.
    pieces = (part.split(_SCORED_AT_ONCE, dim=2) for part in (routing.scores.detach(), routing.indices))
    for scores, indices in zip(*pieces, strict=True):
        chosen = indices.long()
        others = scores.scatter(1, chosen, -torch.inf)
        rivals = others.amax(dim=1, keepdim=True) if members is None else others[:, members].amax(dim=2)
        # Without a rival the margin is infinite.
        margins = (scores.gather(1, chosen) - rivals).clamp(min=0.0)
        total += float(torch.tanh(margins / (2.0 * temperature)).sum(dtype=torch.float64))
    return total / routing.indices.numel()


def layer_certainty(layer: RoutedLayer, input: Tensor | None = None) -> float:
    """Returns the certainty of a layer's gate; see `routing_certainty`.

    Args:
        layer: Layer in evaluation mode, where a gate adds no noise.
        input: Input of the layer; needed only by a gate that looks at it.
    """
    temperature = layer.rule.temperature if isinstance(layer.rule, StraightThrough) else 1.0
    with torch.no_grad():
        routing = layer.gate(input)
    return routing_certainty(routing, families=layer.gate.order == "families", temperature=temperature)


def dead_gate(name: str, rule: str) -> str:
    """Returns the warning about a gate none of whose choices has changed."""
    return (
        f"the gate of {name or 'the layer'} has changed none of its choices since the start: it does not learn by the "
        f"rule {rule}; train for longer or with a larger learning rate, unless this is intended"
    )


def useless_routing(gains: Sequence[RoutingGain]) -> list[str]:
    """Returns the warning about a model that is no better than with convolutions, if it is so."""
    # A large difference that samples of very different losses leave unclear does not show that the routing is useless.
    if not gains or gains[-1].is_better or not gains[-1].is_known or gains[-1].gain > 0.1:
        return []
    return [
        "the network is as good or better with single convolutions in place of its SMoE layers: train for longer, or "
        "use fewer experts or plain convolutions"
    ]


# Epochs of learning after which a gate that has changed nothing is reported.
_PATIENCE = 3
# The film of a run has about this number of frames, each of at most so many choices of all gates together.
_NUM_FRAMES, _FRAME_CHOICES = 24, 1 << 17


class RoutingWatch:
    """Measures the routing of a model once in each epoch.

    The choices of all gates that do not look at their input are compared with the last ones and those of the start. A
    gate that several layers share counts once. Chosen experts are compared as sets: a change of their order alone is
    not a change of choice, and is reported separately.

    Args:
        model: Model at the start.
        regions: Number of the known region of each pixel, such as land or sea; compared with the gates of this grid.
    """

    def __init__(self, model: nn.Module, regions: Tensor | None = None) -> None:
        self._regions = regions
        self._start = fixed_choices(model)
        self._last = self._start
        self._num_learning: dict[str, int] = {}
        self._new: list[str] = []
        self._film = {0: _thinned(self._start)}

    def observe(self, model: nn.Module) -> dict[str, float]:
        """Returns shares in [0, 1]; empty for a model without such a gate.

        Returns:
            Numbers by their names:

            - `routing/changed`: chosen experts that were not chosen at their pixel at the last call.
            - `routing/changed_since_start`: chosen experts that were not chosen at their pixel at the start.
            - `routing/reordered`: places of the order with another expert than at the last call.
            - `routing/experts_in_use`: experts of the bank that at least one pixel has chosen.
            - `routing/region_information`: see `region_information`; mean over the gates, with regions only.
            - `routing/certainty`: see `routing_certainty`; mean over the gates.
        """
        if not self._start:
            return {}
        now, gates = fixed_choices(model), fixed_gates(model)
        num_choices = sum(choices.numel() for choices in now.values())
        since_start = {name: new_choices(now[name], start) for name, start in self._start.items()}
        values = {
            "routing/changed": sum(int(new_choices(now[name], self._last[name]).sum()) for name in now) / num_choices,
            "routing/changed_since_start": sum(int(changed.sum()) for changed in since_start.values()) / num_choices,
            "routing/reordered": sum(int((now[name] != self._last[name]).sum()) for name in now) / num_choices,
            "routing/experts_in_use": sum(choices.unique().numel() for choices in now.values())
            / sum(gate.num_experts for gate in gates.values()),
        }
        if self._regions is not None:
            found = [
                region_information(now[name], self._regions, gate.num_experts)
                for name, gate in gates.items()
                if now[name].shape[1:] == self._regions.shape
            ]
            if found:
                values["routing/region_information"] = sum(found) / len(found)
        self._last, epoch = now, max(self._film) + 1
        every = 1 << (epoch // _NUM_FRAMES).bit_length()
        self._film = {number: frame for number, frame in self._film.items() if number % every == 0}
        self._film[epoch] = _thinned(now)
        certainties: list[float] = []
        with evaluation_mode(model):
            for gate, layers in layers_by_gate(model).items():
                if gate.looks_at_input:
                    continue
                name, layer = next(iter(layers.items()))
                certainties.append(layer_certainty(layer))
                if all(isinstance(each.rule, Frozen) for each in layers.values()):
                    continue
                self._num_learning[name] = self._num_learning.get(name, 0) + 1
                if not since_start[name].any() and self._num_learning[name] == _PATIENCE:
                    self._new.append(dead_gate(name, str(layer.rule)))
        return {**values, "routing/certainty": sum(certainties) / len(certainties)}

    def finish(self, gains: Sequence[RoutingGain]) -> None:
        """Warns if the routing is worth nothing after training, by the gains of the layers; empty if not known."""
        self._new += useless_routing(gains)

    def new_warnings(self) -> list[str]:
        """Returns the warnings since the last call. There is at most one for each gate."""
        new, self._new = self._new, []
        return new

    def state_dict(self) -> dict[str, Any]:
        """Returns what a resumed run needs to continue."""
        learning = dict(self._num_learning)
        return {"start": self._start, "last": self._last, "num_learning": learning, "film": self._film}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._start, self._last = state["start"], state["last"]
        self._num_learning, self._film = dict(state["num_learning"]), dict(state["film"])


def _thinned(choices: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, chosen in choices.items():
        step, grid = 1, chosen.shape[1:]
        while chosen.numel() > _FRAME_CHOICES // len(choices) and step <= max(grid):
            chosen, step = choices[name][(slice(None), *(slice(None, None, step) for _ in grid))], step + 1
        found[name] = chosen.to(torch.uint8 if int(chosen.max()) < 256 else torch.int32, copy=True).contiguous()
    return found
