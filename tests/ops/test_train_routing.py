from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from definitions import define_routing
from smoe.ops import RoutingTraining, top_experts, train_routing


def run(
    scores: torch.Tensor,
    num_selected: int,
    error: torch.Tensor,
    training: RoutingTraining,
    *,
    expert_channels: int = 1,
    loss_scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Error into the experts, the gate's gradient and the count of non-finite errors, for a given error signal."""
    selected = torch.randn_like(error).requires_grad_()
    leaf = scores.detach().clone().requires_grad_()
    count = torch.zeros((), dtype=torch.int64)
    output = train_routing(
        selected,
        leaf,
        top_experts(leaf, num_selected).indices,
        None,
        expert_channels=expert_channels,
        training=training,
        loss_scale=torch.tensor(loss_scale, dtype=torch.float64),
        num_nonfinite=count,
    )
    assert torch.equal(output, selected)
    into_experts, gradient = torch.autograd.grad(output, (selected, leaf), error)
    return into_experts, gradient, int(count)


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("expert_channels", [1, 2])
@pytest.mark.parametrize("error_quantile", [0.0, 0.3, 0.7, 1.0])
def test_any_error_signal(error_quantile, expert_channels, per_sample):
    torch.manual_seed(0)
    scores = torch.randn(*((2,) if per_sample else ()), 5, 3, 4, dtype=torch.float64)
    error = torch.randn(2, 2 * expert_channels, 3, 4, dtype=torch.float64)
    training = RoutingTraining(error_quantile=error_quantile, damping=0.25, tolerance=1.0, damping_tolerance=5.0)
    into_experts, gradient, _ = run(scores, 2, error, training, expert_channels=expert_channels)
    indices = top_experts(scores, 2).indices.expand(2, 2, 3, 4)
    definition = define_routing(
        error,
        indices,
        5,
        expert_channels,
        error_quantile=error_quantile,
        damping=0.25,
        tolerance=1.0,
        damping_tolerance=5.0,
    )
    torch.testing.assert_close(into_experts, definition.damped)
    expected = (scores.sigmoid() - definition.labels) / definition.labels.numel()
    torch.testing.assert_close(gradient, expected if per_sample else expected.sum(dim=0))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("rule", ["rc", "end_to_end"])
@pytest.mark.parametrize("damping", [None, 0.0, 0.1])
@pytest.mark.parametrize("num_selected", [1, 3])
def test_an_error_that_is_not_finite_moves_no_gate_and_is_counted(num_selected, damping, rule, value):
    scores, error = torch.randn(3, 4, 4), torch.randn(2, num_selected, 4, 4)
    error[1, 0, 2, 3] = value
    into_experts, gradient, count = run(
        scores, num_selected, error, RoutingTraining(training_rule=rule, damping=damping)
    )
    assert gradient.abs().max() == 0
    assert count == 1
    # The experts' optimizer, or a loss scaler, has to see it too.
    assert not into_experts.isfinite().all()


def test_finite_errors_are_not_counted():
    assert run(torch.randn(3, 4, 4), 1, torch.randn(2, 1, 4, 4), RoutingTraining())[2] == 0


@pytest.mark.parametrize("scale", [0.5, 65536.0])
def test_gate_gradient_is_multiplied_by_the_loss_scale(scale):
    scores, error = torch.randn(3, 4, 4), torch.randn(2, 1, 4, 4)
    plain = run(scores, 1, error, RoutingTraining())
    scaled = run(scores, 1, error * scale, RoutingTraining(), loss_scale=scale)
    torch.testing.assert_close(scaled[0], plain[0] * scale)
    torch.testing.assert_close(scaled[1], plain[1] * scale)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_memory_format_of_the_error_does_not_matter(memory_format):
    scores, error = torch.randn(5, 4, 4), torch.randn(2, 4, 4, 4)
    plain = run(scores, 2, error, RoutingTraining(damping=0.1), expert_channels=2)
    other = run(
        scores, 2, error.contiguous(memory_format=memory_format), RoutingTraining(damping=0.1), expert_channels=2
    )
    assert torch.equal(plain[0], other[0])
    assert torch.equal(plain[1], other[1])


def test_empty_batch_trains_nothing():
    _, gradient, count = run(torch.randn(3, 4, 4), 1, torch.randn(0, 1, 4, 4), RoutingTraining())
    assert gradient.abs().max() == 0
    assert count == 0


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


@pytest.mark.parametrize("damping", [None, 0.0, 0.1])
@pytest.mark.parametrize("rule", ["rc", "end_to_end"])
def test_shared_scores_are_never_repeated_over_the_batch(rule, damping):
    B, X, E, H, W = 6, 8, 2, 5, 7
    selected = torch.randn(B, E, H, W, requires_grad=True)
    scores = torch.randn(X, H, W, requires_grad=True)
    with _LargestTensor() as largest:
        output = train_routing(
            selected,
            scores,
            top_experts(scores, E).indices,
            None,
            expert_channels=1,
            training=RoutingTraining(training_rule=rule, damping=damping),
            loss_scale=torch.ones((), dtype=torch.float64),
            num_nonfinite=torch.zeros((), dtype=torch.int64),
        )
        output.pow(2).mean().backward()
    assert scores.grad is not None
    # Views of the batch are counted as well. Only the error, its mask and the scores themselves are needed.
    assert largest.numel == max(B * E * H * W, X * H * W) < B * X * H * W


OPERATOR_OPTIONS = [
    (1, True, 1.0, 0.3, 0.0, 1e-5, 1e-3),
    (2, True, 0.5, 0.3, 0.1, 1e-5, 1e-3),
    (1, True, 1.0, 0.3, None, 1e-5, 1e-3),
    (2, False, 1.0, 0.3, None, 1e-5, 1e-3),
    (2, False, 1.0, 0.3, 0.0, 1e-5, 1e-3),
]


@pytest.mark.parametrize("options", OPERATOR_OPTIONS)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "expanded"])
def test_operator_is_well_defined_for_compilers(layout, options):
    expert_channels = options[0]
    error = torch.randn(2, 2 * expert_channels, 3, 4)
    if layout == "channels_last":
        error = error.contiguous(memory_format=torch.channels_last)
    elif layout == "expanded":
        # The gradient of a sum.
        error = torch.ones(()).expand_as(error)
    scores = torch.randn(4, 3, 4)
    indices = top_experts(scores, 2).indices
    outputs = torch.randn(2, 2 * expert_channels, 3, 4) if not options[1] else None
    scale, count = torch.ones((), dtype=torch.float64), torch.zeros((), dtype=torch.int64)
    torch.library.opcheck(
        torch.ops.smoe.train_routing_backward.default, (error, scores, indices, outputs, scale, count, *options)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"error_quantile": 1.5}, r"error_quantile must be in \[0, 1\], got 1.5"),
        ({"error_quantile": -0.1}, r"error_quantile must be in \[0, 1\], got -0.1"),
        ({"damping": 2.0}, r"damping must be in \[0, 1\], or None to leave the error whole, got 2.0"),
        ({"damping": float("nan")}, "damping must be in .* got nan"),
        ({"rc_weight": -1.0}, "rc_weight must not be negative, got -1.0"),
        ({"tolerance": -1e-5}, "tolerance must not be negative, got -1e-05"),
        ({"damping_tolerance": float("nan")}, "damping_tolerance must not be negative, got nan"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        RoutingTraining(**options)
