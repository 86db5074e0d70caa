"""What pictures share: colours, files, and the use of experts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from smoe._files import write_atomically

# Okabe and Ito's colours, which colour-blind readers can distinguish.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def save_picture(figure: Figure, path: str | Path) -> None:
    """Write a figure, whole or not at all; missing folders are made."""
    path = Path(path)
    canvas = FigureCanvasAgg(figure)
    formats = canvas.get_supported_filetypes()
    ending = path.suffix[1:].lower()
    if ending not in formats:
        raise ValueError(f"a picture must end in one of .{', .'.join(sorted(formats))}, got {path}")
    write_atomically(path, lambda file: figure.savefig(file, format=ending, dpi=160))


def draw_expert_use(axes: Axes, use: np.ndarray, *, of: str = "pixels", colours: np.ndarray | None = None) -> None:
    """Draw the share of the pixels that each expert serves, `smoe.diagnostics.expert_use`, the most used one first.

    `of` names the whole, such as `globe` if pixels are weighted by their area. With colours of the experts, `(X, 3)`
    from 0 to 1, the bars are named.
    """
    order = np.argsort(-use, kind="stable")
    ordered, ranks = use[order] * 100, np.arange(1, len(use) + 1)
    axes.bar(ranks, ordered, 1.0 if colours is None else 0.8, color=COLOURS[2] if colours is None else colours[order])
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
    axes.set_ylabel(f"of the {of}, in %")
    axes.set_title(f"use of each expert ({int((use > 0).sum())} of {len(use)} in use)", fontsize=10.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper right")
