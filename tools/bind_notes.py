"""Binds the notes beside stored results to the runs that are stored now, after somebody has read them again.

    python tools/bind_notes.py heat            # all notes of results/heat
    python tools/bind_notes.py heat --check    # print the notes that are not printed in the tables now

A note is printed only while the runs it speaks about are the stored ones. After new runs, read the notes that `--check`
prints, change what is no longer true in results/EXPERIMENT/notes.json, and bind them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from smoe.experiments.registry import find_experiment
from smoe.experiments.result_tables.notes import Note, Notes
from smoe.experiments.result_tables.stored_runs import RunStore


def unbound_notes(name: str, folder: Path) -> list[Note]:
    """The notes of an experiment that speak about other runs than those stored in a folder."""
    notes = Notes.read(folder)
    bound = notes.bound_to(find_experiment(name).tables, RunStore(folder / "runs"))
    return [old for old, new in zip(notes.notes, bound.notes, strict=True) if old.runs != new.runs]


def bind(name: str, folder: Path) -> int:
    """Binds all notes of an experiment and returns how many changed."""
    num_changed = len(unbound_notes(name, folder))
    Notes.read(folder).bound_to(find_experiment(name).tables, RunStore(folder / "runs")).write(folder)
    return num_changed


def main(arguments: list[str]) -> int:
    """Binds or checks the notes of the experiment that was named."""
    names = [argument for argument in arguments if argument != "--check"]
    if not names:
        sys.stderr.write(f"{__doc__}")
        return 2
    code = 0
    for name in names:
        folder = Path("results") / name
        if "--check" in arguments:
            unbound = unbound_notes(name, folder)
            code = code or int(bool(unbound))
            for note in unbound:
                sys.stdout.write(f"{note.table}, {note.row or 'the whole table'}: {note.text}\n")
        else:
            sys.stdout.write(f"{name}: {bind(name, folder)} notes bound anew\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
