"""The routing of any layer: on a line, a map, a volume, or points."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from smoe.diagnostics import expert_use, fixed_choices, fixed_gates
from smoe.diagnostics.choices import Choices, as_array
from smoe.views.expert_use import draw_expert_use
from smoe.views.picture import save_picture
from smoe.views.similarity_colours import similarity_colours


def plot_routing(
    routing: Choices | nn.Module,
    path: str | Path,
    *,
    num_experts: int | None = None,
    coords: np.ndarray | Tensor | None = None,
    title: str = "",
) -> None:
    """Draws which experts serve which pixels, and how much each expert is used.

    Pixels with like colours share experts. A line is drawn as a strip, a map as it is, a volume as the middle slices
    along its three axes. Nodes of a mesh need `coords` and are drawn as points.

    Args:
        routing: Experts chosen at each pixel, `(E, ...)`; or a layer or model, whose gates are drawn one below the
            other. Gates whose choices depend on the input are left out: give what they choose for an input instead.
        path: Picture to write.
        num_experts: Number of experts in the bank, X. Needed for a routing, not for a layer or model.
        coords: Position of each pixel, such as longitude and latitude, `(..., 2)`.
        title: Title of the picture.

    Raises:
        ValueError: If there is nothing to draw, `num_experts` is missing, or `coords` do not fit the pixels.
    """
    if isinstance(routing, nn.Module):
        gates, found = fixed_gates(routing), fixed_choices(routing)
        rows: Mapping[str, tuple[Choices, int]] = {name: (found[name], gates[name].num_experts) for name in found}
        if not rows:
            raise ValueError(
                f"{type(routing).__name__} holds no gate whose choices are the same for all inputs; give the choices "
                "for one input instead"
            )
    elif num_experts is None:
        raise ValueError("num_experts is needed to draw a routing: its experts need not all be in use")
    else:
        rows = {"": (routing, num_experts)}
    figure = Figure(figsize=(11.0, 0.5 + 3.6 * len(rows)), layout="constrained")
    figure.suptitle(title, fontsize=13, fontweight="bold")
    parts = np.atleast_1d(np.asarray(figure.subfigures(len(rows), 1)))
    for part, (name, (choices, size)) in zip(parts, rows.items(), strict=True):
        colours = similarity_colours(choices, size)
        panels = _panels(colours, coords)
        axes = part.subplots(1, len(panels) + 1, squeeze=False)[0]
        for panel, image in zip(axes, panels, strict=False):
            _show(panel, image, coords)
        num_selected = len(choices)
        part.suptitle(f"{name}: {num_selected} of {size} experts at each pixel".removeprefix(": "), fontsize=11)
        draw_expert_use(axes[-1], expert_use(choices, size))
    save_picture(figure, path)


def _panels(colours: np.ndarray, coords: np.ndarray | Tensor | None) -> list[np.ndarray]:
    num_dimensions = colours.ndim - 1
    if coords is not None:
        if tuple(coords.shape) != (*colours.shape[:-1], 2):
            raise ValueError(
                f"coords must hold two numbers for each pixel, {(*colours.shape[:-1], 2)}, got {tuple(coords.shape)}"
            )
        return [colours]
    if num_dimensions == 1:
        return [colours[None]]
    if num_dimensions == 2:
        return [colours]
    if num_dimensions == 3:
        return [colours.take(size // 2, axis=axis) for axis, size in enumerate(colours.shape[:3])]
    raise ValueError(f"pixels of shape {colours.shape[:-1]} cannot be drawn without coords")


def _show(axes: Axes, colours: np.ndarray, coords: np.ndarray | Tensor | None) -> None:
    if coords is None:
        axes.imshow(colours, interpolation="nearest", aspect="auto" if len(colours) == 1 else "equal")
    else:
        places = as_array(coords).reshape(-1, 2)
        axes.scatter(*places.T, c=colours.reshape(-1, 3), s=max(1.0, 4000.0 / len(places)), linewidths=0)
        axes.set_aspect("equal", adjustable="datalim")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title("like colours share experts", fontsize=10.5)
