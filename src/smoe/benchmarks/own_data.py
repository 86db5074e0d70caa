"""Measures the preparation of data that are four times larger than the memory they may take.

Run: smoe bench own-data [--folder DIR] [--max-memory-gb 0.5]. It writes a chunked Zarr store of 2 GB there for the time
it runs, reads it block by block with xarray, and streams it as `smoe fit` does. Prints the table and stores it in
results/bench.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

_VARIABLES, _ROWS, _COLUMNS, _CHUNK = 4, 180, 360, 10
_HEAD = ("what", "GB", "seconds", "processor seconds", "MB/s", "most memory above the start, MB")

_MEASURE = """
import json, sys, threading, time
from pathlib import Path
import torch
from smoe.gridded.open_fields import open_fields
from smoe.regression.options import RegressorOptions
from smoe.regression.preparation import prepare
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


def write_store(path: Path, num_times: int) -> None:
    """Writes noise, chunk by chunk."""
    import zarr

    group = zarr.open_group(path, mode="w")
    axes = {
        "time": (np.arange(num_times), {"units": "days since 2000-01-01", "calendar": "standard"}),
        "lat": (np.linspace(-89.5, 89.5, _ROWS), {"units": "degrees_north"}),
        "lon": (np.arange(0.5, 360.0), {"units": "degrees_east"}),
    }
    for name, (values, attributes) in axes.items():
        array = group.create_array(name, shape=values.shape, dtype=values.dtype, dimension_names=[name])
        array[:] = values
        array.attrs.update(attributes)
    generator = np.random.default_rng(0)
    for number in range(_VARIABLES):
        shape, chunks = (num_times, _ROWS, _COLUMNS), (_CHUNK, _ROWS, _COLUMNS)
        dims = ["time", "lat", "lon"]
        array = group.create_array(f"v{number}", shape=shape, chunks=chunks, dtype="float32", dimension_names=dims)
        for first in range(0, num_times, _CHUNK):
            array[first : first + _CHUNK] = generator.standard_normal(chunks, dtype=np.float32)


def main(args: list[str] | None = None) -> None:
    """Writes the store, measures each way in a process of its own, and stores the table."""
    parser = argparse.ArgumentParser("smoe bench own-data", description=__doc__)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--max-memory-gb", type=float, default=0.5)
    options = parser.parse_args(args)
    row_bytes = 4 * _VARIABLES * _ROWS * _COLUMNS
    num_times = round(4.0 * options.max_memory_gb * 1e9 / row_bytes / _CHUNK) * _CHUNK
    rows = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        store = Path(folder) / "inputs.zarr"
        write_store(store, num_times)
        for kind, what, size in (
            ("read", "xarray, 100 times at once", 1.0),
            ("prepare", "streamed, checked, statistics; one variable is a target too", 1.0 + 1.0 / _VARIABLES),
        ):
            command = [sys.executable, "-c", _MEASURE, kind, str(store), f"{folder}/cache", str(options.max_memory_gb)]
            found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            gigabytes = size * num_times * row_bytes / 1e9
            rows.append(
                {
                    "what": what,
                    "GB": f"{gigabytes:.2f}",
                    "seconds": f"{found['wall']:.1f}",
                    "processor seconds": f"{found['processor']:.1f}",
                    "MB/s": f"{1e3 * gigabytes / found['wall']:.0f}",
                    "most memory above the start, MB": f"{found['peak']:.0f}",
                }
            )

    from smoe.benchmarks.stored_table import circumstances, write_table

    where = circumstances()
    notes = (
        f"{where['processor']}, {where['cores']} cores, commit {where['commit']}, {where['date']}. Chunked Zarr "
        f"(Zstandard) of {num_times} times, {_VARIABLES} variables of {_ROWS} x {_COLUMNS}; the fields may take "
        f"{options.max_memory_gb:g} GB (`max_memory_gb`). Other work ran beside it: compare the processor seconds."
    )
    path = Path("results/bench") / "own_data.md"
    command = f"smoe bench own-data --max-memory-gb {options.max_memory_gb:g}"
    print(write_table(path, "Preparing data larger than memory", command, _HEAD, rows, notes))


if __name__ == "__main__":
    main()
