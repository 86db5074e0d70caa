"""What notebooks, reports and pictures share: HTML of routings and tables, colours of experts, coastlines."""

from __future__ import annotations

import base64
import colorsys
import functools
import html
import struct
import zlib
from collections.abc import Iterable, Sequence
from importlib import resources

import numpy as np

# The first colours are Okabe and Ito's, which colour-blind readers can distinguish.
_FIRST = bytes.fromhex("0072b2 e69f00 009e73 cc79a7 56b4e9 d55e00 f0e442 6e50a0 969696 784614 3cc8be be143c")
NUM_DISTINCT = len(_FIRST) // 3
"""So many experts have colours that can be told apart, and are named in a legend."""
_WIDTH = 260


def expert_colours(number: int) -> np.ndarray:
    """Returns the colours of so many experts, `(X, 3)`, uint8; the same in pictures, reports and notebooks."""
    colours = np.frombuffer(_FIRST, np.uint8).reshape(-1, 3)[:number]
    # Steps of the golden angle keep neighbours in number apart.
    further = [
        colorsys.hls_to_rgb(index * 137.508 / 360 % 1, 0.42 + 0.22 * (index * 0.381966 % 1), 0.62)
        for index in range(NUM_DISTINCT, number)
    ]
    rest = np.rint(255 * np.array(further).reshape(-1, 3)).astype(np.uint8)
    return np.concatenate([colours, rest])


@functools.cache
def coastlines() -> tuple[np.ndarray, ...]:
    """The outline of the land as lines of longitude and latitude in degrees, `(n, 2)` each.

    Natural Earth's land at 1:110 million, which is in the public domain; made by `tools/make_coastlines.py`.
    """
    with resources.files("smoe").joinpath("coastlines.npz").open("rb") as file, np.load(file) as stored:
        return tuple(np.split(stored["points"] / 100.0, stored["ends"][:-1]))


def project(longitude: np.ndarray, latitude: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mollweide's equal-area projection of degrees to an ellipse from -1 to 1 in both directions."""
    # The auxiliary angle solves 2 a + sin 2a = pi sin(latitude); a table of it is exact to less than a printed dot.
    angles = np.linspace(-np.pi / 2, np.pi / 2, 20_001)
    angle = np.interp(np.pi * np.sin(np.deg2rad(latitude)), 2 * angles + np.sin(2 * angles), angles)
    x = longitude / 180.0 * np.cos(angle)
    return x, np.broadcast_to(np.sin(angle), x.shape)


def html_table(heads: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "", *, bold: int = -1) -> str:
    """Returns a table; the text of cells is escaped, and row number `bold` stands out."""

    def line(cells: Sequence[object], kind: str, number: int | None = None) -> str:
        style = ' style="font-weight:bold"' if number == bold else ""
        return f"<tr{style}>" + "".join(f"<{kind}>{html.escape(str(cell))}</{kind}>" for cell in cells) + "</tr>"

    body = "".join(line(row, "td", number) for number, row in enumerate(rows))
    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    table = f'<table cellpadding="4">{title}<thead>{line(heads, "th")}</thead><tbody>{body}</tbody></table>'
    return f'<div style="overflow-x:auto;text-align:left">{table}</div>'


def html_text(text: str) -> str:
    return f'<div style="white-space:pre-wrap">{html.escape(text)}</div>'


def html_routing(indices: np.ndarray, num_experts: int) -> str:
    """Returns the experts `(E, H, W)` of each slot as maps with a legend; a line is a strip, of a volume one slice."""
    colours = expert_colours(num_experts)
    maps, seen = list[str](), indices[:4]
    for slot, chosen in enumerate(seen):
        flat = chosen[None] if chosen.ndim == 1 else chosen[len(chosen) // 2] if chosen.ndim == 3 else chosen
        words = [f"slot {slot} of {len(indices)}"] if len(indices) > 1 else []
        words += [f"slice {len(chosen) // 2 + 1} of {len(chosen)}"] if chosen.ndim == 3 else []
        label = f"<figcaption>{', '.join(words)}</figcaption>"
        maps.append(f'<figure style="display:inline-block;margin:4px">{html_image(colours[flat])}{label}</figure>')
    counts = np.bincount(seen.ravel(), minlength=num_experts) / max(1, indices[0].size)
    shown = np.argsort(-counts, kind="stable")[:NUM_DISTINCT]
    entries = [
        f'<span style="white-space:nowrap"><span style="background:rgb{tuple(colours[expert].tolist())}">'
        f"&emsp;</span> expert {expert}: {100 * counts[expert]:.3g} %</span>"
        for expert in shown.tolist()
        if counts[expert] > 0
    ]
    more = int((counts > 0).sum()) - len(entries)
    return f"<div>{''.join(maps)}<div>{' &ensp; '.join(entries)}{f' and {more} more' if more else ''}</div></div>"


def html_image(pixels: np.ndarray, wide: int = _WIDTH, text: str = "") -> str:
    """Returns an element with a PNG of colours `(H, W, 3)`, uint8, and what it shows in words."""
    height, width = pixels.shape[:2]
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1).tobytes()

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")
    size = f"width:{wide}px;height:{min(max(wide // 11, round(wide * height / width)), 2 * wide)}px"
    words, content = html.escape(text), base64.b64encode(png).decode()
    style = f"{size};image-rendering:pixelated"
    return f'<img alt="{words}" title="{words}" style="{style}" src="data:image/png;base64,{content}">'
