"""Counts the samples per second that a weather store gives, beside those that a training step takes.

Run: smoe bench weather-samples [--folder DIR]. It writes a store of 0.46 GB there for the time it runs (two
minutes). Prints the table and stores it in results/bench.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from rich.progress import track
from torch.utils.data import DataLoader

from smoe.benchmarks.stored_table import circumstances, write_table
from smoe.models import WeatherResNet
from smoe.paper.weather.data import DEFAULT_CONSTANTS, DEFAULT_INPUTS, GRIDS, WeatherSource
from smoe.paper.weather.data.prepare import prepare
from smoe.paper.weather.data.prepare_plan import Preparation
from smoe.paper.weather.data.samples import WeatherSamples
from smoe.paper.weather.data.store import WeatherStore
from smoe.paper.weather.data.store_format import FIELDS_FILE

_BATCH_SIZE = 32
_STEP_BATCH_SIZE = 8
_YEAR = 2000


class NoiseSource(WeatherSource):
    """One year of noise in all channels of the experiments: the reading does not look at the values."""

    def __init__(self) -> None:
        self.grid = GRIDS["5.625deg"]
        self.step_hours = 6
        self.notices: list[str] = []

    kind = "noise"

    @property
    def years(self) -> tuple[int, ...]:
        """One."""
        return (_YEAR,)

    @property
    def channels(self) -> tuple[str, ...]:
        """Those of the experiments."""
        return DEFAULT_INPUTS

    @property
    def constant_names(self) -> tuple[str, ...]:
        """Those of the experiments."""
        return DEFAULT_CONSTANTS

    def times(self, year: int) -> np.ndarray:
        """All of a year."""
        first, last = (np.datetime64(f"{number}-01-01", "h") for number in (year, year + 1))
        return np.arange(first, last, np.timedelta64(self.step_hours, "h"))

    def read(self, channel: str, year: int) -> np.ndarray:
        """Noise between 0 and 1, so that precipitation has a logarithm."""
        return self._noise(channel, len(self.times(year)), *self.grid.shape)

    def read_constant(self, name: str) -> np.ndarray:
        """Noise too."""
        return self._noise(name, *self.grid.shape)

    @staticmethod
    def _noise(name: str, *shape: int) -> np.ndarray:
        return np.random.default_rng(zlib.crc32(name.encode())).random(shape, np.float32)

    def check(self, channels: Iterable[str], years: Iterable[int]) -> None:
        """Nothing can be missing."""

    def close(self) -> None:
        """Nothing is open."""


class Silent:
    """Says nothing of the preparation."""

    def notify(self, text: str) -> None:
        """Nothing."""

    def begin(self, total: int, done: int) -> None:
        """Nothing."""

    def advance(self, text: str) -> None:
        """Nothing."""


def batches(store: Path, num_workers: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """All samples of the year once, shuffled, from a store that is opened for it."""
    # Every 18 hours, so that the inputs of two samples share no step and no cached pages.
    samples = WeatherSamples(WeatherStore.open(store), (_YEAR, _YEAR), start_every_hours=18)
    loader = DataLoader(
        samples,
        batch_size=_BATCH_SIZE,
        shuffle=True,
        drop_last=True,
        collate_fn=WeatherSamples.collate,
        num_workers=num_workers,
    )
    yield from loader


def samples_per_second(store: Path, num_workers: int, *, is_cold: bool) -> float:
    """Of one pass over the year; the start of the workers does not count."""
    if is_cold:
        with (store / FIELDS_FILE).open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    iterator = batches(store, num_workers)
    if not num_workers:
        started = time.perf_counter()
        return sum(len(input) for input, _ in iterator) / (time.perf_counter() - started)
    # Samples that workers read before the first batch are not counted, and the time is measured from then on.
    next(iterator)
    started = time.perf_counter()
    times = [(len(input), time.perf_counter()) for input, _ in iterator]
    num_ahead = 2 * num_workers
    return sum(count for count, _ in times[num_ahead:]) / (times[-1][1] - times[num_ahead - 1][1])


def seconds_per_step(num_steps: int) -> list[float]:
    """Of training steps of the ResNet of Rasp & Thuerey: forward, backward, Adam."""
    torch.manual_seed(0)
    model = WeatherResNet(117, 3).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-5, fused=True)
    input, target = torch.randn(_STEP_BATCH_SIZE, 117, 32, 64), torch.randn(_STEP_BATCH_SIZE, 3, 32, 64)
    times = []
    for _ in track(range(num_steps + 1), description="training steps"):
        started = time.perf_counter()
        torch.nn.functional.mse_loss(model(input), target).backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - started)
    return times[1:]


def main(args: list[str] | None = None) -> None:
    """Measures and stores."""
    parser = argparse.ArgumentParser("smoe bench weather-samples", description=__doc__)
    parser.add_argument("--folder", type=Path, default=None, help="where the store is written; the system's by default")
    parser.add_argument("--passes", type=int, default=7, help="over the year, of each kind; medians are reported")
    parser.add_argument("--steps", type=int, default=3, help="training steps; the median is reported")
    parser.add_argument("--threads", type=int, default=1, help="of the training steps")
    arguments = parser.parse_args(args)
    torch.set_num_threads(arguments.threads)

    rates: dict[tuple[int, bool], list[float]] = {}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        store = Path(folder) / "store"
        prepare(NoiseSource(), store, Preparation((_YEAR, _YEAR), (_YEAR, _YEAR)), Silent())
        for _ in track(range(arguments.passes), description="reading"):
            for num_workers in (0, 1, 2):
                for is_cold in (True, False):
                    rate = samples_per_second(store, num_workers, is_cold=is_cold)
                    rates.setdefault((num_workers, is_cold), []).append(rate)
    step = statistics.median(seconds_per_step(arguments.steps))
    model_rate = _STEP_BATCH_SIZE / step
    rows = [
        {
            "workers": num_workers,
            "store": "on disk" if is_cold else "in memory",
            "samples per second": f"{statistics.median(values):.0f}",
            "slowest pass": f"{min(values):.0f}",
            "model's samples per second": f"{model_rate:.2f}",
            "ratio": f"{statistics.median(values) / model_rate:.0f}",
            **circumstances(),
        }
        for (num_workers, is_cold), values in rates.items()
    ]
    columns = ["workers", "store", "samples per second", "slowest pass", "model's samples per second", "ratio"]
    columns += ["processor", "torch", "commit", "date"]
    threads = f"{arguments.threads} thread{'s' if arguments.threads > 1 else ''}"
    print(
        write_table(
            Path("results/bench") / "weather_samples.md",
            "Samples of a weather store beside a training step",
            "smoe bench weather-samples",
            columns,
            rows,
            "Inputs of 117 channels (38 at 3 times, 3 constants) and 3 targets on 32 x 64, 1 MB a sample, drawn at "
            f"random in batches of {_BATCH_SIZE}; medians of {arguments.passes} passes over a year, by turns. 0 "
            "workers: the training process reads. On disk: the store's pages were dropped from memory before the pass. "
            f"The model is the ResNet of Rasp & Thuerey (6.4 million parameters), a training step of batch "
            f"{_STEP_BATCH_SIZE} on {threads}: {step:.2f} s.",
        )
    )


if __name__ == "__main__":
    main()
