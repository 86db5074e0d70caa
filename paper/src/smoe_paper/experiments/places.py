"""Places that a recipe.json names: used if they lie inside the run or the working directory. Imports no torch."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from smoe._plain import is_path, type_hints
from smoe.training.run_directory import RunDirectory, RunError
from smoe_paper.experiments.recipe import Recipe

CACHE = "data.cache_dir"
"""Folder that keeps simulated data: without it they are simulated again, and nothing is refused."""


def places_of(recipe: Recipe) -> dict[str, Path | None]:
    """Every field of a recipe that can hold a path, with its value, by its name with dots."""
    return _path_fields(recipe)


def data_places(recipe: Recipe) -> list[str]:
    """The fields of the recipe's data that can hold a path, which a command takes as `--data.FIELD PATH`."""
    return [name.removeprefix("data.") for name in places_of(recipe) if name.startswith("data.")]


def outside_places(recipe: Recipe, directory: RunDirectory) -> dict[str, Path]:
    """The paths of a recipe that lie outside its run and the working directory, by their fields with dots."""
    named = {name: path for name, path in places_of(recipe).items() if path is not None}
    return {name: path for name, path in named.items() if not directory.may_name(path)}


def replace_places(recipe: Recipe, places: Mapping[str, Path | None]) -> Recipe:
    """The recipe with other paths, by their fields with dots, such as `data.store` and `init_from`."""
    for name, path in places.items():
        recipe = _replaced(recipe, name.split("."), path)
    return recipe


def check_places(directory: RunDirectory, outside: Mapping[str, Path], unopened: Collection[str] = ()) -> None:
    """Refuses a run that would have files opened or written outside.

    Args:
        directory: Directory of the run.
        outside: What `outside_places` returns.
        unopened: Fields that are not opened, or were given by the user.

    Raises:
        RunError: With the file, the field, the path, and the flag that names it.
    """
    for name, path in outside.items():
        if name not in unopened:
            flag, argument = name.replace("_", "-"), name.rpartition(".")[2]
            raise RunError(
                f"{directory.recipe_file}: {name} is {str(path)!r}, outside the run and the working directory: give "
                f"the place as --{flag} PATH (in Python {argument}=PATH)"
            )
    for parent, folders, files in os.walk(directory.path):
        for entry in (Path(parent) / name for name in (*folders, *files)):
            if entry.is_symlink() and not directory.may_name(entry):
                raise RunError(
                    f"{directory.path} holds a link that leads out of it and of the working directory, "
                    f"{str(entry.relative_to(directory.path))!r}: remove it, or work in a folder that holds both"
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
