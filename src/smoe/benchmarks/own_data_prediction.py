"""Measures the memory that `smoe predict` takes for files of several sizes."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from smoe.benchmarks.own_data_store import VARIABLES, row_bytes, write_store
from smoe.benchmarks.stored_table import circumstances, write_table

_HEAD = ("output", "GB of inputs", "seconds", "processor seconds", "most memory, MB")

_MEASURE = """
import json, sys, threading, time
from pathlib import Path
import torch
import smoe
from smoe.gridded.open_fields import open_fields
from smoe.regression.run_files import write_predictions
torch.set_num_threads(1)

def memory():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1e3

store, output, limit, times = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
few = open_fields(store).isel(time=slice(0, 20))
model = smoe.GridRegressor("layer", filters=1, max_epochs=1, compare="no", max_memory_gb=limit, progress=False)
model.fit(few, few[["v0"]] * 2.0)
dataset = open_fields(store).isel(time=slice(0, times))
before, peak, done = memory(), [0.0], threading.Event()

def watch():
    while not done.wait(0.01):
        peak[0] = max(peak[0], memory())

threading.Thread(target=watch, daemon=True).start()
wall, processor = time.perf_counter(), time.process_time()
write_predictions(model, dataset, output)
print(json.dumps({"wall": time.perf_counter() - wall, "processor": time.process_time() - processor,
                  "peak": peak[0] - before}))
"""


def measure_prediction(options: argparse.Namespace) -> str:
    """Predicts from a part of a store and from the whole, and stores the table.

    Args:
        options: With `folder`, `max_memory_gb` and `times_the_bound`.
    """
    num_times = round(options.times_the_bound * options.max_memory_gb * 1e9 / row_bytes() / 10) * 10
    rows = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        store = Path(folder) / "inputs.zarr"
        write_store(store, num_times)
        for suffix in ("nc", "zarr"):
            for part in (num_times // 4, num_times):
                output = Path(folder) / f"predicted-{part}.{suffix}"
                arguments = [str(store), str(output), str(options.max_memory_gb), str(part)]
                command = [sys.executable, "-c", _MEASURE, *arguments]
                found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
                rows.append(
                    {
                        "output": {"nc": "NetCDF", "zarr": "Zarr"}[suffix],
                        "GB of inputs": f"{part * row_bytes() / 1e9:.2f}",
                        "seconds": f"{found['wall']:.1f}",
                        "processor seconds": f"{found['processor']:.1f}",
                        "most memory, MB": f"{found['peak']:.0f}",
                    }
                )
    where = circumstances()
    notes = (
        f"{where['processor']}, {where['cores']} cores, commit {where['commit']}, {where['date']}. Chunked Zarr of "
        f"{VARIABLES} variables of 180 x 360; one SMoE layer predicts one variable. Fields may take "
        f"{options.max_memory_gb:g} GB (`max_memory_gb`). Memory is above that of the start, without pages of mapped "
        "files. Other work may run beside it: compare the processor seconds."
    )
    path = Path("results/bench") / "own_data_prediction.md"
    command = (
        f"smoe bench own-data --only prediction --max-memory-gb {options.max_memory_gb:g} --times-the-bound "
        f"{options.times_the_bound:g}"
    )
    return write_table(path, "Predicting from files larger than memory", command, _HEAD, rows, notes)
