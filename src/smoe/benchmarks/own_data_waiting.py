"""Measures which share of a training step on a user's own data goes to its batch."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from smoe.benchmarks.stored_table import circumstances, write_table
from smoe.regression.grid_regressor import build_net, make_objective, net_shape
from smoe.regression.options import RegressorOptions
from smoe.regression.preparation import Prepared, prepare
from smoe.regression.samples import keep_batch
from smoe.training.batches import ShuffledBatches, load_batches
from smoe.training.freed_memory import keep_freed_memory

_HEAD = ("samples", "net", "batch, ms", "step, ms", "waiting, %")
_STEPS = 10
# Times, rows, columns and input variables; whether a third of the pixels is masked.
_CASES = ((700, 40, 60, 1, True), (300, 32, 64, 10, False), (120, 180, 360, 4, False))
_NETS: tuple[dict[str, Any], ...] = (
    {"net": "layer", "filters": 1},
    {"net": "layer", "filters": 4},
    {"net": "resnet", "filters": 8},
)


def measure_waiting() -> str:
    """Trains nets on noise, stores the table and returns it."""
    torch.set_num_threads(1)
    keep_freed_memory()
    rows = []
    for num_times, height, width, num_variables, is_masked in _CASES:
        x = _noise(num_times, height, width, num_variables, is_masked)
        y = _noise(num_times, height, width, 1, is_masked)
        for net in _NETS:
            options = RegressorOptions(**net)
            with tempfile.TemporaryDirectory() as folder:
                prepared = prepare(x, y, options, {}, cache=Path(folder))
            waiting, step = _steps(prepared, options)
            rows.append(
                {
                    "samples": f"{num_variables} x {height} x {width}{', masked' if is_masked else ''}",
                    "net": f"{net['net']}, {net['filters']} filters",
                    "batch, ms": f"{1e3 * waiting:.2f}",
                    "step, ms": f"{1e3 * step:.1f}",
                    "waiting, %": f"{100.0 * waiting / (waiting + step):.1f}",
                }
            )
    where = circumstances()
    notes = (
        f"{where['processor']}, one thread of torch, commit {where['commit']}, {where['date']}. Batches of 16 from "
        f"memory by the loader of the training loop, which reads one batch ahead in a thread; medians of {_STEPS} "
        "steps. Other work may run beside it."
    )
    path = Path("results/bench") / "own_data_waiting.md"
    return write_table(
        path, "Waiting for batches of own data", "smoe bench own-data --only waiting", _HEAD, rows, notes
    )


def _noise(num_times: int, height: int, width: int, num_variables: int, is_masked: bool) -> Any:
    import xarray as xr

    generator = np.random.default_rng(0)
    times = np.datetime64("2001-01-01") + np.arange(num_times) * np.timedelta64(1, "D")
    fields = {
        f"v{number}": (
            ("time", "lat", "lon"),
            generator.standard_normal((num_times, height, width), dtype=np.float32),
            {"units": "K"},
        )
        for number in range(num_variables)
    }
    coordinates = {
        "time": times.astype("datetime64[ns]"),
        "lat": ("lat", np.linspace(30.0, 60.0, height), {"units": "degrees_north"}),
        "lon": ("lon", np.linspace(0.0, 40.0, width), {"units": "degrees_east"}),
    }
    dataset = xr.Dataset(fields, coords=coordinates)
    is_land = np.random.default_rng(1).random((height, width)) < 1 / 3
    return dataset.where(xr.DataArray(~is_land, dims=("lat", "lon")), np.nan) if is_masked else dataset


def _steps(prepared: Prepared, options: RegressorOptions) -> tuple[float, float]:
    """Median seconds until a batch is there, and of the rest of a step."""
    samples = prepared.splits["train"]
    net, objective = build_net(net_shape(prepared, options), options), make_objective(prepared, options)
    optimizer = torch.optim.Adam(net.parameters(), lr=options.learning_rate)
    waiting, steps = [], []
    batches = _endless(samples, options.batch_size)
    for _ in range(_STEPS + 2):
        start = time.perf_counter()
        input, target = next(batches)
        ready = time.perf_counter()
        loss = objective(net(input), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        waiting.append(ready - start)
        steps.append(time.perf_counter() - ready)
    # The first steps plan the kernels.
    return float(np.median(waiting[2:])), float(np.median(steps[2:]))


def _endless(samples: Any, batch_size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    batches = ShuffledBatches(len(samples), batch_size, seed=0)
    epoch = 0
    while True:
        batches.start(epoch)
        yield from load_batches(samples, batches, keep_batch, "cpu", reads_ahead=True)
        epoch += 1
