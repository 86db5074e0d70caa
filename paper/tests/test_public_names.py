"""The experiments use smoe as any user would, through public names."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import smoe_paper

SOURCE = Path(smoe_paper.__file__).parent
# They measure what is inside.
INSIDERS = ("benchmarks",)
FILES = [path for path in sorted(SOURCE.rglob("*.py")) if path.relative_to(SOURCE).parts[0] not in INSIDERS]


def private_imports(tree: ast.AST) -> list[str]:
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    return [
        name for name in modules if name.split(".")[0] == "smoe" and any(part[0] == "_" for part in name.split("."))
    ]


def test_private_imports_are_found() -> None:
    assert private_imports(ast.parse("from smoe._files import a\nimport smoe.nn._gate\nfrom smoe.nn import b")) == [
        "smoe._files",
        "smoe.nn._gate",
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_private_name_of_smoe(path: Path) -> None:
    assert private_imports(ast.parse(path.read_text())) == []
