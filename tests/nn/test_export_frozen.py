"""Frozen networks in other forms: exported, with plain operators, compiled ahead of time, as ONNX."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnxruntime
import pytest
import torch
from torch import nn

import smoe
from geometries import NETWORKS, make_network

pytestmark = [
    # The tracer of torch 2.13 instantiates autograd functions, and its inductor imports scripted methods.
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),
    # A program is copied with what torch itself no longer likes to construct.
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec:FutureWarning"),
]


def export(name: str, *, is_plain: bool) -> tuple[nn.Module, torch.Tensor, torch.export.ExportedProgram]:
    """A frozen network, an input, and its program."""
    network, input = make_network(name)
    frozen = smoe.freeze(network)
    program = torch.export.export(frozen, (input,))
    return frozen, input, program.run_decompositions(smoe.ops.plain_operators()) if is_plain else program


@pytest.mark.parametrize("is_plain", [False, True], ids=["operators", "plain"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_program_computes_the_same_for_any_number_of_samples(name: str, is_plain: bool) -> None:
    network, input = make_network(name)
    frozen = smoe.freeze(network)
    example = torch.randn(3, *input.shape[1:])
    # The lower bound: a program for one sample or more; torch.export takes 0 and 1 for special otherwise.
    program = torch.export.export(frozen, (example,), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
    if is_plain:
        program = program.run_decompositions(smoe.ops.plain_operators())
    for num_samples in (1, 5, 20):
        samples = torch.randn(num_samples, *input.shape[1:])
        torch.testing.assert_close(program.module()(samples), frozen(samples), rtol=1e-4, atol=1e-5)
    operators = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    has_own = any(operator.startswith("smoe") for operator in operators)
    assert has_own == (not is_plain and name != "any experts")
    # Nothing is ranked.
    assert not any("experts" in operator or "topk" in operator or "sort" in operator for operator in operators)


def test_the_training_form_is_plain_too() -> None:
    layer = smoe.SpatialMoE2d.from_experts(3, 6, 2, spatial_shape=(5, 9)).eval()
    input = torch.randn(1, 3, 5, 9)
    program = torch.export.export(layer, (input,)).run_decompositions(smoe.ops.plain_operators())
    assert not any("smoe" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(input), layer(input), rtol=1e-4, atol=1e-5)


@pytest.mark.slow  # some twenty seconds each, most of them in the C++ compiler
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler")
@pytest.mark.parametrize("is_plain", [False, True], ids=["operators", "plain"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_package_compiled_ahead_of_time_computes_the_same(name: str, is_plain: bool, tmp_path: Path) -> None:
    frozen, input, program = export(name, is_plain=is_plain)
    with torch.no_grad():
        path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
    torch.testing.assert_close(torch._inductor.aoti_load_package(path)(input), frozen(input), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("unequal families", "sphere", "graph") else pytest.param(name, marks=pytest.mark.slow)
        for name in NETWORKS
    ],
)
def test_onnx_computes_the_same(name: str, tmp_path: Path) -> None:
    frozen, input, program = export(name, is_plain=True)
    exported = torch.onnx.export(program, (), dynamo=True, verbose=False)
    assert exported is not None
    exported.save(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: input.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), frozen(input), rtol=1e-4, atol=1e-5)
