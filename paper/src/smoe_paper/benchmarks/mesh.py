"""Layers on graphs, in volumes and on spheres beside the plain layer of the geometry with as many outputs (= 1.0)."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from smoe.ops._gather import gather_experts
from smoe_paper.benchmarks.memory import OWN_MAPPINGS, reset_peak, status
from smoe_paper.benchmarks.timing import circumstances, interleaved_medians, origin, write_table

COLUMNS = (
    *("configuration", "plain layer", "plain fwd ms", "ours fwd", "plain fwd+bwd ms", "ours fwd+bwd", "dense fwd+bwd"),
    *("with its gate learning", "plain peak MB", "ours peak"),
)
Call = Callable[[], Tensor]


@dataclass(frozen=True)
class Configuration:
    """A layer and its geometry.

    Attributes:
        kind: `graph`, `volume` or `healpix`.
        size: Nodes of a graph, voxels along a side, or nside.
        batch: Samples.
        channels: C.
        experts: X.
        selected: E.
    """

    kind: str
    size: int
    batch: int
    channels: int
    experts: int
    selected: int


CONFIGURATIONS = {
    "graph, 10^4 nodes": Configuration("graph", 10**4, 1, 16, 64, 16),
    "graph, 10^5 nodes": Configuration("graph", 10**5, 1, 16, 64, 16),
    "graph, 10^6 nodes": Configuration("graph", 10**6, 1, 16, 32, 16),
    "graph, 10^5 nodes, X = E": Configuration("graph", 10**5, 1, 16, 16, 16),
    "graph, 10^5 nodes, X = 16 E": Configuration("graph", 10**5, 1, 16, 256, 16),
    "graph, 10^4 nodes, batch 16": Configuration("graph", 10**4, 16, 16, 64, 16),
    "graph, 10^5 nodes, 64 to 64": Configuration("graph", 10**5, 1, 64, 128, 64),
    "volume 32^3, batch 4": Configuration("volume", 32, 4, 16, 64, 16),
    "volume 32^3, batch 16": Configuration("volume", 32, 16, 16, 64, 16),
    "volume 64^3": Configuration("volume", 64, 1, 16, 64, 16),
    "HEALPix nside 32, batch 16": Configuration("healpix", 32, 16, 32, 64, 32),
    "HEALPix nside 64, batch 4": Configuration("healpix", 64, 4, 32, 64, 32),
    "HEALPix nside 64, batch 16": Configuration("healpix", 64, 16, 64, 128, 64),
}
_PLAIN = {"graph": "SAGEConv, E outputs", "volume": "F.conv3d, E filters", "healpix": "F.conv2d, E filters"}


def mesh_edges(num_nodes: int) -> Tensor:
    """Edges of a plane of triangles, six for most nodes, in random order `(2, M)`."""
    side = int(num_nodes**0.5)
    nodes = torch.arange(side * side).view(side, side)
    pairs = [(nodes[:, :-1], nodes[:, 1:]), (nodes[:-1], nodes[1:]), (nodes[:-1, :-1], nodes[1:, 1:])]
    edges = torch.cat([torch.stack([a.flatten(), b.flatten()]) for a, b in pairs], dim=1)
    both = torch.cat([edges, edges.flip(0)], dim=1)
    return both[:, torch.randperm(both.shape[1])]


def make_ways(configuration: Configuration) -> tuple[dict[str, Call], list[Tensor]]:
    """What is compared, and the tensors that receive gradients."""
    from smoe.nn import GraphMoE, HEALPixMoE, SpatialMoE3d, TensorGate

    c = configuration
    numbers: tuple[int, int, int] = (c.channels, c.experts, c.selected)

    def gate(*grid: int) -> TensorGate:
        return TensorGate(c.experts, c.selected, grid)

    if c.kind == "graph":
        from torch_geometric.nn import SAGEConv

        N = int(c.size**0.5) ** 2
        edges = mesh_edges(N)
        x = torch.randn(c.batch, N, c.channels, requires_grad=True)
        layer = GraphMoE.from_experts(*numbers, gate=gate(N), rule="frozen")
        trained = GraphMoE.from_experts(*numbers, gate=gate(N), rule="rc")
        plain = SAGEConv(c.channels, c.selected, bias=False)
        everyone = SAGEConv(c.channels, c.experts, bias=False)
        chosen = layer.gate(None).indices

        def dense() -> Tensor:
            outputs = everyone(x, edges).transpose(1, 2)
            return gather_experts(outputs, chosen).transpose(1, 2)

        # One graph of one sample is what torch_geometric calls a graph.
        ways: dict[str, Call] = {
            "plain": lambda: plain(x[0] if c.batch == 1 else x, edges),
            "ours": lambda: layer(x[0] if c.batch == 1 else x, edges),
            "dense": dense,
            "trained": lambda: trained(x[0] if c.batch == 1 else x, edges),
        }
        modules: list[torch.nn.Module] = [layer, trained, plain, everyone]
    elif c.kind == "volume":
        shape = (c.size, c.size, c.size)
        x = torch.randn(c.batch, c.channels, *shape, requires_grad=True)
        layer3 = SpatialMoE3d.from_experts(*numbers, gate=gate(*shape), rule="frozen")
        trained3 = SpatialMoE3d.from_experts(*numbers, gate=gate(*shape), rule="rc")
        conv = torch.nn.Conv3d(c.channels, c.selected, 3, padding=1, bias=False)
        bank = torch.nn.Conv3d(c.channels, c.experts, 3, padding=1, bias=False)
        chosen = layer3.gate(None).indices
        ways = {
            "plain": lambda: conv(x),
            "ours": lambda: layer3(x),
            "dense": lambda: gather_experts(bank(x), chosen),
            "trained": lambda: trained3(x),
        }
        modules = [layer3, trained3, conv, bank]
    else:
        n = c.size
        x = torch.randn(c.batch, c.channels, 12, n, n, requires_grad=True)
        faces = HEALPixMoE.from_experts(*numbers, nside=n, gate=gate(12, n, n), rule="frozen")
        learning = HEALPixMoE.from_experts(*numbers, nside=n, gate=gate(12, n, n), rule="rc")
        plane = torch.nn.Conv2d(c.channels, c.selected, 3, padding=1, bias=False)
        wide = torch.nn.Conv2d(c.channels, c.experts, 3, padding=1, bias=False)
        chosen = faces.gate(None).indices
        ways = {
            "plain": lambda: plane(x.flatten(2, 3)),
            "ours": lambda: faces(x),
            "dense": lambda: gather_experts(wide(x.flatten(2, 3)), chosen),
            "trained": lambda: learning(x),
        }
        modules = [faces, learning, plane, wide]
    return ways, [x, *(parameter for module in modules for parameter in module.parameters())]


def measure(name: str, *, seconds: float = 3.0) -> dict[str, Any]:
    """One row of the table, on one thread, in processor time."""
    torch.set_num_threads(1)
    configuration = CONFIGURATIONS[name]
    ways, tensors = make_ways(configuration)
    with torch.no_grad():
        error = torch.randn_like(ways["plain"]())

    def forward(call: Call) -> Callable[[], object]:
        def run() -> None:
            with torch.no_grad():
                call()

        return run

    def both(call: Call) -> Callable[[], object]:
        def run() -> None:
            output = call()
            output.backward(error.view_as(output))
            for tensor in tensors:
                tensor.grad = None

        return run

    def times(kind: Callable[[Call], Callable[[], object]], names: tuple[str, ...]) -> Mapping[str, float]:
        calls = {way: kind(ways[way]) for way in names}
        return interleaved_medians(calls, seconds=seconds, min_rounds=3, clock=time.process_time)

    once = times(forward, ("plain", "ours"))
    twice = times(both, ("plain", "ours", "dense", "trained"))
    peaks = {way: _peak(name, way) for way in ("plain", "ours")}
    return {
        "configuration": name,
        "plain layer": _PLAIN[configuration.kind],
        "plain fwd ms": f"{1000 * once['plain']:.2f}",
        "ours fwd": f"{once['ours'] / once['plain']:.2f}",
        "plain fwd+bwd ms": f"{1000 * twice['plain']:.2f}",
        "ours fwd+bwd": f"{twice['ours'] / twice['plain']:.2f}",
        "dense fwd+bwd": f"{twice['dense'] / twice['plain']:.2f}",
        "with its gate learning": f"{twice['trained'] / twice['plain']:.2f}",
        "plain peak MB": f"{peaks['plain']:.0f}",
        "ours peak": f"{peaks['ours'] / peaks['plain']:.2f}",
        **circumstances(),
    }


def _peak(name: str, way: str) -> float:
    """Megabytes above its tensors that a process of its own has at the peak of three steps."""
    import os

    command = [sys.executable, "-m", "smoe_paper.benchmarks.mesh", name, way]
    environment = {**os.environ, **OWN_MAPPINGS, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(result.stdout)


def step_peak(name: str, way: str) -> float:
    """The same in this process."""
    torch.set_num_threads(1)
    ways, tensors = make_ways(CONFIGURATIONS[name])
    F.conv2d(torch.randn(1, 4, 8, 8, requires_grad=True), torch.randn(4, 4, 3, 3), padding=1).sum().backward()
    before = status("VmRSS")
    reset_peak()
    for _ in range(3):
        ways[way]().square().mean().backward()
        for tensor in tensors:
            tensor.grad = None
    return status("VmHWM") - before


@dataclass(frozen=True)
class Options:
    """Measures layers of every geometry, prints a table and stores it.

    Attributes:
        only: Configurations whose name contains this text; all of them if empty.
        seconds: Seconds for each comparison.
        output: Markdown file of the table; a .jsonl beside it holds the rows.
    """

    only: str = ""
    seconds: float = 3.0
    output: Path = Path("paper/results/bench/mesh.md")


def main(args: list[str] | None = None) -> None:
    """Measures every configuration, prints the table and stores it."""
    from rich.progress import track

    from smoe.command_line import UsageError, parse

    options = parse(Options, args or [], prog="smoe bench mesh")
    chosen = [name for name in CONFIGURATIONS if options.only.lower() in name.lower()]
    if not chosen:
        raise UsageError(f"no configuration's name contains {options.only!r}; there are {', '.join(CONFIGURATIONS)}")
    rows: list[dict[str, Any]] = []
    text = ""
    for name in track(chosen, description="measuring"):
        rows.append(measure(name, seconds=options.seconds))
        # Written after each row, so that a stop loses one measurement and not the table.
        text = write_table(
            options.output,
            "Layers of every geometry beside the plain layer with as many outputs",
            "smoe bench mesh",
            COLUMNS,
            rows,
            "Ratios to the plain layer, processor time of one thread, interleaved in one process, medians. Ours: the "
            "layer with a tensor gate that does not learn, its ranking included; with its gate learning: by the RC "
            "loss. Dense: all experts, then a gather. Peaks: resident memory of three steps above the tensors of the "
            f"layers, each in a process of its own; no gate learns. {origin(rows[-1])}",
        )
    sys.stdout.write(text)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(step_peak(sys.argv[1], sys.argv[2])))
