"""Pictures of the routing of a layer or a model; only here and in the experiments is matplotlib imported."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from torch import Tensor, nn

from smoe._files import write_atomically
from smoe._maps import Axis, Places, make_views
from smoe._notebook import NUM_DISTINCT, expert_colours
from smoe.diagnostics import expert_use, fixed_choices, fixed_gates, similarity_colours
from smoe.diagnostics._choices import Choices, as_array

__all__ = ["plot_routing", "save_picture"]

Draw = Callable[[Axes, np.ndarray], str]


class _NotebookFigure(Figure):
    """A figure that a notebook shows, also where pyplot was never imported."""

    def _repr_png_(self) -> bytes:
        self.savefig(buffer := io.BytesIO(), format="png")
        return buffer.getvalue()


def save_picture(figure: Figure, path: str | Path) -> None:
    """Writes a figure, whole or not at all; missing folders are made."""
    path = Path(path)
    canvas = FigureCanvasAgg(figure)
    formats = canvas.get_supported_filetypes()
    ending = path.suffix[1:].lower()
    if ending not in formats:
        raise ValueError(f"a picture must end in one of .{', .'.join(sorted(formats))}, got {path}")
    write_atomically(path, lambda file: figure.savefig(file, format=ending, dpi=160))


def plot_routing(
    routing: Choices | nn.Module,
    path: str | Path | None = None,
    *,
    num_experts: int | None = None,
    coords: np.ndarray | Tensor | Mapping[str, Any] | None = None,
    title: str = "",
) -> Figure:
    """Draws which experts serve which pixels, and how much each expert is used.

    If each pixel has one of at most twelve experts, every expert has a colour, which map, bars and legend share.
    Otherwise pixels with like colours share experts: three components of their choices are the colours. A line is drawn
    as a strip, a map as it is, a volume as the middle slices along its three axes. Nodes of a mesh need `coords`: those
    of a body in space are drawn from two sides.

    Args:
        routing: Experts chosen at each pixel, `(E, ...)`; or a layer or model, whose gates are drawn one below the
            other. Gates whose choices depend on the input are left out: give what they choose for an input instead.
        path: Picture to write; None writes nothing.
        num_experts: Number of experts in the bank, X. Needed for a routing, not for a layer or model.
        coords: Where the pixels lie. Of a map, the coordinates of rows and columns by their names, such as
            `{"latitude": data.lat, "longitude": data.lon}`, each `(H,)` and `(W,)` or of each pixel `(H, W)`; gates of
            a model with another number of pixels are stretched over the same area. Of any pixels, two numbers for each,
            `(..., 2)`. Of nodes in space, `(N, 3)`.
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
    draw = None if coords is None else _read_coords(coords, shapes)
    figure = _NotebookFigure(figsize=(11.0, 0.5 + 3.6 * len(rows)), layout="constrained")
    figure.suptitle(title, fontsize=13, fontweight="bold")
    parts = np.atleast_1d(np.asarray(figure.subfigures(len(rows), 1)))
    for part, (name, (choices, size)) in zip(parts, rows.items(), strict=True):
        own = expert_colours(size) / 255 if len(choices) == 1 and size <= NUM_DISTINCT else None
        colours = similarity_colours(choices, size) if own is None else own[np.asarray(choices[0])]
        panels = _panels(colours) if draw is None else [colours]
        axes = part.subplots(1, len(panels) + 1, squeeze=False)[0]
        heading = "like colours share experts" if own is None else "the expert of each pixel"
        for place, image in zip(axes, panels, strict=False):
            seen = (_draw_panel if draw is None else draw)(place, image)
            place.set_title(heading + seen, fontsize=10.5)
        if own is not None:
            marks = [Patch(color=colour, label=f"expert {expert}") for expert, colour in enumerate(own)]
            axes[0].legend(
                handles=marks, fontsize=8, loc="upper left", bbox_to_anchor=(0.0, -0.04), ncols=4, frameon=False
            )
        num_selected = len(choices)
        part.suptitle(f"{name}: {num_selected} of {size} experts at each pixel".removeprefix(": "), fontsize=11)
        _draw_use(axes[-1], expert_use(choices, size), own)
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


def _draw_panel(axes: Axes, colours: np.ndarray) -> str:
    axes.imshow(colours, interpolation="nearest", aspect="auto" if len(colours) == 1 else "equal")
    axes.set_xticks([])
    axes.set_yticks([])
    return ""


def _read_coords(coords: np.ndarray | Tensor | Mapping[str, Any], shapes: Sequence[tuple[int, ...]]) -> Draw:
    """A function that draws colours where the pixels lie, and says what is seen, unless they do not fit all gates."""
    if not isinstance(coords, Mapping):
        values = as_array(coords)
        for shape in shapes:
            if values.shape not in ((*shape, 2), (*shape, 3)):
                wanted = f"two or three numbers for each pixel, {(*shape, 2)}"
                raise ValueError(f"coords must hold {wanted}, got {values.shape}")
        return partial(_draw_view, places=_nodes(values))
    if len(coords) != 2:
        raise ValueError(f"coords must name rows and columns, two coordinates, got {', '.join(map(str, coords))}")
    names = tuple(map(str, coords))
    rows, columns = (np.asarray(values, np.float64) for values in coords.values())
    is_regular = rows.ndim == 1 and columns.ndim == 1
    shape = (len(rows), len(columns)) if is_regular else rows.shape
    fits = shape in shapes if is_regular else rows.shape == columns.shape and all(each == shape for each in shapes)
    if not fits or min(shape) < 2:
        pixels = ", ".join(" x ".join(map(str, each)) for each in dict.fromkeys(shapes))
        raise ValueError(
            f"coords {names[0]} {rows.shape} and {names[1]} {columns.shape} do not fit the pixels of the gates, "
            f"{pixels}"
        )
    if not is_regular:
        return partial(_draw_view, places=_nodes(np.stack([columns, rows], axis=-1)))
    is_geographic = [name.lower()[:3] for name in names] == ["lat", "lon"]
    down, across = Axis(names[0], rows), Axis(names[1], columns)
    return partial(_draw_view, places=Places("grid", shape, down, across, bool(rows[0] < rows[-1]), is_geographic))


def _nodes(coordinates: np.ndarray) -> Places:
    flat = coordinates.reshape(-1, coordinates.shape[-1])
    return Places("mesh", (len(flat),), coordinates=flat)


def _draw_view(axes: Axes, colours: np.ndarray, places: Places) -> str:
    """Draws the first picture that a report has of the pixels."""
    where = places if places.kind == "mesh" else places.on_grid(colours.shape[:2]) or places
    view = make_views(where)[0][0]
    (height, width), is_seen = view.cells.shape, view.cells >= 0
    image = np.ones((height, width, 3))
    light = 1.0 if view.light is None else view.light[is_seen, None] / 255
    image[is_seen] = colours.reshape(-1, 3)[view.cells[is_seen]] * light
    axes.imshow(image, interpolation="nearest", aspect=width / height / (view.ratio or width / height))
    if where.rows is None or where.columns is None:
        axes.set_axis_off()
        return f", {view.name}"
    across, down = (
        [(size * share - 0.5, text) for share, text in ticks]
        for size, ticks in zip((width, height), view.ticks, strict=True)
    )
    axes.set_xticks(*zip(*across, strict=True), fontsize=8)
    axes.set_yticks(*zip(*down, strict=True), fontsize=8)
    axes.set_xlabel(where.columns.name, fontsize=9)
    axes.set_ylabel(where.rows.name, fontsize=9)
    return ""


def _draw_use(axes: Axes, use: np.ndarray, colours: np.ndarray | None) -> None:
    order = np.argsort(-use, kind="stable")
    ordered, ranks = use[order] * 100, np.arange(1, len(use) + 1)
    axes.bar(ranks, ordered, 0.8 if len(use) < 65 else 1.0, color="#009E73" if colours is None else colours[order])
    # Each pixel has as many experts, so the mean is the use if all were used alike.
    axes.axhline(ordered.mean(), color="0.35", linestyle=(0, (4, 3)), linewidth=1.2, label="if all were used alike")
    axes.set_xlim(0.5, len(ordered) + 0.5)
    axes.set_ylim(0, 103)
    if colours is None:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("rank of the expert, most used first")
    else:
        axes.set_xticks(ranks, [str(expert) for expert in order])
        axes.set_xlabel("expert, most used first")
    axes.set_ylabel("of the pixels, in %")
    axes.set_title(f"use of each expert ({int((use > 0).sum())} of {len(use)} in use)", fontsize=10.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper right")
