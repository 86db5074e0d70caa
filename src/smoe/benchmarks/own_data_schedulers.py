"""Measures how preparing a user's own data gains from reading by threads, processes and a cluster."""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from smoe.benchmarks.own_data_store import VARIABLES, row_bytes, write_store
from smoe.benchmarks.stored_table import circumstances, write_table

_HEAD = ("files", "read by", "GB read", "seconds", "processor seconds", "gain over serial", "disk alone, seconds")

_MEASURE = """
import json, os, sys, time
from pathlib import Path
import torch
from smoe.gridded.open_fields import open_fields
from smoe.gridded.schedulers import reading_by
from smoe.regression.options import RegressorOptions
from smoe.regression.preparation import prepare

if __name__ == "__main__":
    torch.set_num_threads(1)
    scheduler, store, cache, limit = sys.argv[1], sys.argv[2], Path(sys.argv[3]), float(sys.argv[4])
    cluster = None
    if scheduler == "cluster":
        from distributed import LocalCluster
        cluster = LocalCluster(n_workers=os.cpu_count(), threads_per_worker=1, dashboard_address=None)
        scheduler = cluster.scheduler_address
    dataset = open_fields(store)
    options = RegressorOptions(lead="1D", max_memory_gb=limit)
    before, wall = os.times(), time.perf_counter()
    with reading_by(scheduler):
        prepare(store, dataset[["v0"]], options, {}, cache=cache)
    wall = time.perf_counter() - wall
    if cluster is not None:
        cluster.close()
    after = os.times()
    print(json.dumps({"wall": wall, "processor": sum(after[:4]) - sum(before[:4])}))
"""


def measure_schedulers(options: argparse.Namespace) -> str:
    """Prepares one store as Zarr and as NetCDF by each scheduler, by turns, and stores the quickest of each.

    Args:
        options: With `folder`, `schedulers_gb` and `rounds`.
    """
    num_times = round(options.schedulers_gb * 1e9 / row_bytes() / 10) * 10
    kinds = ["serial", "threads", "processes"]
    kinds += ["cluster"] if importlib.util.find_spec("distributed") is not None else []
    rows: list[dict[str, str]] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        stores = {"Zarr, Zstandard": Path(folder) / "inputs.zarr", "NetCDF, zlib": Path(folder) / "inputs.nc"}
        write_store(stores["Zarr, Zstandard"], num_times)
        _write_netcdf(stores["Zarr, Zstandard"], stores["NetCDF, zlib"])
        (Path(folder) / "measure.py").write_text(_MEASURE)
        for files, store in stores.items():
            disk = _disk_seconds(store)
            found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
            for number in range(options.rounds):
                for kind, results in found.items():
                    results.append(_measure(folder, kind, store, number))
            rows += _rows(files, found, num_times, disk)
    where = circumstances()
    notes = (
        f"{where['processor']}, {where['cores']} cores, commit {where['commit']}, {where['date']}. {num_times} times "
        f"of {VARIABLES} variables of noise, one of which is a target too; fields may take 0.25 GB and are streamed. "
        f"The quickest of {options.rounds} rounds by turns, with the start of processes; a cluster has a process for "
        "each core and is running before. Results are bit-equal (tests/gridded/test_schedulers.py). Disk alone: `cat` "
        "of the same files, from the cache of the system where it holds them. Other work may run beside it: seconds "
        "are then longer and gains smaller than on an idle machine."
    )
    path = Path("results/bench") / "own_data_schedulers.md"
    command = (
        f"smoe bench own-data --only schedulers --schedulers-gb {options.schedulers_gb:g} --rounds {options.rounds}"
    )
    return write_table(path, "Reading own data side by side", command, _HEAD, rows, notes)


def _measure(folder: str, kind: str, store: Path, number: int) -> dict[str, float]:
    cache = f"{folder}/cache-{kind}-{number}"
    command = [sys.executable, f"{folder}/measure.py", kind, str(store), cache, "0.25"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    subprocess.run(["rm", "-rf", cache], check=True)
    return json.loads(output.strip().splitlines()[-1])


def _rows(files: str, found: dict[str, list[dict[str, float]]], num_times: int, disk: float) -> list[dict[str, str]]:
    walls = {kind: min(each["wall"] for each in results) for kind, results in found.items()}
    gigabytes = (1 + 1 / VARIABLES) * num_times * row_bytes() / 1e9
    return [
        {
            "files": files,
            "read by": kind,
            "GB read": f"{gigabytes:.2f}",
            "seconds": f"{wall:.1f}",
            "processor seconds": f"{min(each['processor'] for each in found[kind]):.1f}",
            "gain over serial": f"{walls['serial'] / wall:.2f}",
            "disk alone, seconds": f"{disk:.1f}",
        }
        for kind, wall in walls.items()
    ]


def _write_netcdf(store: Path, path: Path) -> None:
    import xarray as xr

    dataset = xr.open_zarr(store, chunks={}, consolidated=False)
    encoding: dict[str, Any] = {
        str(name): {"zlib": True, "complevel": 1, "chunksizes": (10, *array.shape[1:])}
        for name, array in dataset.data_vars.items()
    }
    for array in dataset.variables.values():
        array.encoding = {}
    dataset.to_netcdf(path, engine="netcdf4", encoding=encoding)


def _disk_seconds(path: Path) -> float:
    import time

    start = time.perf_counter()
    subprocess.run(f"find '{path}' -type f -exec cat {{}} + > /dev/null", shell=True, check=True)
    return time.perf_counter() - start
