"""Nothing in a compiled training step keeps torch.compile(mode="reduce-overhead") from capturing CUDA graphs.

Without a GPU, the step is compiled on the meta device up to the graphs of its forward and backward passes, and the
checks that the compiler makes before a capture, whose messages it reports as skipped, are run on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._guards import TracingContext
from torch._inductor.cudagraph_utils import (
    PlaceholderInfo,
    check_for_mutation,
    check_multiple_devices_or_any_cpu_nodes,
    get_placeholder_info,
)
from torch._inductor.utils import count_tangents

import smoe
from smoe.rules import Damping, RoutingClassification

pytestmark = [
    # The tracer of torch 2.13 instantiates autograd functions, and its inductor imports scripted methods.
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),
]

GRID = (6, 7)
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "straight_through": {"rule": "straight_through", "order": "families", "damping": 0.1},
    "rc": {"rule": "rc"},
    "rc_released": {"rule": RoutingClassification.released()},
    "rc_output_unit": {"rule": RoutingClassification(tolerance_unit="output"), "damping": Damping(0.1, 0.3)},
    "end_to_end": {"rule": "end_to_end", "weighted": True},
    "frozen": {"rule": "frozen", "damping": 0.1},
}


@dataclass(frozen=True)
class Captured:
    """A compiled graph as `check_for_mutation` takes it."""

    placeholders: Sequence[PlaceholderInfo]
    mutated_input_idxs: Sequence[int]
    static_input_idxs: Sequence[int]


def written_arguments(node: fx.Node) -> list[fx.Node]:
    """Arguments that an operation changes in place."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    arguments = zip(node.target._schema.arguments, node.args, strict=False)
    return [
        value
        for argument, value in arguments
        if isinstance(value, fx.Node) and argument.alias_info is not None and argument.alias_info.is_write
    ]


def skip_reasons(module: fx.GraphModule, inputs: Sequence[Any], static: Sequence[int]) -> list[str]:
    """Why the compiler would not capture a graph; tensors of the meta device count as those of a GPU."""
    nodes = list(module.graph.nodes)
    places = [node for node in nodes if node.op == "placeholder"]
    reasons = [f"input {number} is {value!r}" for number, value in enumerate(inputs) if not torch.is_tensor(value)]
    devices = {
        torch.device("cuda") if node.meta["val"].is_meta else node.meta["val"].device: node
        for node in nodes
        if torch.is_tensor(node.meta.get("val"))
    }
    reasons.append(check_multiple_devices_or_any_cpu_nodes(devices) or "")
    mutated = [places.index(value) for node in nodes for value in written_arguments(node) if value in places]
    captured = Captured(get_placeholder_info(module.graph), mutated, static)
    reasons.append(check_for_mutation(captured, list(inputs), lambda _: False) or "")  # type: ignore[arg-type]
    return [reason for reason in reasons if reason]


def compile_step(net: nn.Module, call: Callable[..., torch.Tensor], *batch: torch.Tensor) -> dict[str, list[str]]:
    """Trains two steps with `call` compiled as one graph; returns the reasons of each compiled graph."""
    found: dict[str, list[str]] = {}

    def forward(module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        metadata = TracingContext.get().fw_metadata
        assert metadata is not None
        found[f"forward {len(found)}"] = skip_reasons(module, inputs, metadata.static_input_indices)
        return make_boxed_func(module.forward)

    def backward(module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        # What the forward pass saved stays where it is; only the incoming gradients do not.
        found[f"backward {len(found)}"] = skip_reasons(module, inputs, range(count_tangents(module)))
        return make_boxed_func(module.forward)

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=forward, bw_compiler=backward, keep_inference_input_mutations=True)
    compiled = torch.compile(call, backend=backend, fullgraph=True)
    for _ in range(2):
        smoe.nn.track_loss_scale(F.mse_loss(compiled(batch[0]), batch[1]), net).mul(16.0).backward()
    torch._dynamo.reset()
    return found


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_skipped(name: str) -> None:
    with torch.device("meta"):
        layer = smoe.SpatialMoE2d.from_experts(3, 6, 4, spatial_shape=GRID, **CASES[name])
        batch = torch.empty(2, 3, *GRID), torch.empty(2, 4, *GRID)
    if layer._input_mean is not None:  # set by the first pass of all
        layer._input_mean.counters["is_set"] = 1
    found = compile_step(layer, layer, *batch)
    # One graph of each direction: nothing is compiled again in the second step.
    assert found == {"forward 0": [], "backward 1": []}
