"""Peak memory of a training step of a large layer, beside F.conv2d with as many filters as are selected."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from typing import Any

from smoe.benchmarks.stored_table import circumstances

# ENS-10's grid: B, C, X, E, H, W.
SHAPE = (1, 32, 128, 32, 361, 720)
COLUMNS = ("training step", "peak MB", "ratio to conv2d", "ratio without the gate")
WAYS = {
    "conv2d": "F.conv2d, 32 filters",
    "routed": "routed convolution, 32 of 128 experts, routing given",
    "trained": "the same with a tensor gate: ranking, RC loss and damping",
}


def measure() -> list[dict[str, Any]]:
    """A row for each way. Each runs in a process of its own, because a peak cannot be reset."""
    peaks = {}
    for way in WAYS:
        command = [sys.executable, "-m", "smoe.benchmarks.memory", way]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks[way] = json.loads(result.stdout)
    # The scores and their gradient, which no gate can do without.
    gate = 2 * 4 * SHAPE[2] * SHAPE[4] * SHAPE[5] / 1e6
    return [
        {
            "training step": description,
            "peak MB": f"{peaks[way]:.0f}",
            "ratio to conv2d": f"{peaks[way] / peaks['conv2d']:.2f}",
            "ratio without the gate": f"{(peaks[way] - (gate if way == 'trained' else 0)) / peaks['conv2d']:.2f}",
            **circumstances(),
        }
        for way, description in WAYS.items()
    ]


def step_peak(way: str) -> float:
    """Megabytes that this process has at its peak during two steps, above what it had before its tensors."""
    import torch
    import torch.nn.functional as F

    import smoe
    from smoe.ops import routed_conv2d

    B, C, X, E, H, W = SHAPE
    torch.set_num_threads(1)
    # What a first convolution loads is not the layer's.
    F.conv2d(torch.randn(1, 4, 8, 8, requires_grad=True), torch.randn(4, 4, 3, 3), padding=1).sum().backward()
    smoe.SpatialMoE2d(4, 4, 2, spatial_shape=(8, 8))(torch.randn(1, 4, 8, 8)).sum().backward()
    indices = torch.randn(X, H, W).topk(E, dim=0).indices if way == "routed" else None
    before = _peak()
    input = torch.randn(B, C, H, W, requires_grad=True)
    if way == "conv2d":
        filters = torch.randn(E, C, 3, 3, requires_grad=True)
        for _ in range(2):
            F.conv2d(input, filters, padding=1).square().mean().backward()
    elif indices is not None:
        bank = torch.randn(X, C, 3, 3, requires_grad=True)
        for _ in range(2):
            routed_conv2d(input, bank, indices, check_indices=False).square().mean().backward()
    else:
        layer = smoe.SpatialMoE2d(C, X, E, spatial_shape=(H, W))
        for _ in range(2):
            layer(input).square().mean().backward()
    return _peak() - before


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


if __name__ == "__main__":
    sys.stdout.write(json.dumps(step_peak(sys.argv[1])))
