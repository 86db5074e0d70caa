"""Sentences about stored results, kept beside them and printed only while they speak about what is stored.

`notes.json` in the folder of the results holds, for each note, the table, the row or none for the whole table, the
text, and a fingerprint of each run that the text is about. If a run is missing, new or different, the note is not
printed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smoe._files import write_atomically
from smoe.experiments.result_tables.stored_runs import RunStore, StoredRunError, identity_of
from smoe.experiments.result_tables.tables import ResultTable, Row, TableSet

FILE = "notes.json"


@dataclass(frozen=True)
class Note:
    """A text about stored results.

    Attributes:
        table: Name of the table.
        row: Label of the row; None for the whole table.
        text: The sentences.
        runs: Fingerprints of the runs that the text is about.
    """

    table: str
    row: str | None
    text: str
    runs: frozenset[str]


class Notes:
    """The notes of a folder of results.

    Args:
        notes: The notes, whichever runs they are about.
    """

    def __init__(self, notes: Iterable[Note] = ()) -> None:
        self.notes = list(notes)

    @classmethod
    def read(cls, folder: Path) -> Notes:
        """The notes beside the results in a folder; none if there is no file."""
        path = folder / FILE
        if not path.exists():
            return cls()
        try:
            entries = json.loads(path.read_text())
            return cls(Note(entry["table"], entry["row"], entry["text"], frozenset(entry["runs"])) for entry in entries)
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise StoredRunError(f"{path} is damaged: {error}") from error

    def write(self, folder: Path) -> None:
        """Writes the notes into a folder of results."""
        entries = [
            {"table": note.table, "row": note.row, "text": note.text, "runs": sorted(note.runs)} for note in self.notes
        ]
        text = json.dumps(entries, indent=1, ensure_ascii=False) + "\n"
        write_atomically(folder / FILE, lambda file: file.write(text.encode()))

    def about(self, table: str, row: str | None, runs: frozenset[str]) -> str:
        """The text about a row, or about a whole table, if it speaks about exactly these runs; else empty."""
        found = (note.text for note in self.notes if (note.table, note.row) == (table, row) and note.runs == runs)
        return next(found, "")

    def bound_to(self, tables: TableSet, store: RunStore) -> Notes:
        """The same texts, about the runs that are stored now."""
        by_name = {table.name: table for table in tables.tables}
        bound: list[Note] = []
        for note in self.notes:
            table = by_name[note.table]
            rows = [row for row in table.rows if note.row in (None, row.label)]
            if not rows:
                raise ValueError(f"{note.table} has no row {note.row!r}")
            runs = frozenset[str]().union(*(runs_of_row(tables, row, store) for row in rows))
            bound.append(Note(note.table, note.row, note.text, runs))
        return Notes(bound)


def runs_of_row(tables: TableSet, row: Row, store: RunStore) -> frozenset[str]:
    """Fingerprints of the stored runs of a row, at all scales."""
    results = (store.read_all_seeds(scale.recipe(row, seed=0)) for scale in tables.scales)
    return frozenset(fingerprint(result) for of_scale in results for result in of_scale)


def runs_of_table(tables: TableSet, table: ResultTable, store: RunStore) -> frozenset[str]:
    """Fingerprints of the stored runs of all rows."""
    return frozenset[str]().union(*(runs_of_row(tables, row, store) for row in table.rows))


def fingerprint(result: dict[str, Any]) -> str:
    """A short text that changes with the recipe, the seed and the results of a run."""
    content = json.dumps([identity_of(result["recipe"]), result["seed"], result["test"]], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:12]
