from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import smoe
from routed_conv_cases import Case, assert_near, make_problem
from smoe.ops import routed_conv2d
from smoe.options import PADDING_MODES, Order
from smoe_paper.baselines.layers import ConvGate


def compare_with_definition(case: Case, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Forward and every gradient against the loops in float64; returns the weight's gradient."""
    problem = make_problem(case, dtype, torch.device("cpu"))
    x, weight = (part.requires_grad_() for part in (problem.input, problem.weight))
    options = {"expert_channels": case.expert_channels, "stride": case.stride, "padding_mode": case.padding_mode}
    output = routed_conv2d(x, weight, problem.indices, **options)
    results = (output.detach(), *torch.autograd.grad(output, (x, weight), problem.error))
    for name, actual, expected in zip(("output", "input.grad", "weight.grad"), results, problem.truth, strict=True):
        assert_near(name, actual, expected)
    return results[2]


@pytest.mark.parametrize("padding_mode", PADDING_MODES)
@pytest.mark.parametrize("grid", [(1, 1), (2, 1)])
def test_kernel_larger_than_the_grid(grid, padding_mode):
    compare_with_definition(Case(2, 1, 3, 2, grid, (7, 5), padding_mode=padding_mode))


@pytest.mark.parametrize("per_sample", [False, True])
def test_expert_nobody_chose_gets_no_gradient(per_sample):
    case = Case(2, 1, 4, 2, (5, 4), expert_channels=2, usable=3, per_sample=per_sample)
    gradient = compare_with_definition(case)
    assert gradient[:6].abs().min() > 0
    assert gradient[6:].abs().max() == 0


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_shape_and_option(data):
    num_experts = data.draw(st.integers(1, 9), "X")
    odd = st.sampled_from([1, 3, 5])
    case = Case(
        data.draw(st.integers(1, 9), "B"),
        data.draw(st.integers(1, 9), "C"),
        num_experts,
        data.draw(st.integers(1, num_experts), "E"),
        (data.draw(st.integers(1, 5), "H"), data.draw(st.integers(1, 5), "W")),
        (data.draw(odd, "kh"), data.draw(odd, "kw")),
        data.draw(st.integers(1, 2), "F"),
        data.draw(st.integers(1, 3), "stride"),
        data.draw(st.sampled_from(PADDING_MODES), "padding_mode"),
        per_sample=data.draw(st.booleans(), "per_sample"),
    )
    compare_with_definition(case, data.draw(st.sampled_from([torch.float32, torch.float64]), "dtype"))


INPUT, WEIGHT, INDICES = torch.zeros(2, 3, 4, 5), torch.zeros(6, 3, 3, 3), torch.zeros(1, 1, 20, dtype=torch.int32)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((INPUT[0], WEIGHT, INDICES), {}, r"input must be \(B, C, H, W\), got shape \(3, 4, 5\)"),
        ((INPUT, WEIGHT[:, :2], INDICES), {}, r"input with 3 channels, got shape \(6, 2, 3, 3\)"),
        ((INPUT, WEIGHT[:, :, :2], INDICES), {}, r"odd sides to keep the grid, got \(2, 3\)"),
        ((INPUT, WEIGHT, INDICES), {"expert_channels": 4}, "6 filters cannot be shared out in experts of 4"),
        ((INPUT, WEIGHT, INDICES), {"stride": 0}, "stride must be at least 1, got 0"),
        ((INPUT, WEIGHT, INDICES), {"padding_mode": "reflect"}, "zeros, circular, longitude, got 'reflect'"),
        ((INPUT, WEIGHT, INDICES.short()), {}, "got torch.int16"),
        ((INPUT, WEIGHT, INDICES.expand(3, 1, 20)), {}, "for 3 samples but the input has 2"),
        ((INPUT, WEIGHT, INDICES), {"stride": 2}, r"has 20 pixels but the output grid is \(2, 3\)"),
        (
            (INPUT, WEIGHT, INDICES.unflatten(2, (4, 5))),
            {},
            r"with flat pixels, got torch.int32 of shape \(1, 1, 4, 5\)",
        ),
        ((INPUT.long(), WEIGHT, INDICES), {}, r"input must be floating, got torch.int64; convert it"),
        (
            (INPUT[:, :0], WEIGHT[:, :0], INDICES),
            {},
            r"at least one channel, pixel and filter, got shapes \(2, 0, 4, 5\)",
        ),
        ((INPUT[:, :, :0], WEIGHT, INDICES), {}, r"at least one channel, pixel and filter, got shapes \(2, 3, 0, 5\)"),
        ((INPUT, WEIGHT[:0], INDICES), {}, r"at least one channel, pixel and filter, .* and \(0, 3, 3, 3\)"),
        ((INPUT, WEIGHT, INDICES[:, :0]), {}, r"\(1 or B, E, P\) .*, got torch.int32 of shape \(1, 0, 20\)"),
        ((INPUT, WEIGHT, INDICES.to("meta")), {}, "must be on one device, got cpu, cpu and meta"),
        ((INPUT, WEIGHT.to("meta"), INDICES), {}, "must be on one device, got cpu, meta and cpu"),
        ((INPUT.to("meta"), WEIGHT, INDICES), {}, "must be on one device, got meta, cpu and cpu"),
        ((INPUT, WEIGHT, INDICES + 6), {}, r"in \[0, 5\] for 6 experts, got 6"),
        ((INPUT, WEIGHT, INDICES - 1), {}, r"in \[0, 5\] for 6 experts, got -1"),
        ((INPUT, WEIGHT, INDICES + 3), {"expert_channels": 2}, r"in \[0, 2\] for 3 experts, got 3"),
    ],
)
def test_wrong_arguments_are_refused_with_their_numbers(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        routed_conv2d(*arguments, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_operator_itself_takes_zero_sizes(dtype):
    """The kernels divide by some sizes: a zero must not reach them."""
    for channels, rows, selected in ((0, 4, 1), (3, 0, 1), (3, 4, 0)):
        x = torch.zeros(2, channels, rows, 5, dtype=dtype)
        weight = torch.zeros(6, channels, 3, 3, dtype=dtype)
        indices = torch.zeros(1, selected, rows * 5, dtype=torch.int32)
        output = torch.ops.smoe.routed_conv2d(x, weight, indices, 1, 1, "zeros", None)
        assert output.shape == (2, selected, rows, 5)
        assert not output.any()


@pytest.mark.parametrize("bad", [torch.zeros(1, 1, 20, dtype=torch.int64), torch.zeros(1, 1, 20, device="meta")])
def test_the_operator_itself_refuses_indices_that_the_kernels_would_misread(bad):
    with pytest.raises((ValueError, RuntimeError), match=r"indices|device"):
        torch.ops.smoe.routed_conv2d(INPUT, WEIGHT, bad, 1, 1, "zeros", None)


@pytest.mark.parametrize(
    ("dtype", "padding_mode", "per_sample"),
    [
        *[(torch.float32, "zeros", False), (torch.float32, "longitude", True)],
        *[(torch.float64, "circular", True), (torch.bfloat16, "zeros", False)],
    ],
)
def test_operators_are_well_defined_for_compilers_in_both_memory_formats(dtype, padding_mode, per_sample):
    indices = torch.rand(2 if per_sample else 1, 3, 20).topk(2, dim=1).indices.int()
    for memory_format in (torch.contiguous_format, torch.channels_last):
        x = torch.randn(2, 3, 4, 5, dtype=dtype).to(memory_format=memory_format)
        weight = torch.randn(6, 3, 3, 3, dtype=dtype).to(memory_format=memory_format)
        error = torch.randn(2, 4, 4, 5, dtype=dtype).to(memory_format=memory_format)
        options = (2, 1, padding_mode)
        forward, backward = torch.ops.smoe.routed_conv2d.default, torch.ops.smoe.routed_conv2d_backward.default
        # Gradients of half precision are compared in test_mixed_precision.
        needs = dtype != torch.bfloat16
        bias = torch.randn(6, dtype=dtype, requires_grad=needs) if per_sample else None
        torch.library.opcheck(forward, (x.requires_grad_(needs), weight.requires_grad_(needs), indices, *options, bias))
        for needed in ((True, True, True), (False, True, False), (True, False, False)):
            torch.library.opcheck(backward, (error, x.detach(), weight.detach(), indices, *options, *needed))
        result = forward(x.detach(), weight.detach(), indices, *options, None)
        fake = forward(x.detach().to("meta"), weight.detach().to("meta"), indices.to("meta"), *options, None)
        assert fake.shape == result.shape
        if dtype != torch.float32:
            assert result.is_contiguous(memory_format=memory_format)
            assert fake.stride() == result.stride()


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("padding_mode", PADDING_MODES)
def test_gradients_have_derivatives(padding_mode, samples):
    torch.manual_seed(0)
    x = torch.randn(2, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    indices = torch.rand(samples, 3, 4).argsort(dim=1)[:, :2].to(torch.int32)
    bias = torch.randn(6, dtype=torch.float64, requires_grad=True)
    options = {"expert_channels": 2, "stride": 2, "padding_mode": padding_mode}

    def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return routed_conv2d(x, weight, indices, bias=bias, **options).square()

    assert torch.autograd.gradcheck(function, (x, weight, bias))
    assert torch.autograd.gradgradcheck(function, (x, weight, bias))
    assert torch.autograd.gradgradcheck(lambda bias: function(x.detach(), weight.detach(), bias), (bias,))


@pytest.mark.parametrize("stride", [6, 2**40])
def test_a_stride_beyond_the_grid_has_one_output(stride):
    x, weight, indices = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 3, 3), torch.arange(2)[None, :, None]
    expected = torch.nn.functional.conv2d(x, weight, stride=stride, padding=1)
    torch.testing.assert_close(routed_conv2d(x, weight, indices, stride=stride), expected)


def make(B: int = 3, C: int = 4, X: int = 6, E: int = 2, H: int = 5, W: int = 7):
    indices = torch.rand(1, X, H * W).topk(E, dim=1).indices.int()
    return torch.randn(B, C, H, W), torch.randn(X, C, 3, 3), indices


def test_channels_last_and_slices_are_taken() -> None:
    input, weight, indices = make()
    expected = routed_conv2d(input, weight, indices)
    assert torch.equal(routed_conv2d(input.to(memory_format=torch.channels_last), weight, indices), expected)
    wide = torch.randn(3, 8, 5, 7)
    wide[:, ::2] = input
    assert torch.equal(routed_conv2d(wide[:, ::2], weight, indices), expected)


def test_an_empty_batch_has_an_empty_output() -> None:
    input, weight, indices = make(B=0)
    input.requires_grad_()
    weight.requires_grad_()
    output = routed_conv2d(input, weight, indices)
    assert output.shape == (0, 2, 5, 7)
    output.sum().backward()
    assert weight.grad is not None and not weight.grad.any()


def test_bad_routings_are_refused_with_their_place() -> None:
    input, weight, indices = make()
    outside = indices.clone()
    outside[0, 1, 2 * 7 + 3] = 6
    with pytest.raises(ValueError, match=r"indices must be in \[0, 5\] .* got 6 at slot 1, row 2, column 3"):
        routed_conv2d(input, weight, outside)
    outside[0, 1, 2 * 7 + 3] = -1
    with pytest.raises(ValueError, match=r"got -1 at slot 1, row 2, column 3"):
        routed_conv2d(input, weight, outside)
    repeated = indices.clone()
    repeated[0, 1, 34] = repeated[0, 0, 34]
    with pytest.raises(ValueError, match=r"comes again at slot 1, row 4, column 6"):
        routed_conv2d(input, weight, repeated)
    batched = indices.expand(3, -1, -1).clone()
    batched[2, 1, 0] = batched[2, 0, 0]
    with pytest.raises(ValueError, match=r"comes again at sample 2, slot 1, row 0, column 0"):
        routed_conv2d(input, weight, batched)
    for bad in (outside, repeated, batched):
        with pytest.raises(ValueError, match=r"got -1 at slot 1, row 2|comes again at"):
            routed_conv2d(input, weight, bad.long())
    with pytest.raises(ValueError, match="indices must be int32 or int64"):
        routed_conv2d(input, weight, indices.short())


def test_a_nan_in_a_compiled_or_exported_layer_is_refused() -> None:
    """The check is in the operator: a compiled layer neither reads outside memory nor gives a finite output."""
    input = torch.randn(2, 2, 6, 6)
    broken = input.clone()
    broken[1, 0, 3, 3] = torch.nan
    cases: list[tuple[Order, int]] = [("score", 1), ("score", 3), ("families", 2)]
    for order, num_selected in cases:
        gate = ConvGate(2, 6, num_selected, order=order)
        layer = smoe.SpatialMoE2d.from_experts(2, 6, num_selected, gate=gate).eval()
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        exported = torch.export.export(layer, (input,)).module()
        for function in (layer, compiled, exported):
            torch.testing.assert_close(function(input), layer(input))
            with pytest.raises(ValueError, match="gate scores are not finite, the first, nan, for expert"):
                function(broken)
