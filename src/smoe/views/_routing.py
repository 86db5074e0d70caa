"""The routing of a layer or a model."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor, nn

from smoe._notebook import NUM_DISTINCT, expert_colours
from smoe.diagnostics import expert_use, fixed_choices, fixed_gates, similarity_colours
from smoe.diagnostics._choices import Choices
from smoe.views._drawing import NodePlaces, PixelPlaces, draw_expert_use, read_places, save_picture


class _ShownFigure(Figure):
    """A figure that a notebook shows, also where pyplot was never imported."""

    def _repr_png_(self) -> bytes:
        self.savefig(buffer := io.BytesIO(), format="png")
        return buffer.getvalue()


def plot_routing(
    routing: Choices | nn.Module,
    path: str | Path | None = None,
    *,
    num_experts: int | None = None,
    coords: np.ndarray | Tensor | Mapping[str, Any] | None = None,
    triangles: np.ndarray | Tensor | None = None,
    title: str = "",
) -> Figure:
    """Draw which experts serve which pixels, and how much each expert is used.

    If each pixel has one of at most twelve experts, every expert has a colour, which map, bars and legend share.
    Otherwise pixels with like colours share experts: three components of their choices are the colours. A line is drawn
    as a strip, a map as it is, a volume as the middle slices along its three axes. Nodes of a mesh need `coords`: those
    in space are drawn from two sides.

    Args:
        routing: Experts chosen at each pixel, `(E, ...)`; or a layer or model, whose gates are drawn one below the
            other. Gates whose choices depend on the input are left out: give what they choose for an input instead.
        path: Picture to write; None writes nothing.
        num_experts: Number of experts in the bank, X. Needed for a routing, not for a layer or model.
        coords: Where the pixels lie. Of a map, the coordinates of rows and columns by their names, such as
            `{"latitude": data.lat, "longitude": data.lon}`, each `(H,)` and `(W,)` or of each pixel `(H, W)`; gates of
            a model with another number of pixels are stretched over the same area. Of any pixels, two numbers for each,
            `(..., 2)`. Of nodes in space, `(N, 3)`.
        triangles: Corners of the triangles of a mesh, `(T, 3)`; without them, nodes are drawn as points.
        title: Title of the picture.

    Returns:
        The figure, which a notebook shows.

    Raises:
        ValueError: If there is nothing to draw, `num_experts` is missing, or `coords` do not fit the pixels.

    Example:
        >>> smoe.plot_routing(model, "routing.png", coords={"latitude": data.lat, "longitude": data.lon})
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
    shapes = [tuple(choices.shape[1:]) for choices, _ in rows.values()]
    if triangles is not None and coords is None:
        raise ValueError("triangles need coords, the places of their corners")
    places = None if coords is None else read_places(coords, shapes, triangles)
    figure = _ShownFigure(figsize=(11.0, 0.5 + 3.6 * len(rows)), layout="constrained")
    figure.suptitle(title, fontsize=13, fontweight="bold")
    parts = np.atleast_1d(np.asarray(figure.subfigures(len(rows), 1)))
    for part, (name, (choices, size)) in zip(parts, rows.items(), strict=True):
        own = expert_colours(size) / 255 if len(choices) == 1 and size <= NUM_DISTINCT else None
        colours = similarity_colours(choices, size) if own is None else own[np.asarray(choices[0])]
        panels = _panels(colours) if places is None else [colours] * len(places.views)
        axes = part.subplots(1, len(panels) + 1, squeeze=False)[0]
        for number, image in enumerate(panels):
            heading = "like colours share experts" if own is None else "the expert of each pixel"
            _show(axes[number], image, places, number, heading)
        if own is not None:
            marks = [Patch(color=colour, label=f"expert {expert}") for expert, colour in enumerate(own)]
            axes[0].legend(
                handles=marks, fontsize=8, loc="upper left", bbox_to_anchor=(0.0, -0.04), ncols=4, frameon=False
            )
        num_selected = len(choices)
        part.suptitle(f"{name}: {num_selected} of {size} experts at each pixel".removeprefix(": "), fontsize=11)
        draw_expert_use(axes[-1], expert_use(choices, size), colours=own)
    if path is not None:
        save_picture(figure, path)
    return figure


def _panels(colours: np.ndarray) -> list[np.ndarray]:
    num_dimensions = colours.ndim - 1
    if num_dimensions == 1:
        return [colours[None]]
    if num_dimensions == 2:
        return [colours]
    if num_dimensions == 3:
        return [colours.take(size // 2, axis=axis) for axis, size in enumerate(colours.shape[:3])]
    raise ValueError(f"pixels of shape {colours.shape[:-1]} cannot be drawn without coords")


def _show(axes: Axes, colours: np.ndarray, places: PixelPlaces | NodePlaces | None, number: int, heading: str) -> None:
    if places is None:
        axes.imshow(colours, interpolation="nearest", aspect="auto" if len(colours) == 1 else "equal")
        axes.set_xticks([])
        axes.set_yticks([])
    elif isinstance(places, PixelPlaces):
        places.draw(axes, colours)
    else:
        places.draw(axes, colours, places.views[number])
        heading += f", {places.views[number]}"
    axes.set_title(heading, fontsize=10.5)
