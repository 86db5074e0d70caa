"""Signals: a command ends with one line and 128 + n, and the processes it started end too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

_COMMAND = """
import sys, types, time, signal
from pathlib import Path
import importlib; entry = importlib.import_module("smoe.cli.main")
from smoe._files import temporary_folder
def wait(seconds):
    # In short steps: a signal between the last look for signals and a long sleep is noticed after the sleep.
    for _ in range(round(20 * seconds)):
        time.sleep(0.05)
def run(args):
    with temporary_folder("begun-", Path(args[0])):
        print("begun", flush=True)
        wait(60)
    return 0
command = types.ModuleType("smoe.cli.stopped")
command.run = run
sys.modules["smoe.cli.stopped"] = command
entry.COMMANDS["stopped"] = entry.Command("smoe.cli.stopped", "")
sys.exit(entry.main(["stopped", sys.argv[1]]))
"""


def stop(code: str, folder: Path, number: int, *, before: str = "") -> tuple[int, str]:
    """Starts a program, sends a signal after its first line, and returns its exit code and the line of the error."""
    process = subprocess.Popen(
        [sys.executable, "-c", before + code, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    return process.returncode, said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_command_ends_with_one_line_and_cleans_up(tmp_path: Path, number: signal.Signals) -> None:
    code, said = stop(_COMMAND, tmp_path, number)
    assert (code, said) == (128 + number, f"stopped by {number.name}\n")
    assert not any(tmp_path.iterdir())


def test_signals_that_are_ignored_stay_ignored(tmp_path: Path) -> None:
    ignoring = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    code, _ = stop(_COMMAND.replace("wait(60)", "wait(0.5)"), tmp_path, signal.SIGHUP, before=ignoring)
    assert code == 0
