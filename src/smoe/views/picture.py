"""What all pictures share: their colours, and how they are written to disk."""

from __future__ import annotations

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from smoe._files import write_atomically

# Okabe and Ito's colours, which colour-blind readers can distinguish.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def save_picture(figure: Figure, path: str | Path) -> None:
    """Write a figure, whole or not at all; missing folders are made.

    Args:
        figure: A figure made without pyplot, so that no display and no global state are involved.
        path: File to write; the ending (`.png`, `.pdf`, `.svg`, ...) gives the format.
    """
    path = Path(path)
    canvas = FigureCanvasAgg(figure)
    formats = canvas.get_supported_filetypes()
    ending = path.suffix[1:].lower()
    if ending not in formats:
        raise ValueError(f"a picture must end in one of .{', .'.join(sorted(formats))}, got {path}")
    write_atomically(path, lambda file: figure.savefig(file, format=ending, dpi=160))
