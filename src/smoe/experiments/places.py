"""Places that a recipe.json names. One that this user did not write chooses none outside its run directory.

Imports no torch.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from smoe.experiments.plain import is_path, type_hints
from smoe.experiments.recipe import Recipe
from smoe.training.run_directory import RunDirectory, RunError

CACHE = "data.cache_dir"
"""Folder that keeps simulated data: without it they are simulated again, and nothing is refused."""


def places_of(recipe: Recipe) -> dict[str, Path | None]:
    """Returns every field of a recipe that can hold a path, with its value, by its name with dots."""
    return _path_fields(recipe)


def data_places(recipe: Recipe) -> list[str]:
    """Returns the fields of the recipe's data that can hold a path, which a command takes as `--data.FIELD PATH`."""
    return [name.removeprefix("data.") for name in places_of(recipe) if name.startswith("data.")]


def outside_places(recipe: Recipe, directory: RunDirectory) -> dict[str, Path]:
    """Returns the paths of a recipe that lead out of a run directory, by the names of their fields with dots."""
    root = directory.path.resolve()
    named = {name: value for name, value in places_of(recipe).items() if value is not None}
    return {name: path for name, path in named.items() if not _is_inside(path, root)}


def replace_places(recipe: Recipe, places: Mapping[str, Path | None]) -> Recipe:
    """Returns the recipe with other paths.

    Args:
        recipe: Recipe.
        places: New paths by their fields with dots, such as `data.store` and `init_from`.
    """
    for name, path in places.items():
        recipe = _replaced(recipe, name.split("."), path)
    return recipe


def check_places(directory: RunDirectory, outside: Mapping[str, Path]) -> None:
    """Refuses a run that this user did not write, if it would have files outside its directory opened.

    Args:
        directory: Directory of the run.
        outside: Paths that would be opened and were not given, by their fields, as `outside_places` returns them.

    Raises:
        RunError: With the file, the field, the path, and how to allow it.
    """
    allow = "allow all places of this run by --trust-places (in Python trust_places=True)"
    for name, path in outside.items():
        flag, argument = name.replace("_", "-"), name.rpartition(".")[2]
        raise RunError(
            f"{directory.recipe_file}: {name} is {str(path)!r}, outside the run directory, and it is not recorded that "
            f"you wrote this file: give the place as --{flag} PATH (in Python {argument}=PATH), or {allow}"
        )
    root = directory.path.resolve()
    for link in _links(directory.path):
        if not _is_inside(link, root):
            raise RunError(
                f"{directory.path} holds a link that leads out of it, {str(link.relative_to(directory.path))!r}, and "
                f"it is not recorded that you made this run: remove the link, or {allow}"
            )


def _path_fields(value: Any, prefix: str = "") -> dict[str, Path | None]:
    found: dict[str, Path | None] = {}
    for field in dataclasses.fields(value):
        part = getattr(value, field.name)
        if dataclasses.is_dataclass(part):
            found |= _path_fields(part, f"{prefix}{field.name}.")
        elif is_path(type_hints(type(value))[field.name]):
            found[f"{prefix}{field.name}"] = part
    return found


def _replaced(value: Any, names: list[str], path: Path | None) -> Any:
    first, *rest = names
    return dataclasses.replace(value, **{first: _replaced(getattr(value, first), rest, path) if rest else path})


def _is_inside(path: Path, root: Path) -> bool:
    try:
        return path.resolve().is_relative_to(root)
    except (OSError, ValueError, RuntimeError):
        # No path at all, such as one with a zero byte, or a ring of links.
        return False


def _links(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            link = Path(parent) / name
            if link.is_symlink():
                yield link
