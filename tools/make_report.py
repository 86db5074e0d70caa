"""Writes docs/report.md as a PDF: python tools/make_report.py FILE."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pymupdf  # type: ignore[import-not-found]
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
STYLE = """
body { font-family: sans-serif; font-size: 9.5pt; line-height: 1.3; }
h1 { font-size: 18pt; }
h2 { font-size: 13pt; margin-top: 14pt; }
p, li { text-align: justify; }
table { font-size: 6.5pt; margin-bottom: 6pt; }
td, th { padding: 1pt 4pt; text-align: left; border-bottom: 0.5pt solid #bbbbbb; }
code, pre { font-family: monospace; font-size: 8.5pt; }
a { color: #114477; text-decoration: none; }
img { width: 420px; }
"""


def write_pdf(path: Path) -> int:
    """Write the report and return its number of pages."""
    text = (ROOT / "docs" / "report.md").read_text()
    html = MarkdownIt("commonmark").enable("table").render(re.sub(r"<!--.*?-->", "", text))
    # Relative to the archive: a path of the machine is not found in it, and a figure would be left out without a word.
    html = html.replace('src="../', 'src="').replace('src="pictures', 'src="docs/pictures')
    html = html.replace(" ± ", "\xa0±\xa0")
    # Links within the repository lead nowhere from a PDF.
    html = re.sub(r'<a href="(?!http)[^"]*">(.*?)</a>', r"\1", html, flags=re.DOTALL)
    story = pymupdf.Story(html, user_css=STYLE, archive=pymupdf.Archive(str(ROOT)))
    page, num_pages, more = pymupdf.paper_rect("a4"), 0, 1
    inside = pymupdf.Rect(54, 54, page.width - 54, page.height - 54)
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = pymupdf.DocumentWriter(str(path))
    while more:
        device = writer.begin_page(page)
        more, _ = story.place(inside)
        story.draw(device)
        writer.end_page()
        num_pages += 1
    writer.close()
    shown = sum(len(page.get_images()) for page in pymupdf.open(path))
    if shown != html.count("<img "):
        raise RuntimeError(f"{path} shows {shown} of {html.count('<img ')} figures")
    return num_pages


if __name__ == "__main__":
    number = write_pdf(Path(sys.argv[1]))
    print(f"{sys.argv[1]}: {number} pages")
