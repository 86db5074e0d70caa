"""Which implementation runs: the dispatcher, SMOE_BACKEND=dense, and what compilers and exporters see."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
import torch

from smoe.ops._operators import BACKEND_VARIABLE, INSTRUCTION_SETS, _library_file, _open

DENSE = """
import torch, smoe
import smoe.ops._operators as library
from smoe_paper.baselines.layers import ConvGate
assert library.native_library() is None

torch.manual_seed(0)
x, target = torch.randn(3, 2, 6, 5), torch.randn(3, 4, 6, 5)


def names(graph):
    return [str(node.target) for node in graph.nodes if node.op == "call_function"]


gates = (smoe.TensorGate(6, 2, (6, 5), 2), ConvGate(2, 6, 2, order="families"))
for gate in gates:
    rule = smoe.rules.RoutingClassification(error_quantile=0.3, damping=smoe.rules.Damping(error_quantile=0.3))
    layer = smoe.SpatialMoE2d.from_experts(2, 6, 2, gate=gate, expert_channels=2, rule=rule)
    program = torch.export.export(layer.eval(), (x,))
    assert any("convolution" in name or "conv2d" in name for name in names(program.graph)), names(program.graph)
    assert not any("smoe" in name for name in names(program.graph)), names(program.graph)
    torch.testing.assert_close(program.module()(x), layer(x))

    graphs = []

    def keep(module, inputs):
        graphs.append(module.graph)
        return module

    from torch._dynamo.backends.common import aot_autograd
    from functorch.compile import make_boxed_func

    backend = aot_autograd(fw_compiler=lambda m, i: make_boxed_func(keep(m, i)))
    layer.train()
    results = []
    for function in (layer, torch.compile(layer, backend=backend, fullgraph=True)):
        layer.zero_grad()
        output = function(x)
        torch.nn.functional.mse_loss(output, target).backward()
        results.append([output.detach(), *(p.grad.clone() for p in layer.parameters())])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)
    assert len(graphs) == 2, len(graphs)
    assert not any("smoe" in name for graph in graphs for name in names(graph))

    # A NaN is refused in eager mode; a compiled layer has plain torch operations only, which cannot raise: it ranks
    # last, and the output is NaN there, so that it is seen where the loss is read.
    broken = x.clone()
    broken[1, 0, 3, 3] = torch.nan
    if gate.looks_at_input:
        try:
            layer.eval()(broken)
            raise SystemExit("a NaN was not refused")
        except ValueError as error:
            assert "not finite" in str(error)
        for function in (torch.compile(layer, backend="aot_eager"), program.module()):
            output = function(broken)
            assert output.shape == (3, 4, 6, 5) and output[1, :, 3, 3].isnan().all() and output[0].isfinite().all()
    else:
        with torch.no_grad():
            gate.scores[3, 2, 1] = torch.nan
        layer.train().zero_grad()
        output = torch.compile(layer, backend="aot_eager")(x)
        assert output.isnan().sum() == output[:, :, 2, 1].isnan().sum() == 3 * 4
        output.sum().backward()
        assert layer._signal.num_nonfinite == 0
        output = torch.compile(layer, backend="aot_eager")(x)
        (output * output).mean().backward()
        assert layer._signal.num_nonfinite == 1
        with torch.no_grad():
            gate.scores[3, 2, 1] = 0.0
torch.save(layer(x).detach(), __import__("sys").argv[1])
"""


def test_dense_only_gives_compilers_and_exporters_plain_torch_operations(tmp_path):
    file = tmp_path / "output.pt"
    environment = {**os.environ, BACKEND_VARIABLE: "dense", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", DENSE, str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert torch.load(file).isfinite().all()


def test_kernels_of_other_sources_are_refused(tmp_path):
    """They would crash: arguments change with the sources. Without sources beside it, as in a wheel, none is asked."""
    built = next((file for name in INSTRUCTION_SETS if (file := _library_file(name)).is_file()), None)
    if built is None:
        pytest.skip("no kernels")
    shutil.copy(built, tmp_path / built.name)
    assert not isinstance(_open(tmp_path / built.name), str)
    _open.cache_clear()
    shutil.copytree(built.parent / "csrc", tmp_path / "csrc")
    assert not isinstance(_open(tmp_path / built.name), str)
    _open.cache_clear()
    (tmp_path / "csrc" / "vector.h").write_text("// another\n")
    with pytest.raises(RuntimeError, match=r"was built from other sources .* build it again"):
        _open(tmp_path / built.name)
