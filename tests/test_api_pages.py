"""The API reference and the how-to pages: every public name has an entry with an example, and the examples run."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

import smoe

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted({*DOCS.glob("api/*.md"), *DOCS.glob("how-to/*.md")} - {DOCS / "api" / "index.md"})
ROOMS = ("nn", "ops", "losses", "diagnostics", "rules", "views", "meshes", "regression")
ENTRY = re.compile(r"^\.\. (?:auto|py:)\w+:: (\S+)\n[^`]*```\n\n```pycon\n>>>", re.MULTILINE)
EXAMPLE = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_public_name_has_an_entry_with_an_example() -> None:
    rooms = {f"smoe.{room}": importlib.import_module(f"smoe.{room}") for room in ROOMS}
    public = {f"{room}.{name}" for room, module in rooms.items() for name in module.__all__}
    # A name that the package exports itself is described there.
    public = {name for name in public if name.rpartition(".")[2] not in smoe.__all__}
    public |= {f"smoe.{name}" for name in smoe.__all__ if f"smoe.{name}" not in rooms and name != "__version__"}
    described = [name for page in PAGES for name in ENTRY.findall(page.read_text())]
    assert sorted(described) == sorted(public)


# A program that is decomposed is copied with what torch itself no longer likes to construct.
@pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec:FutureWarning")
@pytest.mark.parametrize("page", [page.relative_to(DOCS).as_posix() for page in PAGES])
def test_the_examples_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = "\n".join(EXAMPLE.findall((DOCS / page).read_text()))
    torch.manual_seed(0)
    test = doctest.DocTestParser().get_doctest(code, {"torch": torch, "smoe": smoe, "np": np}, page, page, 0)
    assert test.examples
    failures: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=failures.append)
    plt.close("all")
    assert not failures, "\n".join(failures)
