"""Compares what probing estimates with what really happens when one pixel changes its expert, layer by layer.

Run: smoe bench probe-estimates RUN [--swaps 40] [--samples 32], where RUN is a folder of `smoe train`. Each
layer of the trained net is taken alone: at random pixels one selected expert is exchanged for one that is not, and the
loss of the batch computed again. Prints the table and stores it, with a picture, in results/probing.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.progress import track
from torch import nn

from smoe.benchmarks.stored_table import circumstances, write_table
from smoe.experiments.runs import open_run
from smoe.nn import RoutedLayer, TensorGate
from smoe.nn.learning.probing import ProbingLearner
from smoe.ops.probe_routing import Challenge, at_slots, draw_challenge, exchange_scores
from smoe.ops.top_experts import top_experts

Loss = Callable[[], torch.Tensor]


def slopes_of(layer: RoutedLayer, loss: Loss, challenge: Challenge) -> tuple[np.ndarray, np.ndarray]:
    """First-order estimate of the change of the loss at each pixel, and the squared differences, `(P,)` each."""
    seen: dict[str, torch.Tensor] = {}

    def keep(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        del module
        output.retain_grad()
        seen["input"], seen["output"] = inputs[0].detach(), output

    handle = layer.register_forward_hook(keep)
    loss().backward()
    handle.remove()
    with torch.no_grad():
        source = layer.prepare(seen["input"])
        indices = layer.gate(seen["input"]).indices
        others, selected = (layer.select(source, experts).flatten(2) for experts in (challenge.experts, indices))
        difference = others - at_slots(selected, challenge.slots, layer.expert_channels)
        error = seen["output"].grad
        assert error is not None
        slopes = (at_slots(error.flatten(2), challenge.slots, layer.expert_channels) * difference).sum(dim=(0, 1))
        return slopes.numpy(), difference.square().sum(dim=(0, 1)).numpy()


def real_changes(layer: RoutedLayer, loss: Loss, challenge: Challenge, pixels: np.ndarray) -> np.ndarray:
    """The change of the loss when the layer exchanges its expert at one pixel, for each of `pixels`."""
    gate = layer.gate
    assert isinstance(gate, TensorGate)
    indices = _ranked(gate)
    changes = []
    with torch.no_grad():
        before = float(loss())
        for pixel in pixels:
            is_exchanged = torch.zeros(indices.shape[2], dtype=torch.bool)
            is_exchanged[pixel] = True
            # A separate gate for this layer: other layers that share it keep theirs.
            changed = copy.deepcopy(gate)
            exchange_scores(changed.scores.view(gate.num_experts, -1), indices, challenge, is_exchanged)
            layer.gate = changed
            changes.append(float(loss()) - before)
            layer.gate = gate
    return np.array(changes)


def _ranked(gate: TensorGate) -> torch.Tensor:
    """The selected experts `(1, E, P)`, by descending score."""
    return top_experts(gate.scores.detach().flatten(1)[None], gate.num_selected)


def main(args: list[str] | None = None) -> None:
    """Measures and stores."""
    parser = argparse.ArgumentParser("smoe bench probe-estimates", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--swaps", type=int, default=40, help="exchanges of each layer")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--name", default="estimates", help="of the stored table and picture")
    arguments = parser.parse_args(args)
    opened = open_run(arguments.run, splits=("validation",))
    task, rng = opened.task, np.random.default_rng(0)
    # Double precision: one pixel changes the loss in its last digits.
    model = task.model.double().eval()
    samples = task.splits["validation"]
    numbers = rng.choice(len(samples), arguments.samples, replace=False).tolist()  # type: ignore[arg-type]
    input, target = (part.double() for part in task.collate(samples.__getitems__(numbers)))  # type: ignore[attr-defined]

    def loss() -> torch.Tensor:
        return task.loss(model(input), target)

    rows, points = [], {}
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, RoutedLayer)}
    for name, layer in track(layers.items(), description="exchanging"):
        assert isinstance(layer.gate, TensorGate)
        challenge = draw_challenge(_ranked(layer.gate), layer.num_experts, 1)
        slopes, sizes = slopes_of(layer, loss, challenge)
        pixels = rng.choice(slopes.size, arguments.swaps, replace=False)
        estimated, truth = slopes.flatten()[pixels], real_changes(layer, loss, challenge, pixels)
        # The curvature along the differences that best explains the remainder.
        squares = 0.5 * sizes.flatten()[pixels]
        curvature = float(squares @ (truth - estimated) / (squares @ squares))
        learner = layer.learner
        rise, size = learner.curvature.tolist() if isinstance(learner, ProbingLearner) else (0.0, 0.0)
        measured = max(rise / size, 0.0) if size > 0.0 else 0.0
        second = estimated + measured * squares
        points[name] = (estimated, truth)
        rows.append(
            {
                "layer": name,
                "correlation, first order": f"{np.corrcoef(estimated, truth)[0, 1]:.3f}",
                "same sign": f"{np.mean(np.sign(estimated) == np.sign(truth)):.2f}",
                "correlation, with curvature": f"{np.corrcoef(second, truth)[0, 1]:.3f}",
                "same sign with curvature": f"{np.mean(np.sign(second) == np.sign(truth)):.2f}",
                "curvature that fits": f"{curvature:.2e}",
                "measured in training": f"{measured:.2e}",
            }
        )
    folder = Path("results/probing")
    folder.mkdir(parents=True, exist_ok=True)
    draw(points, folder / f"{arguments.name}.png")
    notes = f"{opened.name}, {arguments.swaps} exchanges of each layer, {arguments.samples} validation samples, "
    notes += ", ".join(f"{key} {value}" for key, value in circumstances().items()) + "."
    command = f"smoe bench probe-estimates RUN --swaps {arguments.swaps} --samples {arguments.samples}"
    title = "Estimated and real change of the loss when a pixel changes its expert"
    print(write_table(folder / f"{arguments.name}.md", title, command, list(rows[0]), rows, notes))


def draw(points: dict[str, tuple[np.ndarray, np.ndarray]], path: Path) -> None:
    """One panel for each layer: the estimate across, the truth upwards."""
    import matplotlib.pyplot as plt

    columns = min(4, len(points))
    figure, axes = plt.subplots(-(-len(points) // columns), columns, squeeze=False, figsize=(3 * columns, 6))
    for axis in axes.flat[len(points) :]:
        axis.remove()
    for axis, (name, (estimated, truth)) in zip(axes.flat, points.items(), strict=False):
        limit = 1.1 * max(np.abs(estimated).max(), np.abs(truth).max())
        axis.plot([-limit, limit], [-limit, limit], color="0.8", zorder=0)
        axis.scatter(estimated, truth, s=8)
        axis.set(title=name, xlim=(-limit, limit), ylim=(-limit, limit))
        axis.ticklabel_format(scilimits=(0, 0))
    figure.supxlabel("estimated change of the loss, first order")
    figure.supylabel("real change")
    figure.tight_layout()
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
