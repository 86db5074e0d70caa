"""Results of finished runs, a line of JSON each, found by the full recipe that was trained. Imports no torch."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smoe.errors import SmoeError
from smoe.training import write_atomically
from smoe_paper.experiments.recipe import Recipe

# Fields that hold where data are kept on somebody's machine.
DATA_PLACES = ("store", "pretrain_store", "root")

# Fields that change where and how fast a run computes, but not what it computes.
WITHOUT_EFFECT = frozenset({*DATA_PLACES, "device", "num_threads", "num_workers", "evaluation_batch_size"})

Plain = dict[str, Any]


class StoredRunError(SmoeError):
    """A stored run that cannot be read."""


def identity_of(plain: Plain) -> str:
    """The recipe without its seed and without fields that have no effect, as one text: equal texts compute the same."""
    return json.dumps(_with_effect({name: part for name, part in plain.items() if name != "seed"}), sort_keys=True)


def _with_effect(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {name: _with_effect(part) for name, part in plain.items() if name not in WITHOUT_EFFECT}
    # 1 and 1.0 are the same number, but different texts.
    is_whole = isinstance(plain, float) and plain.is_integer() and abs(plain) < 2**53
    return int(plain) if is_whole else [_with_effect(part) for part in plain] if isinstance(plain, list) else plain


@dataclass(frozen=True)
class RunKey:
    identity: str  # the full recipe without its seed, as `identity_of` returns it
    seed: int

    @classmethod
    def of(cls, recipe: Recipe) -> RunKey:
        return cls(identity_of(recipe.plain()), recipe.seed)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.identity.encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        return f"{self.digest}-{self.seed}"


class RunStore:
    """A file of results, which are found by comparing recipes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._runs: dict[RunKey, Plain] = {}
        self._references: dict[str, Plain] = {}
        self._read_at: tuple[int, int] | None = None

    def runs(self) -> dict[RunKey, Plain]:
        self._read()
        return self._runs

    def read_all_seeds(self, recipe: Recipe) -> list[Plain]:
        """The results of all stored seeds of a recipe, in their order."""
        identity = RunKey.of(recipe).identity
        of_recipe = {key.seed: result for key, result in self.runs().items() if key.identity == identity}
        return [of_recipe[seed] for seed in sorted(of_recipe)]

    def write(self, key: RunKey, result: Plain) -> None:
        self.runs()[key] = result
        self._write()

    def read_reference(self, name: str) -> Plain | None:
        """The result of a forecast that is not trained, with its `label`; None if it is not stored."""
        self._read()
        return self._references.get(name)

    def write_reference(self, name: str, result: Plain) -> None:
        self._read()
        self._references[name] = result
        self._write()

    def _read(self) -> None:
        """Reads the file, unless it is as it was read. Tables ask for hundreds of runs."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return
        read_at = (status.st_ino, status.st_mtime_ns)
        if read_at == self._read_at:
            return
        self._runs, self._references = {}, {}
        for number, line in enumerate(self.path.read_bytes().splitlines(), 1):
            try:
                result = json.loads(line)
                if "reference" in result:
                    self._references[result.pop("reference")] = result
                    continue
                key = RunKey(identity_of(result["recipe"]), result["seed"])
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise StoredRunError(
                    f"line {number} of {self.path} is not a stored run ({type(error).__name__}: {error}); remove the "
                    "line, and the run is made again"
                ) from error
            if key in self._runs:
                raise StoredRunError(f"line {number} of {self.path} holds a run that an earlier line holds; remove one")
            self._runs[key] = result
        self._read_at = read_at

    def _write(self) -> None:
        results = [{"reference": name, **result} for name, result in self._references.items()]
        text = "".join(f"{json.dumps(result)}\n" for result in [*results, *self._runs.values()])
        write_atomically(self.path, lambda file: file.write(text.encode()))
        self._read_at = None
