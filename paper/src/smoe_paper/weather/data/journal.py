"""Progress of a preparation; a resumed preparation reads it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from smoe._integrity import differences
from smoe.errors import DataError
from smoe.gridded.statistics import Moments
from smoe_paper.weather.data.prepare_plan import Plan
from smoe_paper.weather.data.store_format import PREPARATION_FILE, NaNPolicy, StoredYear, read_json, write_json


class Journal:
    """Records in `preparation.json` the years whose statistics are known and the years that are written.

    Attributes:
        moments: Statistics of each channel, by year.
        years: Years that are written completely and on the disk.
        has_begun: Whether an earlier preparation has done a part.
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._path = folder / PREPARATION_FILE
        self._plan = plan.to_plain()
        self.moments: dict[int, dict[str, Moments]] = {}
        self.years: dict[int, StoredYear] = {}
        self.has_begun = False

    @classmethod
    def open(cls, folder: Path, plan: Plan, finished: tuple[int, ...] = ()) -> Journal:
        """Returns a new journal, or the existing one of the same plan.

        After a refusal of NaNs, a preparation may resume with another policy, because no value was replaced before.

        Args:
            folder: Folder of the store.
            plan: Plan of the preparation.
            finished: Years of the finished store.

        Raises:
            DataError: If the existing journal has another plan.
        """
        journal = cls(folder, plan)
        if not journal._path.is_file():
            return journal
        content = read_json(journal._path)
        if content["plan"]["years"] and all(span["year"] in finished for span in content["plan"]["years"]):
            # Stopped after its last step: the store is complete, only the journal was not removed.
            return journal
        if not content["moments"] and not content["years"]:
            return journal
        changed = differences(content["plan"], journal._plan)
        if changed == ["on_nan"] and _gives_the_same(content["plan"]["on_nan"], plan.on_nan):
            changed = []
        if changed:
            raise DataError(
                f"{folder} holds the beginning of another preparation, which differs in {', '.join(changed)}: run "
                f"that one to its end, or delete {journal._path}"
            )
        for year, channels in content["moments"].items():
            journal.moments[int(year)] = {channel: Moments(*values) for channel, values in channels.items()}
        for year in content["years"]:
            journal.years[year["year"]] = StoredYear(**year)
        journal.has_begun = bool(journal.moments or journal.years)
        return journal

    def begin(self) -> None:
        """Writes the plan, before anything is done."""
        self._write()

    def add_moments(self, year: int, moments: dict[str, Moments]) -> None:
        """Records the statistics of a year."""
        self.moments[year] = moments
        self._write()

    def add_year(self, year: StoredYear) -> None:
        """Records that a year is written; it must have reached the disk."""
        self.years[year.year] = year
        self._write()

    def _write(self) -> None:
        content: dict[str, Any] = {
            "plan": self._plan,
            "moments": {
                str(year): {channel: [value.count, value.mean, value.squares] for channel, value in channels.items()}
                for year, channels in self.moments.items()
            },
            "years": [asdict(year) for year in self.years.values()],
        }
        write_json(self._path, content)


def _gives_the_same(old: NaNPolicy, new: NaNPolicy) -> bool:
    """Returns whether the results under the old policy, without a refusal, equal those under the new one."""
    return old == "refuse" or (old, new) == ("zero-tisr", "zero")
