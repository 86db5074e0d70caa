"""Tries the cases of a kind, keeps what came of them, and goes on where it was stopped."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from faults.isolation import try_isolated
from faults.outcome import BAD, VERDICTS, Kind, Outcome
from smoe._files import write_atomically
from smoe.benchmarks.stored_table import circumstances, origin, write_table

_SECONDS_BETWEEN_SAVES = 10.0
_NUM_KEPT = 50


class Campaign:
    """All cases of a kind.

    Args:
        kind: Kind of fault.
        share: Share of its cases.
        state: Folder in which the state is kept; None keeps none.
        restart: Forget an earlier state.
        any_commit: Keep the state of another commit, which the table names.
    """

    def __init__(
        self,
        kind: Kind,
        share: float = 1.0,
        state: Path | None = None,
        *,
        restart: bool = False,
        any_commit: bool = False,
    ) -> None:
        self.kind = kind
        self.number = math.ceil(kind.number * share)
        self.counts: Counter[str] = Counter()
        self.bad: list[str] = []
        self.seconds = 0.0
        # The load of the machine, now and then: it tells whether the seconds mean anything.
        self._loads: list[float] = []
        self._file = None if state is None else state / f"{kind.name}.json"
        self._origin = circumstances()
        if not restart:
            self.load(any_commit=any_commit)

    def load(self, *, any_commit: bool = False) -> None:
        """Reads the outcomes that are stored; those of another commit say nothing about this one."""
        if self._file is None or not self._file.is_file():
            return
        stored = json.loads(self._file.read_text())
        if any_commit or stored["commit"] == self._origin["commit"]:
            self.counts, self.bad, self.seconds = Counter(stored["counts"]), stored["bad"], stored["seconds"]
            self._loads = stored.get("loads", [])
            self._origin = {name: stored[name] for name in self._origin}

    @property
    def num_tried(self) -> int:
        """Number of cases that were tried."""
        return self.counts.total()

    @property
    def num_bad(self) -> int:
        """Number of cases that came to a bad end."""
        return sum(self.counts[verdict] for verdict in BAD)

    def run(self, report: Callable[[str], object]) -> None:
        """Tries the cases that are left."""
        started = saved = time.monotonic()
        before = self.seconds
        with _Folder() as folder:
            for outcome in self._outcomes(Path(folder)) if self.num_tried < self.number else ():
                self.counts[outcome.verdict] += 1
                if outcome.verdict in BAD:
                    report(f"{self.kind.name} {self.num_tried - 1}: {outcome.verdict}: {outcome.detail}")
                    self.bad = [*self.bad, f"{self.num_tried - 1}: {outcome.verdict}: {outcome.detail}"][:_NUM_KEPT]
                self.seconds = before + time.monotonic() - started
                if time.monotonic() - saved > _SECONDS_BETWEEN_SAVES:
                    self._save()
                    saved = time.monotonic()
        self._save()
        report(
            f"{self.kind.name}: {self.num_tried} tried, {self.num_bad} bad: {dict(self.counts)}, {self.seconds:.0f} s"
        )

    def try_one(self, number: int) -> Outcome:
        """Tries a case again."""
        with _Folder() as folder:
            return self.kind.prepare(Path(folder))(number)

    def row(self) -> dict[str, object]:
        """The row of the table."""
        counts = {verdict: self.counts[verdict] for verdict in VERDICTS}
        row = {"fault": self.kind.title, "tried": self.num_tried, "of": self.kind.number, **counts}
        load = round(sum(self._loads) / len(self._loads), 1) if self._loads else None
        origin = {**self._origin, "commit": self._origin["commit"][:8]}
        return {**row, "seconds": round(self.seconds), "load": load, **origin}

    def _outcomes(self, folder: Path) -> Iterator[Outcome]:
        torch.set_num_threads(1)
        numbers = range(self.num_tried, self.number)
        if self.kind.is_isolated:
            return try_isolated(lambda: self.kind.prepare(folder), numbers, self.kind.seconds)
        return map(self.kind.prepare(folder), numbers)

    def _save(self) -> None:
        self._loads.append(os.getloadavg()[0])
        if self._file is not None:
            content = {
                "counts": self.counts,
                "bad": self.bad,
                "seconds": self.seconds,
                "loads": self._loads,
                **self._origin,
            }
            text = json.dumps(content, indent=1)
            write_atomically(self._file, lambda file: file.write(text.encode()))


def run_side_by_side(campaigns: Sequence[Campaign], jobs: int, report: Callable[[str], object]) -> list[str]:
    """Runs each kind in a forked process, several at a time; returns the names of those that could not be run.

    What a process found is read from the state that it stored.
    """
    waiting, active, failed = list(campaigns), {}, []
    while waiting or active:
        while waiting and len(active) < jobs:
            campaign = waiting.pop(0)
            child = os.fork()
            if child == 0:
                _run_and_leave(campaign, report)
            active[child] = campaign
        child, status = os.wait()
        campaign = active.pop(child)
        campaign.load()
        if status:
            failed.append(campaign.kind.name)
            report(f"{campaign.kind.name}: could not be run to its end, code {os.waitstatus_to_exitcode(status)}")
    return failed


def _run_and_leave(campaign: Campaign, report: Callable[[str], object]) -> None:
    try:
        campaign.run(report)
    except BaseException:  # nothing of the process that forked may run here
        traceback.print_exc()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)


class _Folder(tempfile.TemporaryDirectory[str]):
    """A temporary folder that goes even if a mount or a file in it was made read-only."""

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.name, ignore_errors=True)
        self._finalizer.detach()  # type: ignore[attr-defined]


def write_results(output: Path, campaigns: Sequence[Campaign], note: str = "") -> None:
    """Writes the table, the bad outcomes and a note."""
    campaigns = [campaign for campaign in campaigns if campaign.num_tried]
    rows = [campaign.row() for campaign in campaigns]
    lines = [f"- `{verdict}`: {meaning}." for verdict, meaning in VERDICTS.items()]
    lines += ["", "The number of cases of a whole run is in the column `of`; `load` is the mean load of the machine."]
    lines += ["", origin(rows[0])] if rows else []
    lines += ["", note] if note else []
    lines += [""] if any(campaign.bad for campaign in campaigns) else []
    for campaign in campaigns:
        lines += [f"- {campaign.kind.name} {text.splitlines()[0][:200]}" for text in campaign.bad]
    columns = ("fault", "tried", "of", *VERDICTS, "seconds", "load", "commit", "date")
    write_table(output / "faults.md", "Faults", "make faults", columns, rows, "\n".join(lines))
