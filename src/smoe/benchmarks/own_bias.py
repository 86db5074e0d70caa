"""Corrects the bias of the simulated ensemble's mean by `smoe fit`, beside the map of mean errors and a plain net.

Run: smoe bench own-bias [--root data/simulated-ensemble] [--seeds 2]. It needs the files of `make simulate-ensemble`,
makes plain NetCDF of them (the mean of the members at 48 hours, and the truth), fits a model for each seed, and stores
the scores of the last year in results/bench.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

_INPUTS = ("t2m", "skt", "msl", "u10", "v10", "tcc", "tcwv")
_HEAD = ("seed", "predictor", "RMSE, K", "±", "MAE, K")
_TITLE = "Bias correction of the simulated ensemble's mean, 2 m temperature at 48 hours"
_LEAD_HOURS = 48
# One layer: a linear filter of its own at each pixel, slowly, because there are few forecasts to learn from. Chosen
# among four nets by their scores of November 2001 to January 2002.
_FLAGS = ("--net", "layer", "--filters", "4", "--learning-rate", "1e-3", "--batch-size", "8", "--device", "cpu")


def write_plain_files(root: Path, folder: Path) -> tuple[int, list[int]]:
    """Writes `forecasts.nc`, by start time, and `analyses.nc`, by valid time.

    Args:
        root: Files of the simulated ensemble.
        folder: Folder of the two files.

    Returns:
        Number of forecasts, and the years of their starts.
    """
    import xarray as xr

    paths = sorted((root / "ensemble").glob("output.sfc.*.nc"))
    truth = _read_truth(root)
    starts, fields = [], []
    for path in paths:
        with xr.open_dataset(path, decode_timedelta=False) as members:
            # Forecasts of a year that is not finished have no truth yet.
            if members["valid_time"].values in truth["time"].values:
                starts.append(members["time"].values)
                fields.append(members[list(_INPUTS)].mean("number", keep_attrs=True).load())
    forecasts = xr.concat([each.drop_vars(("time", "valid_time"), errors="ignore") for each in fields], "init_time")
    forecasts = forecasts.assign_coords(
        init_time=("init_time", np.asarray(starts), {"standard_name": "forecast_reference_time"}),
        lead_time=((), _LEAD_HOURS, {"standard_name": "forecast_period", "units": "hours"}),
    )
    forecasts["t2m"].attrs.update(standard_name="air_temperature", units="K")
    analyses = truth.rename("t2m").assign_attrs(standard_name="air_temperature", units="K").to_dataset()
    forecasts.to_netcdf(folder / "forecasts.nc")
    analyses.to_netcdf(folder / "analyses.nc")
    years = sorted({int(str(start)[:4]) for start in starts})
    return len(starts), years


def _read_truth(root: Path) -> Any:
    """Truth at the valid times; of a simulation that is still running, what it has so far."""
    import xarray as xr

    if (root / "ERA5_sfc_t2m.nc").is_file():
        with xr.open_dataset(root / "ERA5_sfc_t2m.nc") as file:
            return file["T2M"].load()
    paths = sorted((root / ".run" / "truth").glob("*.npz"))
    fields = [np.load(path)["t2m"] for path in paths]
    starts = np.asarray([np.datetime64(path.stem) for path in paths]).astype("datetime64[ns]")
    with xr.open_dataset(next((root / "ensemble").glob("output.sfc.*.nc")), decode_timedelta=False) as file:
        rows, columns = file["latitude"].load(), file["longitude"].load()
    coordinates = {"time": starts + np.timedelta64(_LEAD_HOURS, "h"), "latitude": rows, "longitude": columns}
    return xr.DataArray(np.stack(fields).astype(np.float32), coordinates, ("time", "latitude", "longitude"))


def fit_command(folder: Path, years: list[int], seed: int, further: list[str]) -> list[str]:
    """The command that a user would type."""
    last, middle = years[-1], years[-2]
    # Of two years, the first one has the longer part to learn from.
    month = 6 if len(years) > 2 else 9
    train, validation = f"{years[0]}:{middle}-{month:02d}", f"{middle}-{month + 1:02d}:{middle}-12"
    periods = ["--train", train, "--validate", validation, "--test", str(last)]
    inputs, targets = str(folder / "forecasts.nc"), str(folder / "analyses.nc")
    return ["fit", inputs, targets, *periods, "--compare", "yes", "--keep", "smoe", "--seed", str(seed), *further]


def main(args: list[str] | None = None) -> None:
    """Makes the files, fits the seeds and stores the table."""
    parser = argparse.ArgumentParser("smoe bench own-bias", description=__doc__)
    parser.add_argument("--root", type=Path, default=Path("data/simulated-ensemble"))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("results/bench/own_bias.md"))
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=list(_FLAGS), help="flags of smoe fit, at the end")
    options = parser.parse_args(args)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        count, years = write_plain_files(options.root, folder)
        if len(years) < 2:
            parser.error(
                f"{options.root} holds forecasts of {len(years)} years, two are needed: make simulate-ensemble"
            )
        command: list[str] = []
        for seed in range(options.seeds):
            command = fit_command(folder, years, seed, options.flags)
            run = folder / f"run-{seed}"
            subprocess.run([sys.executable, "-m", "smoe", *command, "-o", str(run)], check=True)
            rows += _rows(json.loads((run / "scores.json").read_text()), seed)
        described = " ".join(command).replace(f"{folder}/", "")

    from smoe.benchmarks.stored_table import circumstances, write_table

    where = circumstances()
    notes = (
        f"{where['processor']}, commit {where['commit']}, {where['date']}. {count} forecasts of {years[0]} to "
        f"{years[-1]} on 32 x 64, scored on those of {years[-1]}; ± is the standard deviation over a bootstrap of "
        f"blocks of consecutive forecasts. Net and learning rate were chosen among four by the scores of November 2001 "
        f"to January 2002. The last fit: `smoe {described} -o RUN`."
    )
    flags = f" --flags {' '.join(options.flags)}" if options.flags != list(_FLAGS) else ""
    shown = f"smoe bench own-bias --root {options.root} --seeds {options.seeds}{flags}"
    print(write_table(options.output, _TITLE, shown, _HEAD, rows, notes))


def _rows(scores: dict[str, Any], seed: int) -> list[dict[str, Any]]:
    return [
        {
            "seed": seed,
            "predictor": predictor,
            "RMSE, K": f"{scores['rmse'][predictor][0]:.4f}",
            "±": f"{scores['rmse_spread'][predictor][0]:.4f}",
            "MAE, K": f"{scores['mae'][predictor][0]:.4f}",
        }
        for predictor in sorted(scores["rmse"], key=lambda each: scores["rmse"][each][0])
    ]


if __name__ == "__main__":
    main()
