from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from definitions import define_routing
from smoe.ops import ErrorSignal, Routing, top_experts, train_routing
from smoe.rules import Damping, RoutingClassification

RULE = RoutingClassification(error_quantile=0.3)
DAMPING = Damping(factor=0.0, error_quantile=0.3)


def make_routing(scores: torch.Tensor, num_selected: int) -> Routing:
    return Routing(top_experts(scores, num_selected), scores)


def run(
    scores: torch.Tensor,
    num_selected: int,
    error: torch.Tensor,
    rule: RoutingClassification | None = RULE,
    damping: Damping | None = DAMPING,
    *,
    expert_channels: int = 1,
    loss_scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Error into the experts, the gate's gradient and the count of non-finite errors, for a given error signal."""
    selected = torch.randn_like(error).requires_grad_()
    leaf = scores.detach().clone().requires_grad_()
    signal = ErrorSignal()
    signal.set_loss_scale(loss_scale)
    output = train_routing(
        selected,
        make_routing(leaf, num_selected),
        expert_channels=expert_channels,
        signal=signal,
        rule=rule,
        damping=damping,
    )
    assert torch.equal(output, selected)
    into_experts, gradient = torch.autograd.grad(
        output, (selected, leaf), error, allow_unused=True, materialize_grads=True
    )
    return into_experts, gradient, int(signal.num_nonfinite)


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize(
    ("error_quantile", "expert_channels", "num_selected"),
    # Four of five: the label of the only other expert would be above 1.
    [(0.0, 1, 2), (0.3, 2, 4), (0.7, 2, 2), (0.7, 1, 4), (1.0, 1, 2)],
)
def test_any_error_signal(error_quantile, expert_channels, num_selected, per_sample):
    torch.manual_seed(0)
    scores = torch.randn(2 if per_sample else 1, 5, 12, dtype=torch.float64)
    error = torch.randn(2, num_selected * expert_channels, 3, 4, dtype=torch.float64)
    rule = RoutingClassification(error_quantile=error_quantile, tolerance=1.0)
    damping = Damping(factor=0.25, error_quantile=error_quantile, tolerance=5.0)
    into_experts, gradient, _ = run(scores, num_selected, error, rule, damping, expert_channels=expert_channels)
    definition = define_routing(
        error.flatten(2),
        top_experts(scores, num_selected).expand(2, -1, -1),
        5,
        expert_channels,
        error_quantile=error_quantile,
        damping=0.25,
        tolerance=1.0,
        damping_tolerance=5.0,
    )
    torch.testing.assert_close(into_experts.flatten(2), definition.damped)
    expected = (scores.sigmoid() - definition.labels) / definition.labels.numel()
    torch.testing.assert_close(gradient, expected if per_sample else expected.sum(dim=0, keepdim=True))
    # Without a rule the gate receives nothing and the experts the same; without damping the reverse.
    undamped, same_gradient, _ = run(scores, num_selected, error, rule, None, expert_channels=expert_channels)
    assert torch.equal(undamped, error)
    assert torch.equal(same_gradient, gradient)
    only_damped, no_gradient, _ = run(scores, num_selected, error, None, damping, expert_channels=expert_channels)
    assert torch.equal(only_damped, into_experts)
    assert not no_gradient.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("num_selected", "factor", "value"), [(1, None, torch.nan), (2, 0.0, torch.inf), (1, 0.1, -torch.inf)]
)
def test_an_error_that_is_not_finite_moves_no_gate_and_is_counted(dtype, num_selected, factor, value):
    scores, error = torch.randn(1, 3, 16, dtype=dtype), torch.randn(2, num_selected, 4, 4, dtype=dtype)
    error[1, 0, 2, 3] = value
    damping = None if factor is None else Damping(factor=factor, error_quantile=0.3)
    into_experts, gradient, count = run(scores, num_selected, error, RULE, damping)
    assert gradient.abs().max() == 0
    assert count == 1
    # The experts' optimizer, or a loss scaler, has to see it too.
    assert not into_experts.isfinite().all()


@pytest.mark.parametrize("factor", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_memory_format_of_the_error_is_kept_and_does_not_matter(dtype, factor):
    scores, error = torch.randn(1, 5, 16, dtype=dtype), torch.randn(2, 4, 4, 4, dtype=dtype)
    damping = Damping(factor=factor, error_quantile=0.3)
    plain = run(scores, 2, error, RULE, damping, expert_channels=2)
    last = error.contiguous(memory_format=torch.channels_last)
    other = run(scores, 2, last, RULE, damping, expert_channels=2)
    assert torch.equal(plain[0], other[0])
    assert torch.equal(plain[1], other[1])
    assert other[0].is_contiguous(memory_format=torch.channels_last)


def test_two_thresholds_and_another_device_are_refused():
    selected, routing = torch.randn(2, 1, 9), make_routing(torch.randn(1, 3, 9), 1)
    with pytest.raises(ValueError, match="one threshold serves rule and damping"):
        train_routing(
            selected, routing, expert_channels=1, signal=ErrorSignal(), rule=RULE, damping=Damping(error_quantile=0.5)
        )
    with pytest.raises(ValueError, match="error signal is on meta but the experts' output on cpu; move the layer"):
        train_routing(selected, routing, expert_channels=1, signal=ErrorSignal("meta"), rule=RULE)


class _LargestTensor(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel())
        return result


@pytest.mark.parametrize(("rule", "factor"), [(RULE, None), (RULE, 0.1), (None, 0.0)])
def test_shared_scores_are_never_repeated_over_the_batch(rule, factor):
    B, X, E, P = 6, 8, 2, 35
    selected = torch.randn(B, E, P, requires_grad=True)
    scores = torch.randn(1, X, P, requires_grad=True)
    damping = None if factor is None else Damping(factor=factor, error_quantile=0.3)
    with _LargestTensor() as largest:
        output = train_routing(
            selected, make_routing(scores, E), expert_channels=1, signal=ErrorSignal(), rule=rule, damping=damping
        )
        output.pow(2).mean().backward()
    assert (scores.grad is not None) == (rule is not None)
    # Views of the batch are counted as well. Only the error, its mask and the scores themselves are needed.
    assert largest.numel == max(B * E * P, X * P) < B * X * P


OPERATOR_OPTIONS = [
    (1, True, 1.0, 0.3, 0.0, 1e-5, 1e-3),
    (2, True, 0.5, 0.3, 0.1, 1e-5, 1e-3),
    (1, True, 1.0, 0.3, None, 1e-5, 1e-3),
    (2, False, 1.0, 0.3, None, 1e-5, 1e-3),
    (2, False, 1.0, 0.3, 0.0, 1e-5, 1e-3),
]


@pytest.mark.parametrize(
    ("layout", "options"),
    [*zip(["contiguous", "channels_last", "expanded", "contiguous", "channels_last"], OPERATOR_OPTIONS, strict=True)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_operator_is_well_defined_for_compilers(dtype, layout, options):
    expert_channels = options[0]
    error = torch.randn(2, 2 * expert_channels, 3, 4, dtype=dtype)
    if layout == "channels_last":
        error = error.contiguous(memory_format=torch.channels_last)
    elif layout == "expanded":
        # The gradient of a sum.
        error = torch.ones((), dtype=dtype).expand_as(error)
    scores = torch.randn(1, 4, 12, dtype=dtype)
    indices = top_experts(scores, 2)
    unit = None if options[1] else torch.ones((), dtype=torch.float64)
    scale, count = torch.ones((), dtype=torch.float64), torch.zeros((), dtype=torch.int64)
    torch.library.opcheck(
        torch.ops.smoe.train_routing_backward.default, (error.flatten(2), scores, indices, unit, scale, count, *options)
    )


def test_the_operator_itself_refuses_indices_that_the_kernel_would_misread():
    scale, count = torch.ones((), dtype=torch.float64), torch.zeros((), dtype=torch.int64)
    tensors = (torch.zeros(2, 1, 9), torch.zeros(1, 3, 9), torch.zeros(1, 1, 9, dtype=torch.int64), None, scale, count)
    with pytest.raises(ValueError, match=r"needs int32 indices on cpu, got torch\.int64"):
        torch.ops.smoe.train_routing_backward(*tensors, *OPERATOR_OPTIONS[0])
