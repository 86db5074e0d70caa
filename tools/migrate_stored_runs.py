"""Rewrites stored runs in the current schema, under the names of the current keys; their numbers stay as they are.

    python tools/migrate_stored_runs.py results/heat results/weather results/ens10 results/images

Run it after a change of `smoe.experiments.migrations.SCHEMA`, and bind the notes anew by tools/bind_notes.py. Nothing
is lost if it is stopped: each file is written whole under its new name before the old one is removed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from smoe._files import write_atomically
from smoe.experiments.migrations import SCHEMA
from smoe.experiments.result_tables.stored_runs import RunStore

# A description of the recipe by its differences from class defaults, which version 1 stored beside it.
_OBSOLETE = ("differences",)


def migrate_folder(folder: Path) -> tuple[int, int]:
    """Rewrites the runs of a folder of results.

    Args:
        folder: Folder with `runs/*.json`.

    Returns:
        Number of runs, and how many of them were rewritten.
    """
    runs = RunStore(folder / "runs").runs()
    old_files = {path for path in (folder / "runs").glob("*.json") if not path.name.startswith("reference-")}
    new_files: set[Path] = set()
    num_rewritten = 0
    for key, result in runs.items():
        kept = {name: value for name, value in result.items() if name not in (*_OBSOLETE, "schema")}
        path = folder / "runs" / f"{key.name}.json"
        text = json.dumps({"schema": SCHEMA, **kept}, indent=1) + "\n"
        if path not in old_files or path.read_text() != text:
            write_atomically(path, lambda file, text=text: file.write(text.encode()))
            num_rewritten += 1
        new_files.add(path)
    for path in old_files - new_files:
        path.unlink()
    return len(runs), num_rewritten


def main(arguments: list[str]) -> int:
    """Migrates the folders that were named."""
    if not arguments:
        sys.stderr.write(f"{__doc__}")
        return 2
    for argument in arguments:
        num_runs, num_rewritten = migrate_folder(Path(argument))
        sys.stdout.write(f"{argument}: {num_rewritten} of {num_runs} runs rewritten\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
