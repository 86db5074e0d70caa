"""What must stay true of the files of the library's core: no cycles, no state in modules, no reaching across."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import smoe

ROOT = Path(smoe.__file__).parent
FILES = sorted(path for room in ("nn", "rules", "ops", "models") for path in (ROOT / room).rglob("*.py"))
# These change layers of a copy that they made themselves.
BUILDERS = {"convert.py", "interpolate_grids.py", "transfer_gate.py"}
CHANGING = ("append", "add", "update", "pop", "clear", "setdefault", "extend", "remove")


def name_of(path: Path) -> str:
    parts = ("smoe", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {name_of(path) for path in FILES}


def imports_of(path: Path) -> set[str]:
    """The files of these rooms that a file imports anywhere, in functions and for type checkers too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found & NAMES


def test_no_file_imports_itself_by_a_detour() -> None:
    # A package's `__init__` gathers its files; a file that imports another of the same package does not go through it.
    graph = {name_of(path): imports_of(path) - {name_of(path)} for path in FILES if path.name != "__init__.py"}
    is_done: dict[str, bool] = {}

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert is_done.get(name, True), f"cycle: {' -> '.join((*trail[trail.index(name) :], name))}"
        if name in is_done:
            return
        is_done[name] = False
        for other in sorted(graph.get(name, ())):
            visit(other, (*trail, name))
        is_done[name] = True

    for name in graph:
        visit(name, ())
    assert len(graph) > 50


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nothing_is_imported_for_type_checkers_only(path: Path) -> None:
    assert "TYPE_CHECKING" not in path.read_text()


def module_level(path: Path) -> Iterator[tuple[str, ast.expr]]:
    """Names that are assigned at the level of the module, with their values."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign):
            yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value


@pytest.mark.parametrize("path", [path for path in FILES if not path.is_relative_to(ROOT / "ops")], ids=name_of)
def test_a_module_has_no_state(path: Path) -> None:
    """Containers at the level of a module are constants in capitals, which no function changes."""
    tree = ast.parse(path.read_text())
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Global)]
    containers = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
    names = {name for name, value in module_level(path) if isinstance(value, containers) and name != "__all__"}
    assert all(name.isupper() for name in names), names
    for node in ast.walk(tree):
        changed: list[ast.expr] = []
        if isinstance(node, (ast.Assign, ast.Delete)):
            changed = [target.value for target in node.targets if isinstance(target, ast.Subscript)]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING:
            changed = [node.func.value]
        assert not [place for place in changed if isinstance(place, ast.Name) and place.id in names]


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.name not in BUILDERS and path.is_relative_to(ROOT / "nn")], ids=name_of
)
def test_only_an_object_sets_its_own_attributes(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = [part for target in node.targets for part in getattr(target, "elts", [target])]
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Attribute):
                owner = target.value.id if isinstance(target.value, ast.Name) else ast.unparse(target.value)
                assert owner in ("self", "ctx"), f"line {target.lineno}: {ast.unparse(target)} is set from outside"
