"""Configuration of the documentation site, which `make docs` builds from the root of the repository.

The root is the source folder, so that pages, tables of results and pictures stay where they are and their links work on
a forge, in an editor and on the site alike.
"""

import os
import re
import zlib
from pathlib import Path
from typing import Any

from smoe.version import __version__
from smoe_paper.benchmarks.registry import BENCHMARKS

# Tutorials run on one thread: the whole build must be quick on a small machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")

project = "smoe"
author = "The smoe developers"
copyright = "The smoe developers, BSD-3-Clause"
release = version = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "paper/results/**.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "paper/simulation/README.md",
    "src/smoe/csrc/README.md",
]
# Folders that hold no pages, so that they are not searched.
exclude_patterns = [".*", ".venv*/**", "build/**", "dist/**", "data/**", "runs/**", "tests/**", "paper/tests/**"]
exclude_patterns.append("paper/results/text.md")  # a part of tables.md

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
# A tutorial that fails fails the build; what did not change is not run again.
nb_execution_mode = "cache"
nb_execution_cache_path = str(Path(__file__).parents[1] / "build" / "docs-cache")
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_merge_streams = True
# Warnings of notebooks name files of the machine that built the site.
nb_output_stderr = "remove"

autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_default_options = {"exclude-members": "extra_repr, forward"}
autosummary_generate = False
maximum_signature_line_length = 88
# Docstrings mark code with single backticks, as in Markdown.
default_role = "code"
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"smoe {__version__}"
html_static_path = ["_static"]
html_css_files = ["smoe.css"]
# The address of the site leads to its start page.
html_extra_path = ["site_root"]
html_copy_source = False
html_show_sourcelink = False
# Excerpts of pages would be fetched, which a browser refuses for files: without them the search works offline too.
html_show_search_summary = False
copybutton_prompt_text = ">>> |\\.\\.\\. |\\$ "
copybutton_prompt_is_regexp = True

# Names of other libraries in signatures lead to their pages. Their own inventories would need a network to build this.
_ELSEWHERE = {
    "torch": (
        "https://docs.pytorch.org/docs/stable/",
        {
            "torch.Tensor": "tensors.html",
            "torch.dtype": "tensor_attributes.html",
            "torch.nn.Module": "generated/$.html",
            "torch.nn.Conv2d": "generated/$.html",
        },
    ),
    "xarray": (
        "https://docs.xarray.dev/en/stable/",
        {"xarray.Dataset": "generated/$.html", "xarray.DataArray": "generated/$.html"},
    ),
    "numpy": ("https://numpy.org/doc/stable/", {"numpy.ndarray": "reference/generated/$.html"}),
}


def _inventory(name: str, pages: dict[str, str]) -> str:
    path = Path(__file__).parents[1] / "build" / "inventories" / f"{name}.inv"
    lines = "".join(f"{entry} py:class 1 {page.replace('$', entry)}#$ -\n" for entry, page in pages.items())
    header = f"# Sphinx inventory version 2\n# Project: {name}\n# Version: \n# The rest is compressed using zlib.\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header.encode() + zlib.compress(lines.encode()))
    return str(path)


intersphinx_mapping = {name: (site, _inventory(name, pages)) for name, (site, pages) in _ELSEWHERE.items()}

_CODE = re.compile(r"`([^`\n]+(?:\n[ ]*[^`\s][^`\n]*)?)`(?=(\w?))")


def escape_text(app: Any, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    """Escapes the characters of docstrings that reStructuredText would read as markup; code stays as it is."""
    del app, what, obj, options
    if not name.startswith("smoe"):
        return
    text, done, position = "\n".join(lines), "", 0
    for code in _CODE.finditer(text):
        # A letter directly behind code, as in a plural, must be set apart.
        done += _escape(text[position : code.start()]) + f"``{code[1]}``" + ("\\ " if code[2] else "")
        position = code.end()
    lines[:] = (done + _escape(text[position:])).split("\n")


def _escape(text: str) -> str:
    # Examples and fields that napoleon made are left alone.
    return "\n".join(
        line if line.lstrip().startswith((">>>", "...", ":")) else re.sub(r"(?<!\\)([*|])", r"\\\1", line)
        for line in text.split("\n")
    )


# Folders of stored tables in the order of the page of results.
_RESULTS = ("heat", "heat-mesh", "weather", "ens10", "images", "bench", "gpu")


def list_results(app: Any, docname: str, source: list[str]) -> None:
    """Puts a table of all stored tables into the page of results; the tables themselves are in no menu."""
    del app
    if docname.startswith("paper/results/"):
        source[0] = f"---\norphan: true\n---\n\n{source[0]}"
    if docname != "docs/results":
        return
    root = Path(__file__).parents[1] / "paper" / "results"
    paths = [path for path in root.glob("*/*.md") if path.name != "notes.md"]
    paths.sort(key=lambda path: (_RESULTS.index(path.parent.name), path.name))
    titles = [path.read_text().partition("\n")[0].removeprefix("# ").replace("|", "\\|") for path in paths]
    rows = ["| of | table | made by |", "|---|---|---|"]
    for path, title in zip(paths, titles, strict=True):
        command = re.search(r"[Mm]ade by `(smoe \w+ ?([^\s`]*)[^`]*)`", path.read_text())
        is_known = command is not None and (path.parent.name != "bench" or command[2] in BENCHMARKS)
        made = f"`{command[1]}`".replace("|", "\\|") if command is not None and is_known else "a single study"
        name = f"{title} ({path.stem})" if titles.count(title) > 1 else title
        rows.append(f"| {path.parent.name} | [{name}](../{path.relative_to(root.parents[1]).as_posix()}) | {made} |")
    source[0] = source[0].replace("<!-- all tables -->", "\n".join(rows))


_ENTRY = re.compile(r"^\.\. auto(?:class|function):: (\S+)$", re.MULTILINE)


def summarise(app: Any, docname: str, source: list[str]) -> None:
    """Puts a table of its entries on top of each page of the API, and all of them on its first page."""
    del app
    folder = Path(__file__).parent / "api"
    if docname.startswith("docs/api/") and docname != "docs/api/index":
        title, paragraph, rest = source[0].split("\n\n", 2)
        source[0] = "\n\n".join([title, paragraph, _summary(source[0]), rest])
    elif docname == "docs/api/index":
        for page in re.findall(r"^## \[.*\]\((\w+)\.md\)$", source[0], re.MULTILINE):
            link = f"({page}.md)\n"
            source[0] = source[0].replace(link, f"{link}\n{_summary((folder / f'{page}.md').read_text())}\n")


def _summary(page: str) -> str:
    names = "\n".join(f"   {name}" for name in _ENTRY.findall(page))
    return f"```{{eval-rst}}\n.. autosummary::\n   :nosignatures:\n\n{names}\n```"


def offer_notebook(app: Any, docname: str, source: list[str]) -> None:
    """Offers each tutorial as the notebook that ran."""
    del app
    if docname.startswith("docs/tutorials/"):
        head, title, text = source[0].partition("\n# ")
        heading, text = text.split("\n", 1)
        link = f"{{nb-download}}`As a notebook, with its results <{docname.rpartition('/')[2]}.ipynb>`"
        source[0] = f"{head}{title}{heading}\n\n{link}\n{text}"


def put_readme(app: Any, docname: str, source: list[str]) -> None:
    """Puts the text of README on the first page, with links that hold there."""
    del app
    if docname == "docs/index":
        text = (Path(__file__).parents[1] / "README.md").read_text().partition("\nMore: ")[0]
        # Badges are pictures from elsewhere, which a site that is read as files does not fetch.
        text = re.sub(r"^\[!\[.*\n", "", text, flags=re.MULTILINE)
        text = text.replace("](docs/", "](").replace("](paper/", "](../paper/")
        first, heading, sections = text.partition("\n## ")
        source[0] = source[0].replace("<!-- README, up to its first section -->", first)
        source[0] = source[0].replace("<!-- README, its sections -->", heading + sections)


def setup(app: Any) -> None:
    """Connects the hooks, that of docstrings ahead of napoleon."""
    app.connect("autodoc-process-docstring", escape_text, priority=100)
    app.connect("source-read", list_results)
    app.connect("source-read", summarise)
    app.connect("source-read", offer_notebook)
    app.connect("source-read", put_readme)
