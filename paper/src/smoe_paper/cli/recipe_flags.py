"""The fields of a recipe as flags of a command, and the name of its run directory."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from smoe.command_line import parse
from smoe.training.plan import Tracker
from smoe_paper.experiments.recipe import Recipe
from smoe_paper.experiments.stored_runs import WITHOUT_EFFECT

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
    for name, value in new.items():
        if name == "seed" or name in WITHOUT_EFFECT or value == old.get(name):
            continue
        before = old.get(name)
        if not isinstance(value, Mapping):
            yield name, value
        elif isinstance(before, Mapping) and before.get("type") == value.get("type"):
            yield from _changes(before, value)
        else:
            # Objects of different classes have different fields: the class is the difference, and what is in it.
            yield name, "_".join(str(part) for part in value.values() if part is not None)


def _as_name(value: Any) -> str:
    return re.sub(r"[^A-Za-z0-9.+-]+", "_", str(value)).strip("_")


@dataclass(frozen=True)
class RecipeFlags:
    """What was typed after the name of a recipe.

    Attributes:
        recipe: The recipe with the fields that were set.
        output_dir: Run directory; None if not given.
        resume: Whether to continue the run in the output directory.
        log_with: Package that records the training; None records nothing. It is no field of the recipe: it changes
            nothing of what is computed.
    """

    recipe: Recipe
    output_dir: Path | None = None
    resume: bool = False
    log_with: Tracker | None = None


def parse_recipe(recipe: Recipe, args: list[str], *, prog: str, is_run: bool = True) -> RecipeFlags:
    """The recipe with the fields that the flags set.

    Args:
        recipe: Values of the flags that are not given.
        args: Flags as typed.
        prog: Command, for the help text.
        is_run: Whether there are flags for a run directory too.
    """
    fields: list[Any] = [("recipe", Annotated[type(recipe), tyro.conf.arg(name=""), tyro.conf.FlagConversionOff])]
    attributes = ["recipe: What to train."]
    if is_run:
        fields += [
            ("output_dir", Path | None, field(default=None)),
            ("resume", Annotated[bool, tyro.conf.FlagCreatePairsOff], field(default=False)),
            ("log_with", Annotated[Tracker | None, tyro.conf.arg(name="training.log-with")], field(default=None)),
        ]
        attributes += [
            "output_dir: Run directory; runs/RECIPE-SEED if not given.",
            "resume: Continue the run in the output directory.",
            "log_with: Record the training with this package too; Weights & Biases and MLflow stay offline unless "
            "their environment variables say otherwise.",
        ]
    # The flags are those of the recipe's own class, which is known only now.
    kind = make_dataclass("Options", fields, frozen=True)
    summary = (type(recipe).__doc__ or "").splitlines()[0]
    kind.__doc__ = f"{summary}\n\nAttributes:\n" + "".join(f"    {line}\n" for line in attributes)
    options: Any = parse(kind, args, prog=prog, default=kind(recipe))
    if not is_run:
        return RecipeFlags(options.recipe)
    return RecipeFlags(options.recipe, options.output_dir, options.resume, options.log_with)
