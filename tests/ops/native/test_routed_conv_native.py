"""The operator as users call it, against the readable definition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import smoe
from routed_conv_cases import reference_routed_conv2d
from smoe.ops import routed_conv2d
from smoe.ops._conv_kernels import output_grid
from smoe.ops._operators import native_library
from smoe.options import PADDING_MODES, Order, PaddingMode
from smoe_paper.baselines.gates import ConvGate

if native_library() is None:
    pytest.skip("the kernels are not built here; python -m smoe.ops.backends says why", allow_module_level=True)


def compare_with_definition(
    B: int, C: int, X: int, E: int, F: int, H: int, W: int, kernel: int, stride: int, mode: PaddingMode, batched: bool
) -> None:
    torch.manual_seed(B + 10 * C + 100 * X)
    grid = output_grid(H, W, stride)
    indices = torch.rand(B if batched else 1, X, grid[0] * grid[1]).topk(E, dim=1).indices.int()
    tensors = [torch.randn(B, C, H, W), torch.randn(X * F, C, kernel, kernel)]
    options = {"expert_channels": F, "stride": stride, "padding_mode": mode}
    error = torch.randn(B, E * F, *grid)
    results = []
    for function, dtype in ((routed_conv2d, torch.float32), (reference_routed_conv2d, torch.float64)):
        input, weight = (tensor.detach().to(dtype, copy=True).requires_grad_() for tensor in tensors)
        output = function(input, weight, indices, **options)  # type: ignore[arg-type]
        output.backward(error.to(dtype))
        results.append((output.detach(), input.grad, weight.grad))
    for name, ours, theirs in zip(("output", "input.grad", "weight.grad"), *results, strict=True):
        assert ours is not None and theirs is not None
        scale = float(theirs.abs().max().clamp_min(1e-30))
        assert float((ours.double() - theirs).abs().max()) <= 1e-5 * scale, name


shapes = st.fixed_dictionaries(
    {
        "B": st.integers(1, 9),
        "C": st.integers(1, 9),
        "E": st.integers(1, 5),
        "more_experts": st.integers(0, 4),
        "F": st.integers(1, 2),
        "H": st.integers(1, 4),
        "W": st.integers(1, 5),
        "kernel": st.sampled_from([1, 3, 5]),
        "stride": st.sampled_from([1, 2]),
        "mode": st.sampled_from(PADDING_MODES),
        "batched": st.booleans(),
    }
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(shapes)
def test_equals_the_definition(shape) -> None:
    compare_with_definition(X=shape["E"] + shape.pop("more_experts"), **shape)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(shapes)
def test_equals_the_definition_a_thousand_times(shape) -> None:
    compare_with_definition(X=shape["E"] + shape.pop("more_experts"), **shape)


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


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_go_to_the_dense_backend(dtype: torch.dtype) -> None:
    input, weight, indices = make()
    output = routed_conv2d(input.to(dtype), weight.to(dtype), indices)
    assert output.dtype == dtype
    torch.testing.assert_close(output.float(), routed_conv2d(input, weight, indices), rtol=0.05, atol=0.3)


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


@pytest.mark.parametrize("expert_channels", [1, 3])
@pytest.mark.parametrize("batched", [False, True])
def test_a_routing_in_int64_is_the_same(batched: bool, expert_channels: int) -> None:
    input, weight, _ = make()
    indices = torch.rand(1, 6 // expert_channels, 35).topk(2, dim=1).indices
    if batched:
        indices = indices.expand(3, -1, -1)
    results = []
    for routing in (indices, indices.int()):
        leaves = (input.clone().requires_grad_(), weight.clone().requires_grad_())
        output = routed_conv2d(*leaves, routing, expert_channels=expert_channels, check_indices=False)
        output.square().sum().backward()
        results.append([output, *(leaf.grad for leaf in leaves)])
    for one, other in zip(*results, strict=True):
        assert one is not None and other is not None and torch.equal(one, other)


@pytest.mark.parametrize("batched", [False, True])
def test_opcheck(batched: bool) -> None:
    input, weight, indices = make()
    if batched:
        indices = indices.expand(3, -1, -1).contiguous()
    for needs in ((True, True), (False, True)):
        arguments = (input.requires_grad_(needs[0]), weight.requires_grad_(needs[1]), indices, 1, 1, "zeros")
        torch.library.opcheck(torch.ops.smoe.routed_conv2d.default, arguments)
    torch.library.opcheck(
        torch.ops.smoe.routed_conv2d_backward.default,
        (torch.randn(3, 2, 5, 7), input.detach(), weight.detach(), indices, 1, 1, "zeros", True, False),
    )


def test_compiles_in_one_graph_forward_and_backward() -> None:
    input, weight, indices = make(C=8, E=4)
    compiled = torch.compile(routed_conv2d, fullgraph=True, backend="aot_eager")
    results = []
    for function in (routed_conv2d, compiled):
        x, w = input.clone().requires_grad_(), weight.clone().requires_grad_()
        output = function(x, w, indices)
        output.square().sum().backward()
        results.append((output, x.grad, w.grad))
    for ours, theirs in zip(*results, strict=True):
        assert ours is not None and theirs is not None and torch.equal(ours, theirs)


def test_exports_with_a_dynamic_batch() -> None:
    layer = smoe.SpatialMoE2d.from_experts(2, 4, 2, spatial_shape=(5, 6)).eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(layer, (torch.randn(3, 2, 5, 6),), dynamic_shapes=({0: batch},))
    assert "smoe.routed_conv2d" in str(program.graph)
    for size in (1, 3, 17):
        input = torch.randn(size, 2, 5, 6)
        assert torch.equal(program.module()(input), layer(input))


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


def test_threads_follow_torch() -> None:
    input, weight, indices = make(B=16, C=16, X=8, E=4, H=9, W=11)
    before = torch.get_num_threads()
    try:
        outputs = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            outputs.append(routed_conv2d(input, weight, indices))
        assert torch.equal(*outputs)
    finally:
        torch.set_num_threads(before)
