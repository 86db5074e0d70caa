"""Peak memory of a training step of a large layer, beside F.conv2d with as many filters as are selected."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from smoe_paper.benchmarks.timing import circumstances, origin, write_table

# ENS-10's grid: B, C, X, E, H, W.
SHAPE = (1, 32, 128, 32, 361, 720)
COLUMNS = (
    *("training step", "peak MB", "ratio to conv2d", "ratio without the gate"),
    *("default heap: peak MB", "default heap: ratio without the gate"),
)
WAYS = {
    "conv2d": "F.conv2d with as many filters as are selected",
    "routed": "routed convolution, routing given",
    "trained": "the same with a tensor gate: ranking, RC loss and damping",
}
# Large tensors get separate mappings, which the system takes back when they are freed: the resident memory is then
# the memory in use. By default, tensors below 32 MB lie in glibc's heap, which keeps holes of changing size.
OWN_MAPPINGS = {"MALLOC_MMAP_THRESHOLD_": "1000000"}


def measure(shape: tuple[int, ...] = SHAPE) -> list[dict[str, Any]]:
    """A row for each way. Each runs in processes of its own, so that none finds the memory another has left."""
    peaks = {way: _run(way, shape, OWN_MAPPINGS) for way in WAYS}
    by_default = {way: _run(way, shape, {}) for way in WAYS}
    return [
        {
            "training step": description,
            "peak MB": f"{peaks[way]['peak']:.0f}",
            "ratio to conv2d": f"{peaks[way]['peak'] / peaks['conv2d']['peak']:.2f}",
            "ratio without the gate": f"{peaks[way]['without gate'] / peaks['conv2d']['peak']:.2f}",
            "default heap: peak MB": f"{by_default[way]['peak']:.0f}",
            "default heap: ratio without the gate": (
                f"{by_default[way]['without gate'] / by_default['conv2d']['peak']:.2f}"
            ),
            **circumstances(),
        }
        for way, description in WAYS.items()
    ]


def _run(way: str, shape: tuple[int, ...], environment: dict[str, str]) -> dict[str, float]:
    command = [sys.executable, "-m", "smoe_paper.benchmarks.memory", way, *map(str, shape)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **environment})
    return json.loads(result.stdout)


def step_peak(way: str, shape: tuple[int, ...]) -> dict[str, float]:
    """Megabytes that this process has at its peak during three steps, above what it had before its tensors.

    `without gate` excludes the scores, and their gradient from when it exists.
    """
    import torch
    import torch.nn.functional as F

    import smoe
    from smoe.ops import routed_conv2d
    from smoe.rules import RoutingClassification

    B, C, X, E, H, W = shape
    torch.set_num_threads(1)
    # Memory that a first convolution loads does not belong to the layer.
    F.conv2d(torch.randn(1, 4, 8, 8, requires_grad=True), torch.randn(4, 4, 3, 3), padding=1).sum().backward()
    smoe.SpatialMoE2d.from_experts(4, 4, 2, spatial_shape=(8, 8))(torch.randn(1, 4, 8, 8)).sum().backward()

    before = status("VmRSS")
    input = torch.randn(B, C, H, W, requires_grad=True)
    indices = torch.empty(E if way == "routed" else 0, H, W, dtype=torch.int32)
    scores_size = 0.0
    if way == "conv2d":
        layer = torch.nn.Conv2d(C, E, 3, padding=1, bias=False)
    elif way == "trained":
        layer = smoe.SpatialMoE2d.from_experts(C, X, E, spatial_shape=(H, W), rule=RoutingClassification.released())
        scores_size = 4 * X * H * W / 1e6
    else:
        layer = torch.nn.Conv2d(C, X, 3, padding=1, bias=False)
        for row in range(H):  # one by one: the scores of all of them would be larger than anything the layer has
            indices[:, row] = torch.randn(X, W).topk(E, dim=0).indices

    def convolve() -> torch.Tensor:
        return (
            routed_conv2d(input, layer.weight, indices.flatten(1)[None], check_indices=False)
            if way == "routed"
            else layer(input)
        )

    peak, without_gate = 0.0, 0.0

    def note(gate: float) -> None:
        nonlocal peak, without_gate
        since_reset = status("VmHWM") - before
        peak, without_gate = max(peak, since_reset), max(without_gate, since_reset - gate)
        reset_peak()

    reset_peak()
    for _ in range(3):
        output = convolve()
        # The gate's gradient is allocated after this.
        output.register_hook(lambda _: note(scores_size))
        loss = output.square().mean()
        del output
        loss.backward()
        note(2 * scores_size)
        layer.zero_grad()
        input.grad = None
    return {"peak": peak, "without gate": without_gate}


def status(name: str) -> float:
    """Returns a number of megabytes from the process status of Linux."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024 / 1e6


def reset_peak() -> None:
    """Lets Linux forget the peak of this process so far."""
    Path("/proc/self/clear_refs").write_text("5")


def main(args: list[str] | None = None) -> None:
    """Measures every way, prints the table and stores it."""
    from smoe.command_line import parse_nothing

    parse_nothing(args, prog="smoe bench memory", text=__doc__ or "")
    rows = measure()
    title = "Peak memory of a training step, B=1, C=32, X=128, E=32, 361 x 720"
    notes = (
        "Peak of the resident memory above what the process had before it made its tensors (the input, the bank, the "
        "routing), three steps, one thread. Large tensors have mappings of their own, so that memory which was freed "
        "does not count; the last columns are without that: the heap keeps holes, which differ from run to run. The "
        f"gate is its scores and, once it exists, their gradient. {origin(rows[-1])}"
    )
    path = Path("paper/results/bench/memory.md")
    sys.stdout.write(write_table(path, title, "smoe bench memory", COLUMNS, rows, notes))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(step_peak(sys.argv[1], tuple(int(size) for size in sys.argv[2:]))))
