"""The routing of a layer on a map, and of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from smoe.diagnostics import expert_use, fixed_choices, fixed_gates, neighbour_agreement, selections
from smoe.diagnostics._choices import Choices
from smoe.views._charts import draw_expert_use, save_picture
from smoe.views._node_routing import NodePlaces, PixelPlaces, read_places, similarity_colours


def plot_routing(
    routing: Choices | nn.Module,
    path: str | Path | None = None,
    *,
    num_experts: int | None = None,
    coords: np.ndarray | Tensor | Mapping[str, Any] | None = None,
    triangles: np.ndarray | Tensor | None = None,
    title: str = "",
) -> Figure:
    """Draws which experts serve which pixels, and how much each expert is used.

    Pixels with like colours share experts. A line is drawn as a strip, a map as it is, a volume as the middle slices
    along its three axes. Nodes of a mesh need `coords`: those in space are drawn from two sides.

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
    figure = Figure(figsize=(11.0, 0.5 + 3.6 * len(rows)), layout="constrained")
    figure.suptitle(title, fontsize=13, fontweight="bold")
    parts = np.atleast_1d(np.asarray(figure.subfigures(len(rows), 1)))
    for part, (name, (choices, size)) in zip(parts, rows.items(), strict=True):
        colours = similarity_colours(choices, size)
        panels = _panels(colours) if places is None else [colours] * len(places.views)
        axes = part.subplots(1, len(panels) + 1, squeeze=False)[0]
        for number, image in enumerate(panels):
            _show(axes[number], image, places, number)
        num_selected = len(choices)
        part.suptitle(f"{name}: {num_selected} of {size} experts at each pixel".removeprefix(": "), fontsize=11)
        draw_expert_use(axes[-1], expert_use(choices, size))
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


def _show(axes: Axes, colours: np.ndarray, places: PixelPlaces | NodePlaces | None, number: int) -> None:
    heading = "like colours share experts"
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


_NUM_CLASSES_SHOWN = 10
_NUM_EXPERTS_SHOWN = 5


def draw_image_routing(
    chosen: np.ndarray,
    num_experts: int,
    mean_images: np.ndarray,
    classes: Sequence[str],
    path: str | Path,
    *,
    title: str,
) -> None:
    """Draw the choices over the mean image of each class, and where the experts work that serve most and least.

    Args:
        chosen: Experts chosen at each pixel, in any order, `(E, H, W)`.
        num_experts: Number of experts in the bank, X.
        mean_images: Mean image of each class, from 0 (dark) to 1, grey `(N, H, W)` on the grid of the choices.
        classes: Names of the N classes.
        path: Picture to write.
        title: Title of the picture.
    """
    if mean_images.ndim != 3 or len(mean_images) != len(classes) or mean_images.shape[1:] != chosen.shape[1:]:
        raise ValueError(
            f"mean_images must be one of {chosen.shape[1:]} for each of {len(classes)} classes, got {mean_images.shape}"
        )
    is_selected = selections(chosen, num_experts)
    colours = similarity_colours(chosen, num_experts)
    figure = Figure(figsize=(13.5, 9.4), layout="constrained")
    figure.suptitle(title, fontsize=13, fontweight="bold")
    rows = np.asarray(figure.subfigures(3, 1, height_ratios=[1.0, 1.25, 1.7]))

    rows[0].suptitle("the choices over the mean image of each class: like colours share experts", fontsize=11)
    shown = range(min(len(classes), _NUM_CLASSES_SHOWN))
    for axes, number in zip(np.atleast_1d(rows[0].subplots(1, len(shown))), shown, strict=True):
        _show_image(axes, colours * (0.2 + 0.8 * mean_images[number, ..., None]), classes[number])

    axes = rows[1].subplots(1, 3, width_ratios=[1.0, 1.0, 2.4])
    _show_image(axes[0], colours, f"all {len(chosen)} choices of each pixel")
    # Similarity of a pixel and its neighbours: white noise is grey everywhere, regions have borders.
    _show_image(axes[1], neighbour_agreement(chosen, num_experts), "shared with the four neighbours", palette="viridis")
    rows[1].colorbar(axes[1].images[0], ax=axes[1], shrink=0.85)
    served = expert_use(chosen, num_experts)
    draw_expert_use(axes[2], served)

    ranked = np.argsort(-served, kind="stable")
    number = min(_NUM_EXPERTS_SHOWN, num_experts)
    background = mean_images.mean(axis=0) / max(float(mean_images.mean(axis=0).max()), 1e-12)
    panels = rows[2].subplots(2, number, squeeze=False)
    for panel, expert in zip(panels[0], ranked[:number], strict=True):
        _show_expert(panel, is_selected[expert], background, f"expert {expert}: {100 * served[expert]:.1f} %")
    for panel, expert in zip(panels[1], ranked[::-1][:number], strict=True):
        _show_expert(panel, is_selected[expert], background, f"expert {expert}: {100 * served[expert]:.1f} %")
    panels[0, 0].set_ylabel("most used")
    panels[1, 0].set_ylabel("least used")
    save_picture(figure, path)


def _show_image(axes: Axes, image: np.ndarray, title: str, palette: str | None = None) -> None:
    axes.imshow(image, cmap=palette, interpolation="nearest")
    axes.set_title(title, fontsize=9.5)
    axes.set_xticks([])
    axes.set_yticks([])


def _show_expert(axes: Axes, is_selected: np.ndarray, background: np.ndarray, title: str) -> None:
    """The pixels an expert serves in colour, the others grey, both as bright as the mean image."""
    brightness = 0.25 + 0.75 * background[..., None]
    own, others = np.array([0.95, 0.55, 0.15]), np.array([0.45, 0.45, 0.5])
    _show_image(axes, np.where(is_selected[..., None], own, others) * brightness, title)
