"""What the routing of a layer is worth: the loss with the layer, and with the best single convolution in its place."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from smoe.nn._conversion_plan import evaluation_mode
from smoe.nn._filter_bank import FilterBank
from smoe.nn._routed_layer import RoutedLayer
from smoe.ops._routing import Routing

Loss = Callable[[Tensor, Tensor], Tensor]
"""Function of prediction and target that returns a scalar."""

# A difference is clear above two standard errors, from this number of samples on, and above this share of the loss.
_FEWEST_SAMPLES = 4
_LEAST_SHARE = 0.01
# Share of the loss above which a clear difference cannot be due to the rest of the network having learned beside the
# layer: networks without any structure in place show up to 5 %.
_LARGE_SHARE = 0.1
# Gradient steps of one convolution, and of several, on the loss, after the least-squares fit; fixed numbers, since all
# processes must make the same passes.
_NUM_STEPS = (8, 24)
_RIDGE = 1e-8
# Pixels of the least-squares fit for each unknown, and the least number.
_PIXELS_PER_UNKNOWN = 16
_LEAST_PIXELS = 1 << 15
# Numbers of the columns of the least-squares fit that are computed at once.
_NUMBERS_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class RoutingGain:
    """Losses with a layer and with the best single convolution in its place; `str` says what they mean.

    Attributes:
        layer: Name of the layer; `all N layers` for several.
        loss: Loss of the model.
        loss_of_convolution: Loss with the convolution in place of the layer.
        standard_error: Standard error of the difference over the samples; NaN for a single sample.
        num_samples: Number of samples.
        is_alone: Whether other layers kept their routing.
        num_better: Number of samples whose loss is lower with the layer.
    """

    layer: str
    loss: float
    loss_of_convolution: float
    standard_error: float
    num_samples: int
    is_alone: bool = False
    num_better: int = 0

    @property
    def gain(self) -> float:
        """Share of the convolution's loss that the layer removes; NaN if that is not positive."""
        return 1.0 - self.loss / self.loss_of_convolution if self.loss_of_convolution > 0.0 else math.nan

    @property
    def is_known(self) -> bool:
        """Whether there are samples enough to tell which is better."""
        return self.num_samples >= _FEWEST_SAMPLES

    @property
    def is_better(self) -> bool:
        """Whether the layer is clearly better than the convolution: by 1 %, and two standard errors or every sample."""
        return self._is_above(_LEAST_SHARE, self.loss_of_convolution - self.loss)

    @property
    def helps(self) -> bool:
        """Whether it is better by so much, 10 %, that it is not due to the others having learned beside the layer."""
        return self._is_above(_LARGE_SHARE, self.loss_of_convolution - self.loss)

    def _is_above(self, share: float, difference: float) -> bool:
        least = share * abs(self.loss_of_convolution)
        # Losses of samples may differ by decades, and a few of them then make the error as large as the difference.
        is_sure = difference > 2.0 * self.standard_error or self.num_better == self.num_samples
        return self.is_known and difference > least and is_sure

    def as_record(self) -> dict[str, Any]:
        """Returns the attributes by name, for JSON, which has no NaN."""
        values = asdict(self)
        return {**values, "standard_error": None} if math.isnan(self.standard_error) else values

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> RoutingGain:
        error = record["standard_error"]
        return cls(**{**record, "standard_error": math.nan if error is None else error})

    @property
    def verdict(self) -> str:
        """What the numbers mean."""
        percent = 100.0 * abs(self.gain)
        share = "" if math.isnan(percent) else f" ({percent:.2g} %)" if percent < 99.5 else f" ({percent:.0f} %)"
        if not self.is_known:
            return f"{self.num_samples} sample{'s do' if self.num_samples > 1 else ' does'} not tell which is better"
        if self.helps:
            removed = "more than 99.9" if percent > 99.9 else f"{percent:.3g}"
            words = "the other layers rely on this routing" if self.is_alone else "the routing helps"
            return f"{words}: it removes {removed} % of the loss" if share else words
        if self.is_better:
            return f"a little better{share}, which a network trained with convolutions may make up for"
        if self._is_above(_LEAST_SHARE, self.loss - self.loss_of_convolution):
            return "no better than a convolution, so the routing does not help"
        return f"the routing makes no clear difference{share}"

    def __str__(self) -> str:
        where = f"in place of {self.layer}" if self.layer else "in its place"
        end = "s" if self.layer.startswith("all ") else ""
        return (
            f"with the best single convolution{end} {where} the loss is {self.loss_of_convolution:.4g}, with the "
            f"layer{end} {self.loss:.4g}: {self.verdict}"
        )


def routing_gains(
    model: nn.Module,
    loss_fn: Loss,
    input: Tensor,
    target: Tensor,
    *,
    gather: Callable[[list[float]], list[float]] = list,
) -> list[RoutingGain]:
    """Compares each layer that has a choice with the best single convolution in its place, and at last all together.

    Layers that learned beside each other rely on the routing of the others even where nothing depends on the place: for
    a network of several layers, the last comparison tells whether its routing helps.

    The convolution, with a bias, starts as the one that imitates the layer's output best, and is then fitted to the
    loss: on the samples of even number, to be measured on the others, and the reverse. A local affine map stays. For a
    `SpatialMoE` it is a combination of all experts, the same at every pixel. Layers of several groups keep their
    routing. The model is measured in evaluation mode;
    neither its state nor the gradients of its parameters change.

    Args:
        model: Model with SMoE layers.
        loss_fn: Function of prediction and target that returns a scalar.
        input: Input of the model; samples along the first axis of prediction and target tell how sure the comparison
            is.
        target: Target of the loss.
        gather: Function that joins the losses of the samples of several processes, each of which has as many samples.
    """
    layers = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, RoutedLayer)]
    layers = [(name, layer) for name, layer in layers if layer.gate.num_experts > 1 and _has_one_group(layer)]
    if not layers:
        return []
    # A compiled model would not see the convolution.
    with evaluation_mode(model), torch.compiler.set_stance("force_eager"):
        with torch.no_grad():
            prediction = model(input)
        # Samples that are not along the first axis of both count as one.
        num_samples = len(target) if prediction.shape[:1] == target.shape[:1] else 1

        def loss_of(prediction: Tensor, samples: slice) -> Tensor:
            return loss_fn(prediction, target) if num_samples == 1 else loss_fn(prediction[samples], target[samples])

        def losses_of(prediction: Tensor, samples: slice) -> list[float]:
            numbers = range(num_samples)[samples]
            return [float(loss_of(prediction, slice(number, number + 1))) for number in numbers]

        own = gather(losses_of(prediction, slice(None)))
        convolutions = [_SingleConvolution(layer) for _, layer in layers]
        with torch.no_grad(), ExitStack() as stack:
            for convolution in convolutions:
                stack.enter_context(convolution.imitating())
            model(input)
        groups = [(name, [convolution]) for (name, _), convolution in zip(layers, convolutions, strict=True)]
        if len(layers) > 1:
            groups.append((f"all {len(layers)} layers", convolutions))
        gains: list[RoutingGain] = []
        for name, group in groups:
            others = [math.nan] * num_samples
            for fitted, held in ((0, 1), (1, 0)) if num_samples > 1 else ((0, 0),):
                fitted, held = slice(fitted, None, 2), slice(held, None, 2)
                least = math.inf
                for prediction in _minimising(group, lambda: model(input), partial(loss_of, samples=fitted)):
                    if not (loss := float(loss_of(prediction, held))) >= least:
                        least, others[held] = loss, losses_of(prediction, held)
            gains.append(_compare(name, own, gather(others), is_alone=len(group) < len(layers)))
        return gains


def _has_one_group(layer: RoutedLayer) -> bool:
    return getattr(layer, "groups", 1) == 1


def _compare(name: str, own: list[float], others: list[float], *, is_alone: bool) -> RoutingGain:
    losses = torch.tensor([own, others], dtype=torch.float64)
    # A sample without a valid pixel has no loss.
    losses = losses[:, losses.isfinite().all(dim=0)]
    num_samples = losses.shape[1]
    error = float((losses[1] - losses[0]).std()) / math.sqrt(num_samples) if num_samples > 1 else math.nan
    loss, other = losses.mean(dim=1).tolist()
    return RoutingGain(name, loss, other, error, num_samples, is_alone, int((losses[0] < losses[1]).sum()))


class _SingleConvolution:
    """A convolution with a bias that takes the place of a layer inside of its network.

    The filters are `filters @ whiten`: a step in `filters` changes the output alike in all directions, whatever the
    scale and the correlations of the input.
    """

    def __init__(self, layer: RoutedLayer) -> None:
        self._layer = layer
        self.start, self._whiten = torch.empty(0), torch.empty(0)

    @contextmanager
    def _in_place(self, respond: Callable[[Tensor, Routing], Tensor]) -> Iterator[None]:
        # Passes may take a shorter way, which does not ask for a response.
        own = vars(self._layer)
        own["_respond"], own["_fused_output"] = respond, lambda *_: None
        try:
            yield
        finally:
            del own["_respond"], own["_fused_output"]

    def _apply(self, source: Tensor, filters: Tensor) -> Tensor:
        """Filters `(O, K)` everywhere; with any module as experts, combinations of what all of them return."""
        filters = filters.to(source.dtype)
        if isinstance(self._layer, FilterBank):
            return self._layer._apply_filters(source, filters.unflatten(1, self._layer.weight.shape[1:]))
        return torch.einsum("ok,bk...->bo...", filters, source)

    @contextmanager
    def imitating(self) -> Iterator[None]:
        """While active, passes of the network are read; then the filters are those that imitate the layer best."""
        respond, read = self._layer._respond, list[tuple[Tensor, Tensor]]()

        def read_pass(input: Tensor, routing: Routing) -> Tensor:
            output = respond(input, routing)
            read.append(self._columns(self._layer._prepare(input), output))
            return output

        with self._in_place(read_pass):
            yield
        if not read:  # the network does not use the layer
            return
        columns, outputs = (torch.cat(parts) for parts in zip(*read, strict=True))
        columns = torch.cat([columns, torch.ones_like(columns[:, :1])], dim=1).double()
        products = columns.mT @ columns / len(columns)
        products.diagonal().add_(_RIDGE * products.diagonal().mean())
        root = torch.linalg.cholesky(products)
        self._whiten = torch.linalg.inv(root)
        # filters @ whiten are the solution of the normal equations.
        self.start = (self._whiten @ (columns.mT @ outputs.double() / len(columns))).mT

    def _columns(self, source: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
        """What each unknown multiplies `(n, K)`, and the layer's output `(n, O)`, at some of the pixels."""
        layer = self._layer
        num_unknowns = layer.weight.shape[1:].numel() if isinstance(layer, FilterBank) else source.shape[1]
        num_pixels = output[0, 0].numel()
        wanted = max(_LEAST_PIXELS, _PIXELS_PER_UNKNOWN * num_unknowns)
        # The samples are as far apart as can be, and the pixels of a large grid too.
        samples = slice(None, None, max(1, len(output) * num_pixels // wanted))
        source, output = source[samples], output[samples]
        pixels = slice(None, None, max(1, len(output) * num_pixels // wanted))
        units = torch.eye(num_unknowns, device=source.device)
        at_once = max(1, _NUMBERS_AT_ONCE // (len(output) * num_pixels))
        parts = [self._apply(source, part).flatten(2)[:, :, pixels] for part in units.split(at_once)]
        columns, outputs = torch.cat(parts, dim=1), output.flatten(2)[:, :, pixels]
        return columns.movedim(1, 2).flatten(0, 1), outputs.movedim(1, 2).flatten(0, 1)

    @property
    def is_used(self) -> bool:
        return self.start.numel() > 0

    @contextmanager
    def applied(self, filters: Tensor) -> Iterator[None]:
        """While active, the convolution takes the place of the layer."""
        filters = filters @ self._whiten

        def respond(input: Tensor, routing: Routing) -> Tensor:
            del routing
            output = self._apply(self._layer._prepare(input), filters[:, :-1])
            return output + filters[:, -1].to(output.dtype).view(-1, *(1,) * (output.ndim - 2))

        with self._in_place(respond):
            yield


def _minimising(
    convolutions: Sequence[_SingleConvolution], run: Callable[[], Tensor], loss_of: Callable[[Tensor], Tensor]
) -> Iterator[Tensor]:
    """Yields the predictions of a network with convolutions in it, on their way to the least loss.

    The steps are those of Barzilai and Borwein: for squared errors of a single layer the second one arrives.
    """
    convolutions = [convolution for convolution in convolutions if convolution.is_used]
    sizes = [convolution.start.numel() for convolution in convolutions]
    filters, step = torch.cat([convolution.start.flatten() for convolution in convolutions] or [torch.empty(0)]), 0.0
    before: tuple[Tensor, Tensor, float] | None = None
    for _ in range(_NUM_STEPS[len(convolutions) > 1] + 1):
        filters = filters.detach().requires_grad_()
        with torch.enable_grad(), ExitStack() as stack:
            for convolution, part in zip(convolutions, filters.split(sizes), strict=True):
                stack.enter_context(convolution.applied(part.view_as(convolution.start)))
            prediction = run()
            loss = loss_of(prediction)
            gradients = torch.autograd.grad(loss, filters, allow_unused=True) if loss.requires_grad else (None,)
        yield prediction.detach()
        if (gradient := gradients[0]) is None:  # the layers have no part in the loss
            return
        filters = filters.detach()
        found = float(loss.detach())
        if before is None:
            step = 0.01 * float(filters.norm() / gradient.norm().clamp(min=1e-30))
        elif not found <= before[2] + 0.2 * abs(before[2]):
            # Too far: a part of the last step.
            (filters, gradient, found), step = before, 0.25 * step
        else:
            moved, change = filters - before[0], gradient - before[1]
            curvature = float(moved @ change)
            step = float(moved @ moved) / curvature if curvature > 0.0 else 2.0 * step
        before = filters, gradient, found
        filters = filters - step * gradient
