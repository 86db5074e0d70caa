"""Results of finished runs, one JSON file each, found by the full recipe that was trained. Imports no torch."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smoe._files import write_atomically
from smoe.experiments.migrations import SCHEMA, SchemaError, migrate_recipe
from smoe.experiments.recipe import Recipe

# Fields that hold where data are kept on somebody's machine.
DATA_PLACES = ("cache_dir", "store", "root")

# Fields that change where and how fast a run computes, but not what it computes.
WITHOUT_EFFECT = frozenset({*DATA_PLACES, "device", "num_threads", "num_workers", "evaluation_batch_size", "sharding"})

Plain = dict[str, Any]


class StoredRunError(Exception):
    """A stored run that cannot be read."""


def identity_of(plain: Plain) -> str:
    """The recipe without its seed and without fields that have no effect, as one text: equal texts compute the same.

    Args:
        plain: A full recipe in the current schema.
    """
    return json.dumps(_with_effect({name: part for name, part in plain.items() if name != "seed"}), sort_keys=True)


def _with_effect(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {name: _with_effect(part) for name, part in plain.items() if name not in WITHOUT_EFFECT}
    # 1 and 1.0 are the same number, but different texts.
    is_whole = isinstance(plain, float) and plain.is_integer() and abs(plain) < 2**53
    return int(plain) if is_whole else [_with_effect(part) for part in plain] if isinstance(plain, list) else plain


@dataclass(frozen=True)
class RunKey:
    """What was trained, and with which seed.

    Attributes:
        identity: The full recipe without its seed, as `identity_of` returns it.
        seed: Seed of the run.
    """

    identity: str
    seed: int

    @classmethod
    def of(cls, recipe: Recipe) -> RunKey:
        """The key of a recipe."""
        return cls(identity_of(recipe.plain()), recipe.seed)

    @property
    def digest(self) -> str:
        """A short name of the recipe, with the version of its schema."""
        return hashlib.sha256(f"{SCHEMA}:{self.identity}".encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        """Name of the file and of the run folder."""
        return f"{self.digest}-{self.seed}"


class RunStore:
    """A folder of results.

    A result is found by comparing recipes; the names of the files are for people. Results of earlier versions are read
    in the form of this one.

    Args:
        folder: Folder, made when the first result is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read_files: dict[str, tuple[RunKey, Plain]] = {}
        self._listed: tuple[list[str], dict[RunKey, Plain]] | None = None

    def runs(self) -> dict[RunKey, Plain]:
        """All stored results.

        Raises:
            StoredRunError: If a file is damaged, or two files hold the same run.
        """
        listed = self._list()
        if self._listed is not None and self._listed[0] == listed:
            return self._listed[1]
        found: dict[RunKey, Plain] = {}
        names: dict[RunKey, str] = {}
        for name in listed:
            if name not in self._read_files:
                self._read_files[name] = _read_run(self.folder / name)
            key, result = self._read_files[name]
            if key in found:
                raise StoredRunError(f"{names[key]} and {name} in {self.folder} hold the same run; remove one")
            found[key], names[key] = result, name
        self._listed = (listed, found)
        return found

    def _list(self) -> list[str]:
        """The names of the files of runs. Tables ask for hundreds of runs: what was read is not read again."""
        if not self.folder.is_dir():
            return []
        return sorted(
            name for name in os.listdir(self.folder) if name.endswith(".json") and not name.startswith("reference-")
        )

    def read_all_seeds(self, recipe: Recipe) -> list[Plain]:
        """The results of all stored seeds of a recipe, in their order."""
        identity = RunKey.of(recipe).identity
        of_recipe = {key.seed: result for key, result in self.runs().items() if key.identity == identity}
        return [of_recipe[seed] for seed in sorted(of_recipe)]

    def has(self, key: RunKey) -> bool:
        """Whether the result of a run is stored."""
        return key in self.runs()

    def read(self, key: RunKey) -> Plain | None:
        """The result of a run; None if it is not stored."""
        return self.runs().get(key)

    def write(self, key: RunKey, result: Plain) -> None:
        """Stores a result, whole or not at all."""
        _write(self.folder / f"{key.name}.json", {"schema": SCHEMA, **result})
        self._read_files.pop(f"{key.name}.json", None)
        self._listed = None

    def read_reference(self, name: str) -> Plain | None:
        """The result of a forecast that is not trained, with its `label`; None if it is not stored."""
        path = self.folder / f"reference-{name}.json"
        return _read(path) if path.exists() else None

    def write_reference(self, name: str, result: Plain) -> None:
        """Stores the result of a forecast that is not trained."""
        _write(self.folder / f"reference-{name}.json", result)


def _read_run(path: Path) -> tuple[RunKey, Plain]:
    result = _read(path)
    try:
        plain = migrate_recipe(result["recipe"], result.get("schema", 1))
        return RunKey(identity_of(plain), plain["seed"]), {**result, "recipe": plain}
    except (KeyError, TypeError, AttributeError, SchemaError) as error:
        raise StoredRunError(f"{path} is not a stored run: {type(error).__name__}: {error}") from error


def _read(path: Path) -> Plain:
    try:
        return json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise StoredRunError(f"{path} is damaged ({error}); remove it and the run is made again") from error


def _write(path: Path, result: Plain) -> None:
    text = json.dumps(result, indent=1) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))
