"""Changed recipe.json and metrics.jsonl of a run, opened by the commands."""

from __future__ import annotations

import io
import json
import os
import shutil
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np

from faults.damage import mutate_text
from faults.outcome import Kind, Outcome, TryCase, judge_error, random_of
from opened_files import opened_files
from smoe.cli.main import main

TRAIN = [
    *("train", "heat/smoe", "--data.spatial-shape", "9", "7", "--data.num-steps", "10", "--data.num-train-runs", "6"),
    *("--data.num-validation-runs", "2", "--data.num-test-runs", "2", "--training.device", "cpu"),
    *("--training.num-threads", "1"),
]


def command_outcome(detail: str, args: list[str], codes: tuple[int, ...] = (0,)) -> Outcome:
    """Runs a command that must succeed, or fail with one line.

    Args:
        detail: What was done before.
        args: Arguments of the command.
        codes: Exit codes of success.
    """
    said = io.StringIO()
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(said):
            code = main(args)
    except MemoryError as error:
        return Outcome("memory", f"{detail}: {error}")
    except Exception as error:  # which error it is, is what is asked
        return judge_error(detail, error)
    lines = said.getvalue().strip().splitlines()
    if code in codes:
        return Outcome("read", detail)
    if not lines or "smoe: error: " not in lines[-1]:
        return Outcome("traceback", f"{detail}: code {code} without a message: {lines}")
    return Outcome("refused", f"{detail}: {lines[-1][:300]}")


def _train(folder: Path) -> Path:
    run = folder / "run"
    # After a crash, the files of the run are those of the case that crashed.
    shutil.rmtree(run, ignore_errors=True)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        assert main([*TRAIN, "--training.max-epochs", "2", "--output-dir", str(run)]) == 0
    return run


def _recipes(folder: Path) -> TryCase:
    run = _train(folder)
    original = (run / "recipe.json").read_text()

    def try_case(number: int) -> Outcome:
        chance = random_of("recipes", number)
        what, content = mutate_text(original, chance)
        (run / "recipe.json").write_bytes(content)
        command = chance.choice((["evaluate", str(run)], ["show", str(run)], ["train", "--resume", str(run)]))
        return command_outcome(f"{command[0]}: {what}", command)

    return try_case


def _places(folder: Path) -> TryCase:
    run, outside = _train(folder), folder / "outside"
    shutil.rmtree(outside, ignore_errors=True)
    shutil.copytree(run, outside / "run")
    np.save(outside / "regions.npy", np.zeros((9, 7), np.int64))
    os.mkfifo(outside / "pipe")
    original = (run / "recipe.json").read_bytes()

    def try_case(number: int) -> Outcome:
        chance = random_of("places", number)
        link = run / "link"
        link.unlink(missing_ok=True)
        target = outside / chance.choice(("run", "regions.npy", "pipe", "missing", ""))
        how = chance.choice(("absolute", "relative", "dots", "link"))
        place = {
            "absolute": str(target),
            "relative": os.path.relpath(target),
            "dots": f"{run}/../outside/{target.name if target != outside else ''}",
            "link": str(link),
        }[how]
        if how == "link":
            link.symlink_to(target)
        content = json.loads(original)
        field = chance.choice(("region_map", "cache_dir", "init_from"))
        (content["recipe"] if field == "init_from" else content["recipe"]["data"])[field] = place
        (run / "recipe.json").write_text(json.dumps(content, indent=2) + "\n")
        command = chance.choice(
            (
                ["evaluate", str(run)],
                ["show", str(run)],
                ["report", str(run), "-o", str(folder / "report.html")],
                ["train", "--resume", str(run), "--training.max-epochs", "3"],
            )
        )
        detail = f"{command[0]}: {field} is {place}"
        before = {path: path.lstat().st_mtime_ns for path in outside.rglob("*")}
        with opened_files() as opened:
            outcome = command_outcome(detail, command)
        read = [path for path in opened if os.path.realpath(path).startswith(f"{os.path.realpath(outside)}/")]
        if read or before != {path: path.lstat().st_mtime_ns for path in outside.rglob("*")}:
            return Outcome("silent", f"{detail}: opened {read[:3]}")
        return outcome

    return try_case


def _metrics(folder: Path) -> TryCase:
    run = _train(folder)
    lines = (run / "metrics.jsonl").read_text().splitlines()

    def try_case(number: int) -> Outcome:
        chance = random_of("metrics", number)
        place = chance.randrange(len(lines))
        what, content = mutate_text(lines[place], chance)
        changed = [*(line.encode() for line in lines[:place]), content, *(line.encode() for line in lines[place + 1 :])]
        (run / "metrics.jsonl").write_bytes(b"\n".join(changed) + b"\n")
        output = folder / "report.html"
        output.unlink(missing_ok=True)
        command = chance.choice((["report", str(run), "-o", str(output)], ["show", str(run)]))
        return command_outcome(f"{command[0]}: line {place}: {what}", command)

    return try_case


KINDS = (
    Kind("places", "recipe.json of others that names files outside its directory", 400, _places),
    Kind("recipes", "changed recipe.json of a run that is opened or resumed", 1000, _recipes),
    Kind("metrics", "changed metrics.jsonl of a run that is drawn or reported", 400, _metrics),
)
