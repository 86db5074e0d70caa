"""Draws docs/pictures/performance.svg from the stored table of `smoe bench layer`.

python tools/draw_performance.py
"""

from __future__ import annotations

import html
import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE, PICTURE = ROOT / "paper/results/bench/layer.jsonl", ROOT / "docs/pictures/performance.svg"
# What is drawn of each row, and its colour.
BARS = {"default": ("SMoE layer, gate learning", "#0072b2"), "dense mixture": ("soft mixture of all", "#b9c3cd")}
LEFT, WIDTH, ROW, TOP, MOST = 240, 775, 34, 62, 3.0


def text(words: object, x: float, y: float, **attributes: object) -> str:
    """Return a text of the picture."""
    more = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in attributes.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{html.escape(str(words))}</text>'


def bar(x: float, y: float, width: float, colour: str) -> str:
    """Return a bar of the picture."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="12" fill="{colour}"/>'


def draw(rows: list[dict[str, object]]) -> str:
    """Return the picture: time of a training step of each configuration, as a ratio to that of a convolution."""
    scale, bottom = (WIDTH - LEFT - 50) / MOST, TOP + ROW * len(rows)
    title = "Time of a training step by network and batch, nn.Conv2d with as many outputs = 1"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 34}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{bottom + 34}" fill="#ffffff"/>',
        text(title, 12, 22, font_size=15, font_weight="bold"),
    ]
    for number, (words, colour) in enumerate(BARS.values()):
        parts += [bar(12 + 230 * number, 34, 12, colour), text(words, 30 + 230 * number, 45, font_size=13)]
    labels: list[str] = []
    for number, row in enumerate(rows):
        y = TOP + ROW * number
        parts.append(text(row["configuration"], LEFT - 8, y + 20, text_anchor="end", font_size=13))
        for place, (key, (_, colour)) in enumerate(BARS.items()):
            value = float(str(row[key]))
            width, high = min(value, MOST) * scale, y + 3 + 13 * place
            label = f"{value:.2f}" + (" →" if value > MOST else "")
            # A white rim sets a number apart from the line that it crosses.
            rim = {"font_size": 11, "stroke": "#ffffff", "stroke_width": 4, "paint_order": "stroke"}
            parts.append(bar(LEFT, high, width, colour))
            labels.append(text(label, LEFT + width + 5, high + 10, **rim))
    line = 'stroke="#d55e00" stroke-width="1.5" stroke-dasharray="5 3"'
    parts += [f'<path d="M{LEFT + scale:.1f} {TOP - 4}V{bottom}" {line}/>', *labels]
    first = rows[0]
    machine = (
        f"{first['processor']}, {first['threads']} thread, torch {first['torch']}, {first['date']}; smoe bench layer"
    )
    return "\n".join([*parts, text(machine, 12, bottom + 22, fill="#59626d", font_size=11), "</svg>", ""])


def read_rows() -> list[dict[str, object]]:
    """Return the planes of the table that were measured on one thread with a random routing."""
    rows = [json.loads(line) for line in TABLE.read_text().splitlines()]
    return [row for row in rows if row["threads"] == 1 and row["routing"] == "random" and row["dense mixture"] != "-"]


if __name__ == "__main__":
    PICTURE.write_text(draw(read_rows()))
    print(PICTURE)
