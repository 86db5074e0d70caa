"""Times a training step of one layer by the rule that trains its gate: probing, RC with and without damping, none.

Run: smoe bench probe-step [--seconds 10]. Prints the table and stores it in paper/results/bench.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.progress import track

from smoe.nn import SpatialMoE2d
from smoe.rules import Frozen, Probing, RoutingClassification, Rule
from smoe_paper.benchmarks.timing import circumstances, interleaved_medians, write_table

# A window of probing: its passes differ, so they are timed together.
_STEPS = 8
# Channels, experts, selected, rows and columns, samples: heat, the small and the large net of the weather, an image.
SHAPES = {
    "heat": (1, 3, 1, (64, 64), 32),
    "16 of 32": (16, 32, 16, (32, 64), 32),
    "64 of 128": (64, 128, 64, (28, 28), 16),
    "128 of 256": (128, 256, 128, (32, 64), 8),
}
RULES: dict[str, Rule] = {
    "none": Frozen(),
    "RC": RoutingClassification(error_quantile=0.7),
    "RC and damping": RoutingClassification.released(),
    "probing": Probing(),
}


def training_steps(shape: tuple[int, int, int, tuple[int, int], int], rule: Rule) -> Callable[[], None]:
    """Eight steps of a layer: forward, mean-squared error, backward, Adam."""
    channels, num_experts, num_selected, grid, num_samples = shape
    torch.manual_seed(0)
    layer = SpatialMoE2d.from_experts(channels, num_experts, num_selected, spatial_shape=grid, rule=rule)
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3, fused=True)
    input = torch.randn(num_samples, channels, *grid, requires_grad=True)
    target = torch.randn(num_samples, num_selected, *grid)

    def steps() -> None:
        for _ in range(_STEPS):
            F.mse_loss(layer(input), target).backward()
            optimizer.step()
            optimizer.zero_grad()

    return steps


def main(args: list[str] | None = None) -> None:
    """Measures and stores."""
    parser = argparse.ArgumentParser("smoe bench probe-step", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each shape")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args(args)
    torch.set_num_threads(arguments.threads)
    rows = []
    for name, shape in track(SHAPES.items(), description="measuring"):
        ways = {rule: training_steps(shape, training) for rule, training in RULES.items()}
        medians = interleaved_medians(ways, seconds=arguments.seconds)
        rows.append(
            {
                "experts": name,
                **{f"{rule}, ms": f"{1000 * median / _STEPS:.2f}" for rule, median in medians.items()},
                "probing / RC": f"{medians['probing'] / medians['RC']:.2f}",
                "probing / none": f"{medians['probing'] / medians['none']:.2f}",
            }
        )
    where = circumstances()
    notes = ", ".join(f"{key} {value}" for key, value in where.items()) + f", {arguments.threads} threads."
    path = Path("paper/results/bench") / "probe_step.md"
    command = "smoe bench probe-step"
    print(write_table(path, "A training step by the rule of the gate", command, list(rows[0]), rows, notes))


if __name__ == "__main__":
    main()
