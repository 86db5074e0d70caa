"""Commands that are stopped in the middle: each is started in a forked process, and what it leaves is compared."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from faults.records import TRAIN
from gridded_files import regional
from smoe.cli.main import main
from smoe.training.checkpoints import load_checkpoint

_NUM_EPOCHS = 5
_FIT = ["--net", "layer", "--filters", "2", "--max-epochs", "2", "--device", "cpu", "--batch-size", "4", "--resume"]
_PREPARE = ["--years", "1979", "1980", "--statistics-years", "1979", "1979", "--channels", "z_500", "t2m"]
_SECONDS = 300.0
_SAVE = "save models"
# Imported before the commands are forked, so that they are stopped in their work and not in their imports.
_MODULES = (
    *("smoe.cli.train", "smoe.cli.fit", "smoe.cli.data", "smoe.experiments.runs", "smoe.experiments.result_table"),
    *("smoe.paper.heat.build", "smoe.paper.heat.experiment", "smoe.regression", "smoe.regression.run_files"),
    *("smoe.paper.weather.commands.prepare", "smoe.paper.weather.data.open_source", "netCDF4", "dask.array"),
    *("smoe.cli.predict", "smoe.cli.report", "smoe.reports.page", "smoe.reports.read_runs", "smoe.gridded.cf_output"),
    *("zarr", "smoe.regression.model_files"),
    *("smoe.paper.weather.data.weatherbench", "safetensors.torch", "tyro", "rich.progress", "torch._dynamo"),
)


class Job(NamedTuple):
    """A command that goes on where it was stopped.

    Attributes:
        name: Name of the command.
        make_inputs: Writes what it reads to a folder.
        command: Arguments of `smoe` for a folder of inputs and one of outputs, or of a program.
        digest: What the command left, as a text: equal texts are equal results.
        is_program: Start a new interpreter, because the command starts processes of its own.
        check: Raises an error if the files under their final names are not whole, after a stop at any moment.
    """

    name: str
    make_inputs: Callable[[Path], object]
    command: Callable[[Path, Path], list[str]]
    digest: Callable[[Path], str]
    is_program: bool = False
    check: Callable[[Path], object] = lambda output: None


class Started:
    """A command that was started.

    Args:
        job: The job.
        inputs: Folder of its inputs.
        output: Folder of its outputs.
    """

    def __init__(self, job: Job, inputs: Path, output: Path) -> None:
        self.log = output.with_suffix(".log")
        self.log.unlink(missing_ok=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._code: int | None = None
        command = job.command(inputs, output)
        if job.is_program:
            with self.log.open("wb") as log:
                self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            self.pid = self._process.pid
        else:
            self.pid = os.fork()
            if self.pid == 0:
                _run(command, self.log)

    def send(self, number: int) -> None:
        """Sends a signal."""
        os.kill(self.pid, number)

    def code(self, seconds: float) -> int | None:
        """The exit code, or None if the command has not ended after some seconds."""
        end = time.monotonic() + seconds
        while True:
            if self._code is None and self._process is not None:
                self._code = self._process.poll()
            elif self._code is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self._code = os.waitstatus_to_exitcode(status) if pid else None
            if self._code is not None or time.monotonic() > end:
                return self._wait_for_others(self._code)
            time.sleep(0.002)

    def _wait_for_others(self, code: int | None) -> int | None:
        """Waits for the processes that a program has started, which end after it."""
        while code is not None and self._process is not None:
            try:
                os.killpg(self.pid, 0)
            except ProcessLookupError:
                break
            time.sleep(0.05)
        return code

    def said(self) -> str:
        """What the command wrote."""
        return self.log.read_text(errors="replace") if self.log.is_file() else ""


def run_to_end(job: Job, inputs: Path, output: Path) -> tuple[int | None, str]:
    """Runs a command to its end; returns its exit code and what it wrote. None is a command that hangs."""
    started = Started(job, inputs, output)
    code = started.code(_SECONDS)
    if code is None:
        started.send(9)
        started.code(_SECONDS)
    # A fit that was stopped after its last file has ended.
    return (0 if "holds a model already" in started.said() else code), started.said()


def import_modules() -> None:
    """Imports what the commands need, once for all processes that are forked afterwards."""
    for module in _MODULES:
        importlib.import_module(module)


def make_inputs(job: Job, folder: Path) -> None:
    """Writes the inputs in a process of their own, because libraries start threads, which are not forked."""
    import_modules()
    apart(lambda: str(job.make_inputs(folder)))


def apart(work: Callable[[], str]) -> str:
    """What a function returns in a process of its own, in which the libraries that it uses may start threads.

    Raises:
        RuntimeError: If the function raised an error.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, 1)
            os.dup2(devnull, 2)
            answer = f"+{work()}"
        except BaseException as error:  # nothing of the process that forked may run here
            answer = f"-{error!r}"
        os.write(writing, answer.encode()[:4000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        answer = file.read().decode(errors="replace")
    os.waitpid(child, 0)
    if not answer.startswith("+"):
        raise RuntimeError(answer[1:] or "the process ended")
    return answer[1:]


def _run(command: list[str], log: Path) -> None:
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
        code = save_models(*map(Path, command[1:])) if command[0] == _SAVE else main(command)
    except BaseException:  # nothing of the process that forked may run here
        import traceback

        traceback.print_exc()
        code = 1
    os._exit(code)


def _without_time(value: Any) -> Any:
    times = ("seconds", "total_seconds", "date", "commit", "threads", "time")
    if isinstance(value, dict):
        return {key: _without_time(part) for key, part in value.items() if key not in times}
    return [_without_time(part) for part in value] if isinstance(value, list) else value


def _digest_of_run(output: Path) -> str:
    lines = [_without_time(json.loads(line)) for line in (output / "metrics.jsonl").read_text().splitlines()]
    content = hashlib.sha256(json.dumps(lines).encode())
    for name in ("best", "last"):
        for key, tensor in load_checkpoint(output / "checkpoints" / f"{name}.pt")["model"].items():
            content.update(key.encode() + tensor.numpy().tobytes())
    return content.hexdigest() + _leftovers(output)


def _digest_of_fit(output: Path) -> str:
    scores = (output / "scores.json").read_text()
    weights = (output / "model.safetensors").read_bytes()
    return hashlib.sha256(scores.encode() + weights).hexdigest() + _leftovers(output)


def _digest_of_files(output: Path) -> str:
    content = hashlib.sha256()
    for path in sorted(path for path in output.rglob("*") if path.is_file()):
        content.update(str(path.relative_to(output)).encode() + path.read_bytes())
    return content.hexdigest() + _leftovers(output)


def _digest_of_store(output: Path) -> str:
    results = [_without_time(json.loads(line)) for line in (output / "store").read_text().splitlines()]
    results.sort(key=lambda result: result["seed"])
    return hashlib.sha256(json.dumps(results).encode()).hexdigest() + _leftovers(output)


def _leftovers(output: Path) -> str:
    return "".join(f" and {path.relative_to(output)}" for path in sorted(output.rglob(".*")))


def _check_checkpoints(output: Path) -> None:
    for path in output.rglob("*.pt"):
        load_checkpoint(path)


def _digest_of_predictions(output: Path) -> str:
    import xarray as xr

    content = hashlib.sha256()
    for path in sorted(output.glob("predicted*")):
        with xr.open_dataset(path, chunks={}) as dataset:
            for name, array in sorted(dataset.variables.items()):
                content.update(str(name).encode() + array.values.tobytes())
    return content.hexdigest() + _leftovers(output)


def _digest_of_report(output: Path) -> str:
    # Without the numbers, of which some are times.
    text = "".join(each for each in (output / "report.html").read_text() if not each.isdigit())
    assert text.rstrip().endswith("</html>")
    return hashlib.sha256(text.encode()).hexdigest() + _leftovers(output)


def _digest_of_model(output: Path) -> str:
    from smoe.regression import GridRegressor

    weights = GridRegressor.load(output / "model", progress=False).fitted.net.state_dict()
    values = b"".join(tensor.numpy().tobytes() for tensor in weights.values())
    return hashlib.sha256(values).hexdigest() + _leftovers(output)


def save_models(inputs: Path, output: Path) -> int:
    """Saves two models in turn over each other."""
    from smoe.regression import GridRegressor

    models = [GridRegressor.load(inputs / name, progress=False) for name in ("one", "two")]
    for number in range(20):
        models[number % 2].save(output / "model", overwrite=True)
    return 0


def _check_model(output: Path) -> None:
    if (output / "model" / "config.json").exists():
        _digest_of_model(output)


def _write_pair(folder: Path) -> None:
    regional(30, 4, 6, seed=1).to_netcdf(folder / "x.nc")
    regional(30, 4, 6, seed=2).to_netcdf(folder / "y.nc")


def _write_models(folder: Path) -> None:
    """A pair of files and two models that were fitted to it."""
    _write_pair(folder)
    for name, seed in (("one", "0"), ("two", "1")):
        pair = [str(folder / "x.nc"), str(folder / "y.nc")]
        assert main(["fit", *pair, "-o", str(folder / name), *_FIT, "--seed", seed, "--compare", "no"]) == 0


def _write_run(folder: Path) -> None:
    assert main([*TRAIN, "--training.max-epochs", "2", "--output-dir", str(folder / "run")]) == 0


def _write_archive(folder: Path) -> None:
    from weather_files import write_weatherbench

    write_weatherbench(folder, years=(1979, 1980), steps=40, variables=("z", "t2m"), levels=(500,))


def _tiny_runs(inputs: Path, output: Path) -> list[str]:
    del inputs
    program = Path(__file__).parents[1] / "tiny_runs.py"
    return [sys.executable, str(program), str(output / "store"), str(output / "runs"), "20"]


TRAINING = Job(
    "train",
    lambda folder: None,
    lambda inputs, output: [*TRAIN, "--training.max-epochs", str(_NUM_EPOCHS), "--resume", "--output-dir", str(output)],
    _digest_of_run,
    check=_check_checkpoints,
)
PREPARING = Job(
    "data prepare",
    _write_archive,
    lambda inputs, output: ["data", "prepare", "weather", "--root", str(inputs), "--output", str(output), *_PREPARE],
    _digest_of_files,
)
FITTING = Job(
    "fit",
    _write_pair,
    lambda inputs, output: ["fit", str(inputs / "x.nc"), str(inputs / "y.nc"), "-o", str(output), *_FIT],
    _digest_of_fit,
    check=_check_checkpoints,
)


def _predicting(ending: str) -> Job:
    def command(inputs: Path, output: Path) -> list[str]:
        output.mkdir(exist_ok=True)
        target = str(output / f"predicted{ending}")
        return ["predict", str(inputs / "one"), str(inputs / "x.nc"), "-o", target, "--overwrite"]

    def check(output: Path) -> None:
        if (output / f"predicted{ending}").exists():
            _digest_of_predictions(output)

    return Job(f"predict {ending}", _write_models, command, _digest_of_predictions, check=check)


PREDICTING, PREDICTING_ZARR = _predicting(".nc"), _predicting(".zarr")
REPORTING = Job(
    "report",
    _write_run,
    lambda inputs, output: ["report", str(inputs / "run"), "-o", str(output / "report.html"), "--without-data"],
    _digest_of_report,
    check=lambda output: (output / "report.html").exists() and _digest_of_report(output),
)
SAVING = Job(
    "GridRegressor.save",
    _write_models,
    lambda inputs, output: [_SAVE, str(inputs), str(output)],
    _digest_of_model,
    check=_check_model,
)
REPRODUCING = Job("reproduce", lambda folder: None, _tiny_runs, _digest_of_store, is_program=True)
