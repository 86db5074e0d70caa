"""Which experts serve which part of an image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from smoe.diagnostics import expert_use, neighbour_agreement, selections
from smoe.views.expert_use import draw_expert_use
from smoe.views.picture import save_picture
from smoe.views.similarity_colours import similarity_colours

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
        _show(axes, colours * (0.2 + 0.8 * mean_images[number, ..., None]), classes[number])

    axes = rows[1].subplots(1, 3, width_ratios=[1.0, 1.0, 2.4])
    _show(axes[0], colours, f"all {len(chosen)} choices of each pixel")
    # Similarity of a pixel and its neighbours: white noise is grey everywhere, regions have borders.
    _show(axes[1], neighbour_agreement(chosen, num_experts), "shared with the four neighbours", palette="viridis")
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


def _show(axes: Axes, image: np.ndarray, title: str, palette: str | None = None) -> None:
    axes.imshow(image, cmap=palette, interpolation="nearest")
    axes.set_title(title, fontsize=9.5)
    axes.set_xticks([])
    axes.set_yticks([])


def _show_expert(axes: Axes, is_selected: np.ndarray, background: np.ndarray, title: str) -> None:
    """The pixels an expert serves in colour, the others grey, both as bright as the mean image."""
    brightness = 0.25 + 0.75 * background[..., None]
    own, others = np.array([0.95, 0.55, 0.15]), np.array([0.45, 0.45, 0.5])
    _show(axes, np.where(is_selected[..., None], own, others) * brightness, title)
