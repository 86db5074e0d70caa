"""Names of run directories: the recipe, the seed, and what differs from the recipe as it is stored here."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from smoe_paper.experiments.recipe import Recipe
from smoe_paper.experiments.result_tables.stored_runs import WITHOUT_EFFECT

_MAX_LENGTH = 80


def default_output_dir(name: str, recipe: Recipe, default: Recipe) -> Path:
    """`runs/heat-smoe-0` for seed 0 of heat/smoe, `runs/heat-smoe-0-num_experts=6` with another number of experts.

    Args:
        name: Name of the recipe, or a user's file, which names the directory.
        recipe: Recipe that is trained.
        default: Recipe of that name.
    """
    file = name.partition(":")[0]
    stem = Path(file).stem if file.endswith(".py") else name.replace("/", "-")
    changes = "".join(f"-{field}={_as_name(value)}" for field, value in _changes(default.plain(), recipe.plain()))
    if len(changes) > _MAX_LENGTH:
        # Many changes are told apart by a checksum.
        changes = f"{changes[: _MAX_LENGTH - 9]}-{hashlib.sha256(changes.encode()).hexdigest()[:8]}"
    return Path("runs") / f"{stem}-{recipe.seed}{changes}"


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for field, value in new.items():
        if field == "seed" or field in WITHOUT_EFFECT or value == old.get(field):
            continue
        before = old.get(field)
        if not isinstance(value, Mapping):
            yield field, value
        elif isinstance(before, Mapping) and before.get("type") == value.get("type"):
            yield from _changes(before, value)
        else:
            # Objects of different classes have different fields: the class is the difference, and what is in it.
            yield field, "_".join(str(part) for part in value.values() if part is not None)


def _as_name(value: Any) -> str:
    return re.sub(r"[^A-Za-z0-9.+-]+", "_", str(value)).strip("_")
