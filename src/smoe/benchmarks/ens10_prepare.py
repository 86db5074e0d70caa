"""Measures the memory that the preparation of an ENS-10 store takes at full size, 361 x 720.

Run: smoe bench ens10-prepare [--folder DIR]. It writes ten forecasts with their members (1.6 GB) there for
the time it runs, a few minutes. Prints the table and stores it in results/bench.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

_STARTS = np.array(
    [f"{year}-{day}" for year in (1998, 1999) for day in ("01-01", "01-04", "01-08", "01-11", "01-15")], "datetime64[D]"
)
_COLUMNS = ("source", "members", "forecasts", "seconds", "seconds a forecast", "peak MB", "of which before reading")

_PREPARE = """
import json, sys, time
from pathlib import Path
from smoe.paper.ens10.data.open_ens10 import open_ens10
from smoe.paper.ens10.data.prepare import prepare
from smoe.paper.ens10.data.prepare_plan import Preparation
import xarray, netCDF4

class Silent:
    def notify(self, text): pass
    def begin(self, total, done): pass
    def advance(self, text): pass

def peak():
    # Unlike ru_maxrss, which a child inherits from the process that started it.
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1e3

root, output, members = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
before, start = peak(), time.perf_counter()
with open_ens10(root, "z500", members) as source:
    store = prepare(source, root, output, Preparation(train_years=(1998, 1998)), Silent())
print(json.dumps({"source": source.kind, "members": members, "forecasts": len(store.dates),
                  "seconds": time.perf_counter() - start, "peak": peak(), "before": before}))
"""


def write_forecasts(root: Path) -> None:
    """Ten forecasts at full size: members, statistics and truth."""
    from smoe.paper.ens10.data.global_grid import ENS10_GRID
    from smoe.paper.ens10.data.write_layout import write_members, write_statistics, write_truth

    noise = np.random.default_rng(0).normal(size=(10, *ENS10_GRID.shape)).astype(np.float32)
    sizes = {"Z": 800.0, "T": 8.0, "Q": 1e-3, "W": 0.3, "D": 1e-5, "U": 8.0, "V": 8.0}
    means = {("Z", 500): 54000.0, ("Z", 850): 14000.0, ("T", 500): 255.0, ("T", 850): 275.0}

    def truth(start: np.datetime64) -> np.ndarray:
        return np.roll(noise[0], 17 * int(start.astype(np.int64)), axis=-1)

    def members(name: str, level: int | None, start: np.datetime64) -> np.ndarray:
        mean = means.get((name, level or 0), 0.0)
        return mean + sizes[name] * (
            truth(start) + np.float32(0.2) * np.roll(noise, int(start.astype(np.int64)), axis=1)
        )

    for start in _STARTS:
        write_members(root, "pl", start, ENS10_GRID, members)
    write_statistics(root, "pl", _STARTS, ENS10_GRID, members)
    fields = np.stack([54000.0 + 800.0 * truth(start) for start in _STARTS])
    write_truth(root, "z500", _STARTS, ENS10_GRID, fields)


def measure(root: Path, output: Path, members: int) -> dict[str, object]:
    """Prepares in a process of its own, whose largest resident size is what counts."""
    command = [sys.executable, "-c", _PREPARE, str(root), str(output), str(members)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return {
        "source": found["source"],
        "members": found["members"],
        "forecasts": found["forecasts"],
        "seconds": f"{found['seconds']:.1f}",
        "seconds a forecast": f"{found['seconds'] / found['forecasts']:.2f}",
        "peak MB": f"{found['peak']:.0f}",
        "of which before reading": f"{found['before']:.0f}",
    }


def main(args: list[str] | None = None) -> None:
    """Writes the forecasts, prepares them from members and from statistics, and stores the table."""
    parser = argparse.ArgumentParser("smoe bench ens10-prepare", description=__doc__)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args(args)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        root = Path(folder) / "ens10"
        start = time.perf_counter()
        write_forecasts(root)
        print(f"written in {time.perf_counter() - start:.0f} s")
        rows = [measure(root, Path(folder) / f"store{members}", members) for members in (5, 10)]

    from smoe.benchmarks.stored_table import circumstances, write_table

    where = circumstances()
    notes = (
        f"{where['processor']}, {where['cores']} cores, commit {where['commit']}, {where['date']}. Z500 at 361 x 720, "
        "14 channels, with the extreme forecast index of five forecasts. The peak holds mapped pages of the files and "
        "the index's part of the climate, at most 200 MB, of which more forecasts take fewer rows of the grid. By "
        "construction it does not grow with the number of forecasts; ten were measured. Other work ran beside it, so "
        "the seconds are an upper bound."
    )
    command = "smoe bench ens10-prepare"
    path = Path("results/bench") / "ens10_prepare.md"
    print(write_table(path, "Preparing ENS-10 at full size", command, _COLUMNS, rows, notes))


if __name__ == "__main__":
    main()
