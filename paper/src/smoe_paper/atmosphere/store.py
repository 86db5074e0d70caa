"""Stores of fields for training: a folder of float32 arrays (.npy), and `store.json` with what they hold.

Training maps the arrays: a batch through zarr-python takes 20 times as long.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from smoe.errors import DataError
from smoe.training import from_plain, stopped_code, to_plain, write_atomically
from smoe.training.progress import ProgressBar
from smoe_paper.atmosphere.fields import Grid, years_of

DTYPE = np.dtype("<f4")
_REMEDY = "delete the store and run smoe data prepare again"

Plan = TypeVar("Plan")


def map_array(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """An array of a store, mapped; refuses another shape and a file that is cut off."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # a damaged header can make numpy's parser fail in any way
        raise DataError(f"{path} is missing or damaged ({error}): {_REMEDY}") from error
    if array.shape != shape or array.dtype != DTYPE:
        raise DataError(f"{path} is {array.dtype} of {array.shape}, expected {DTYPE} of {shape}: {_REMEDY}")
    return array.view(np.ndarray)


def read_plan(path: Path, format: str, kind: type[Plan]) -> tuple[Plan, dict[str, Any], bool] | None:
    """The plan of a store, what was found for it, and whether it is finished; None if there is no store."""
    file = path / "store.json"
    if not file.is_file():
        return None
    try:
        content = json.loads(file.read_text())
        if content["format"] != format:
            raise DataError(f"{path} is not a {format}: name the folder of one")
        return from_plain(kind, content["plan"]), content["results"], content["is_finished"]
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{file} is damaged ({error}): {_REMEDY}") from error


class Store:
    """A finished store; each process maps its arrays itself."""

    format: ClassVar[str]
    plan_type: ClassVar[type[Any]]
    command: ClassVar[str]

    def __init__(self, path: Path, plan: Any, results: dict[str, Any]) -> None:
        self.path, self.plan, self.results = path, plan, results
        self.grid = Grid(plan.latitude, plan.longitude)

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Opens a finished store after checking its plan and the sizes of its arrays."""
        path = Path(path)
        content = read_plan(path, cls.format, cls.plan_type)
        if content is None:
            raise DataError(
                f"there is no {cls.format} in {path}; make one with {cls.command} --root DATA --output {path}"
            )
        if not content[2]:
            raise DataError(f"the preparation of {path} is not finished; run the same command again to resume")
        return cls(path, *content[:2])

    @classmethod
    def open_named(cls, path: Path | None) -> Self:
        if path is None:
            raise DataError(f"no data are named: make a store with `{cls.command}` and give it as --data.store FOLDER")
        return cls.open(path)

    @property
    def checksum(self) -> str:
        """The SHA-256 of plan and statistics of the fields, to nine digits: the last depend on the order of sums."""
        held = json.dumps([to_plain(self.plan), self.results], sort_keys=True)
        rounded = json.loads(held, parse_float=lambda digits: f"{float(digits):.9g}")
        return hashlib.sha256(json.dumps(rounded).encode()).hexdigest()

    @property
    def valid_times(self) -> np.ndarray:
        """Times that decide to which year a sample belongs."""
        raise NotImplementedError

    def years(self) -> list[int]:
        return sorted(set(years_of(self.valid_times).tolist()))

    def tell_missing_years(self, split: str, years: tuple[int, int], notify: Callable[[str], None]) -> None:
        missing = sorted(set(range(years[0], years[1] + 1)) - set(self.years()))
        if missing:
            notify(
                f"{split}: of the years {years[0]} to {years[1]}, {len(missing)} are not in {self.path}: "
                f"{', '.join(map(str, missing))}"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.plan, self.results)


def run_preparation(work: Callable[[ProgressBar], Any]) -> int:
    """Makes a store with a progress bar and describes it."""
    try:
        with ProgressBar(speed_seconds=600) as progress:
            store = work(progress)
    except KeyboardInterrupt as stop:
        sys.stderr.write("stopped; run the same command again to resume\n")
        return stopped_code(stop)
    sys.stdout.write(store.describe())
    return 0


class StoreWriter:
    """Arrays that are written row by row. What `save` has recorded survives a kill."""

    def __init__(self, path: Path, format: str, plan: Any, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.path, self.shapes, self._head = path, shapes, {"format": format, "plan": to_plain(plan)}
        self.results: dict[str, Any] = {}
        self.is_finished = False
        content = read_plan(path, format, type(plan))
        if content is None:
            for name, shape in shapes.items():
                np.lib.format.open_memmap(path / f"{name}.npy", "w+", DTYPE, shape)
            self.save()
        else:
            old, self.results, self.is_finished = content
            changed = [name for name, part in to_plain(old).items() if part != self._head["plan"][name]]
            if changed:
                what = ", ".join(changed)
                raise DataError(
                    f"{path} holds another store, which differs in {what}: choose another folder, or delete it"
                )

    def array(self, name: str) -> np.ndarray:
        return map_array(self.path / f"{name}.npy", self.shapes[name])

    def write(self, name: str, first: int, rows: np.ndarray) -> None:
        """Writes rows from a number on; not through a map, for which a full disk is a crash."""
        shape = self.shapes[name]
        path = self.path / f"{name}.npy"
        start = path.stat().st_size - DTYPE.itemsize * prod(shape)
        with path.open("r+b") as file:
            file.seek(start + DTYPE.itemsize * first * prod(shape[1:]))
            file.write(np.ascontiguousarray(rows, DTYPE).data)
            file.flush()
            os.fsync(file.fileno())

    def save(self, *, is_finished: bool = False, **results: Any) -> None:
        """Records results, after the rows that were written."""
        self.results, self.is_finished = self.results | results, is_finished
        text = json.dumps({**self._head, "results": self.results, "is_finished": is_finished})
        write_atomically(self.path / "store.json", lambda file: file.write(text.encode()))


@contextmanager
def write_store(
    output: Path, format: str, plan: Any, shapes: Mapping[str, tuple[int, ...]], notify: Callable[[str], None]
) -> Iterator[StoreWriter]:
    """Makes a store, or opens an unfinished one of the same plan; keeps other processes out of it."""
    from filelock import FileLock, Timeout

    if output.exists() and not output.is_dir():
        raise DataError(f"{output} is a file: choose a folder for the store")
    output.mkdir(parents=True, exist_ok=True)
    known = {"store.json", "time.npy", *(f"{name}.npy" for name in shapes)}
    foreign = sorted(path.name for path in output.iterdir() if path.name not in known and path.name[0] != ".")
    if foreign:
        raise DataError(f"{output} holds other files, such as {foreign[0]}: choose an empty folder for the store")
    size = DTYPE.itemsize * sum(map(prod, shapes.values()))
    # An array has its whole length from the start, but takes room as it is written.
    present = sum(512 * path.stat().st_blocks for path in output.iterdir())
    free = shutil.disk_usage(output).free
    text = f"the store takes {size / 1e9:.3g} GB ({free / 1e9:.3g} GB are free)"
    if size - present > free:
        raise DataError(f"{text}: choose another disk than that of {output}, or prepare less")
    try:
        with FileLock(output / ".lock", timeout=0):
            writer = StoreWriter(output, format, plan, shapes)
            notify(f"{output} is finished already: nothing to do" if writer.is_finished else text)
            yield writer
    except Timeout:
        raise DataError(f"another process is preparing {output}: wait for it, or stop it") from None
