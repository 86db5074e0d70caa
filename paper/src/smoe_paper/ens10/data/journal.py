"""Progress of the preparation of an ensemble store; a resumed preparation reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from smoe._integrity import checksum, differences, read_checked_json, write_checked_json
from smoe.errors import DataError
from smoe_paper.ens10.data.store_format import FORMAT, METADATA_FILE, PREPARATION_FILE, VERSION, Metadata, Plan


class Journal:
    """Records in `preparation.json` what is written and on the disk.

    Attributes:
        rows: Checksums of each forecast that is written, by its start and the file.
        steps: Names of other finished steps: channels of the normalisation, parts of the index.
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._path = folder / PREPARATION_FILE
        self._plan = plan.to_plain()
        self.rows: dict[str, dict[str, int]] = {}
        self.steps: list[str] = []

    @classmethod
    def open(cls, folder: Path, plan: Plan) -> Journal:
        """Returns a new journal, or the existing one of the same plan.

        Raises:
            DataError: If the existing journal has another plan.
        """
        journal = cls(folder, plan)
        if journal._path.is_file():
            content = read_checked_json(journal._path, FORMAT, VERSION)
            check_same_plan(content["plan"], plan, f"{folder} holds the beginning of another preparation",
                            f"run that one to its end, or delete {folder}")  # fmt: skip
            journal.rows, journal.steps = content["rows"], content["steps"]
        return journal

    def add_rows(self, rows: dict[str, dict[str, int]]) -> None:
        """Records that forecasts are written; they must have reached the disk."""
        self.rows.update(rows)
        self._write()

    def add_step(self, name: str) -> None:
        """Records that a step is finished; its output must have reached the disk."""
        self.steps.append(name)
        self._write()

    def _write(self) -> None:
        content: dict[str, Any] = {"plan": self._plan, "rows": self.rows, "steps": self.steps}
        write_checked_json(self._path, content, FORMAT, VERSION)


def is_finished(folder: Path, plan: Plan) -> bool:
    """Returns whether the folder holds the planned store, complete.

    Raises:
        DataError: If it holds another store.
    """
    if not (folder / METADATA_FILE).is_file():
        return False
    existing = Metadata.read(folder).plan.to_plain()
    check_same_plan(existing, plan, f"{folder} holds another store", "choose another folder for this one")
    return True


def check_same_plan(old: dict[str, Any], plan: Plan, what: str, remedy: str) -> None:
    """Refuses a plan that differs from the existing one, and names the differences."""
    new = plan.to_plain()
    if checksum(old) != checksum(new):
        raise DataError(f"{what}, which differs in {', '.join(differences(old, new))}: {remedy}")
