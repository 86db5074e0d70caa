"""Measures how a user's own data are prepared.

Run: smoe bench own-data [--folder DIR] [--max-memory-gb 0.5] [--times-the-bound 4] [--rounds 3]. It writes a chunked
Zarr store there that is several times larger than the memory that fields may take, reads it block by block with xarray,
and streams it as `smoe fit` does, by turns. Prints the table and stores it in paper/results/bench.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from smoe_paper.benchmarks.timing import circumstances, write_table

VARIABLES, ROWS, COLUMNS, CHUNK = 4, 180, 360, 10

_HEAD = ("what", "GB read", "seconds", "processor seconds", "MB/s", "MB/s of a processor", "most memory, MB")

_MEASURE = """
import json, sys, threading, time
from pathlib import Path
import torch
from smoe.gridded import open_fields
from smoe.regression._options import RegressorOptions
from smoe.regression._preparation import prepare
torch.set_num_threads(1)

def memory():
    # Anonymous memory: pages of mapped files are given back when others need them.
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1e3

kind, store, cache, limit = sys.argv[1], sys.argv[2], Path(sys.argv[3]), float(sys.argv[4])
dataset = open_fields(store)
before, peak, done = memory(), [0.0], threading.Event()

def watch():
    while not done.wait(0.01):
        peak[0] = max(peak[0], memory())

threading.Thread(target=watch, daemon=True).start()
wall, processor = time.perf_counter(), time.process_time()
if kind == "read":
    for first in range(0, dataset.sizes["time"], 100):
        dataset.isel(time=slice(first, first + 100)).load()
else:
    prepare(store, dataset[["v0"]], RegressorOptions(lead="1D", max_memory_gb=limit), {}, cache=cache)
print(json.dumps({"wall": time.perf_counter() - wall, "processor": time.process_time() - processor,
                  "peak": peak[0] - before}))
"""


def main(args: list[str] | None = None) -> None:
    """Measures each way in a process of its own, by turns, and stores the medians."""
    parser = argparse.ArgumentParser("smoe bench own-data", description=__doc__)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--max-memory-gb", type=float, default=0.5)
    parser.add_argument("--times-the-bound", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(args)
    num_times = round(options.times_the_bound * options.max_memory_gb * 1e9 / row_bytes() / CHUNK) * CHUNK
    ways = {
        "read": ("xarray.load, 100 times at once", 1.0),
        "prepare": ("`smoe fit`: read, checked, written, statistics; one variable is a target too", 1 + 1 / VARIABLES),
    }
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in ways}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        store = Path(folder) / "inputs.zarr"
        write_store(store, num_times)
        for number in range(options.rounds):
            for kind, results in found.items():
                cache = f"{folder}/cache-{number}"
                command = [sys.executable, "-c", _MEASURE, kind, str(store), cache, str(options.max_memory_gb)]
                results.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
                subprocess.run(["rm", "-rf", cache], check=True)
    rows = []
    for kind, (what, size) in ways.items():
        wall, processor, peak = (
            statistics.median(each[name] for each in found[kind]) for name in ("wall", "processor", "peak")
        )
        gigabytes = size * num_times * row_bytes() / 1e9
        rows.append(
            {
                "what": what,
                "GB read": f"{gigabytes:.2f}",
                "seconds": f"{wall:.1f}",
                "processor seconds": f"{processor:.1f}",
                "MB/s": f"{1e3 * gigabytes / wall:.0f}",
                "MB/s of a processor": f"{1e3 * gigabytes / processor:.0f}",
                "most memory, MB": f"{peak:.0f}",
            }
        )

    where = circumstances()
    notes = (
        f"{where['processor']}, {where['cores']} cores, commit {where['commit']}, {where['date']}. Medians of "
        f"{options.rounds} rounds by turns. Chunked Zarr (Zstandard, noise) of {num_times} times, {VARIABLES} "
        f"variables of {ROWS} x {COLUMNS}, {options.times_the_bound:g} times the {options.max_memory_gb:g} GB that "
        "fields may take (`max_memory_gb`). Memory is above that of the start, without pages of mapped files. Other "
        "work may run beside it: compare the processor seconds."
    )
    path = Path("paper/results/bench") / "own_data.md"
    command = (
        f"smoe bench own-data --max-memory-gb {options.max_memory_gb:g} --times-the-bound "
        f"{options.times_the_bound:g} --rounds {options.rounds}"
    )
    print(write_table(path, "Preparing data larger than memory", command, _HEAD, rows, notes))


def row_bytes() -> int:
    """Bytes of all variables at one time."""
    return 4 * VARIABLES * ROWS * COLUMNS


def write_store(path: Path, num_times: int) -> None:
    """Writes noise, chunk by chunk."""
    import zarr

    group = zarr.open_group(path, mode="w")
    axes = {
        "time": (np.arange(num_times), {"units": "days since 2000-01-01", "calendar": "standard"}),
        "lat": (np.linspace(-89.5, 89.5, ROWS), {"units": "degrees_north"}),
        "lon": (np.arange(0.5, 360.0), {"units": "degrees_east"}),
    }
    for name, (values, attributes) in axes.items():
        array = group.create_array(name, shape=values.shape, dtype=values.dtype, dimension_names=[name])
        array[:] = values
        array.attrs.update(attributes)
    generator = np.random.default_rng(0)
    for number in range(VARIABLES):
        shape, chunks = (num_times, ROWS, COLUMNS), (CHUNK, ROWS, COLUMNS)
        dims = ["time", "lat", "lon"]
        array = group.create_array(f"v{number}", shape=shape, chunks=chunks, dtype="float32", dimension_names=dims)
        for first in range(0, num_times, CHUNK):
            array[first : first + CHUNK] = generator.standard_normal(chunks, dtype=np.float32)
