"""Results of finished runs, one small file each, found again by what was trained and not by how it was called."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import typing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from smoe.atomic_files import write_atomically
from smoe.experiments.recipes import Recipe, to_plain

# Where a recipe's data are kept.
DATA_PLACES = ("cache_dir", "store", "root")

# What changes where and how fast a run computes, but not what it computes.
_WITHOUT_EFFECT = {*DATA_PLACES, "device", "num_threads", "num_workers", "evaluation_batch_size"}


class StoredRunError(Exception):
    """A stored run that cannot be read."""


@dataclass(frozen=True)
class RunKey:
    """What was trained, and with which seed.

    Attributes:
        digest: of the recipe's differences from the default one, without the seed.
        seed: of the run.
    """

    digest: str
    seed: int

    @classmethod
    def of(cls, recipe: Recipe) -> RunKey:
        """The key of a recipe. Only what differs from the defaults counts, so a new field does not change old keys."""
        content = json.dumps(differences(replace(recipe, seed=0)), sort_keys=True)
        return cls(hashlib.sha256(content.encode()).hexdigest()[:12], recipe.seed)

    @property
    def name(self) -> str:
        """Of its file and of its run folder."""
        return f"{self.digest}-{self.seed}"


def differences(value: Any) -> dict[str, Any]:
    """The fields of a recipe, or of a part of it, that differ from the defaults of its class and matter."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        part = getattr(value, field.name)
        default = typing.cast(Any, field.default_factory)() if field.default is dataclasses.MISSING else field.default
        if field.name in _WITHOUT_EFFECT:
            continue
        if dataclasses.is_dataclass(part):
            inner = differences(part)
            if type(part) is not type(default):
                inner = {"type": type(part).__name__, **inner}
            if inner:
                found[field.name] = inner
        elif part != default:
            found[field.name] = to_plain(part)
    return found


class RunStore:
    """A folder of results.

    Args:
        folder: made when the first result is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, key: RunKey) -> Path:
        """The file of a run."""
        return self.folder / f"{key.name}.json"

    def read_all_seeds(self, digest: str) -> list[dict[str, Any]]:
        """The results of all stored seeds of a recipe, in their order."""
        seeds = sorted(int(path.stem.partition("-")[2]) for path in self.folder.glob(f"{digest}-*.json"))
        results = (self.read(RunKey(digest, seed)) for seed in seeds)
        return [result for result in results if result is not None]

    def has(self, key: RunKey) -> bool:
        """Whether the run's result is stored."""
        return self.path(key).exists()

    def read(self, key: RunKey) -> dict[str, Any] | None:
        """The result of a run; None if it is not stored.

        Raises:
            StoredRunError: if the file is damaged.
        """
        return self._read(self.path(key))

    def write(self, key: RunKey, result: dict[str, Any]) -> None:
        """Stores a result, whole or not at all."""
        self._write(self.path(key), result)

    def read_reference(self, name: str) -> dict[str, Any] | None:
        """The result of a forecast that is not trained, with its `label`; None if it is not stored."""
        return self._read(self.folder / f"reference-{name}.json")

    def write_reference(self, name: str, result: dict[str, Any]) -> None:
        """Stores the result of a forecast that is not trained."""
        self._write(self.folder / f"reference-{name}.json", result)

    @staticmethod
    def _read(path: Path) -> dict[str, Any] | None:
        if not path.exists():
            return None
        try:
            return json.loads(path.read_text())
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise StoredRunError(f"{path} is damaged ({error}); remove it and the run is made again") from error

    @staticmethod
    def _write(path: Path, result: dict[str, Any]) -> None:
        text = json.dumps(result, indent=1) + "\n"
        write_atomically(path, lambda file: file.write(text.encode()))
