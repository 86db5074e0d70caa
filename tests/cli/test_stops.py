"""Signals: a command ends with one line and 128 + n, and the processes it started end too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

_COMMAND = """
import sys, types, time, signal
from pathlib import Path
import importlib; entry = importlib.import_module("smoe.cli.main")
from smoe.temporary_folder import temporary_folder
def run(args):
    with temporary_folder("begun-", Path(args[0])):
        print("begun", flush=True)
        time.sleep(60)
    return 0
command = types.ModuleType("smoe.cli.stopped")
command.run = run
sys.modules["smoe.cli.stopped"] = command
entry.COMMANDS["stopped"] = ""
sys.exit(entry.main(["stopped", sys.argv[1]]))
"""


def stop(code: str, folder: Path, number: int, *, before: str = "", seconds: float = 0.0) -> tuple[int, str]:
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
    time.sleep(seconds)
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
    code, _ = stop(_COMMAND.replace("sleep(60)", "sleep(0.5)"), tmp_path, signal.SIGHUP, before=ignoring)
    assert code == 0


_IMPORTING = """
import sys, types
from pathlib import Path
import importlib; entry = importlib.import_module("smoe.cli.main")
Path("interrupted_module.py").write_text("import time; print('importing', flush=True); time.sleep(0.5)")
sys.path.insert(0, ".")
def run(args):
    try:
        import interrupted_module
    except BaseException:
        # As libraries do that go on without what they could not import.
        print("swallowed", file=sys.stderr)
    import time
    time.sleep(60)
command = types.ModuleType("smoe.cli.stopped")
command.run = run
sys.modules["smoe.cli.stopped"] = command
entry.COMMANDS["stopped"] = ""
sys.exit(entry.main(["stopped"]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_an_import_waits_for_its_end(tmp_path: Path, number: signal.Signals) -> None:
    assert stop(_IMPORTING, tmp_path, number) == (128 + number, f"stopped by {number.name}\n")


_POOL = """
import os, time
from smoe.gridded.schedulers import reading_by
if __name__ == "__main__":
    with reading_by("processes"):
        import dask
        print(*dask.compute(dask.delayed(os.getpid)()), flush=True)
        time.sleep(60)
"""


def test_processes_that_read_end_with_a_killed_command(tmp_path: Path) -> None:
    pytest.importorskip("dask")
    program = tmp_path / "program.py"
    program.write_text(_POOL)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        # Sent to all, as by a terminal: only the command may receive it.
        os.kill(worker, signal.SIGINT)
        os.kill(worker, 0)
        process.kill()
    end = time.monotonic() + 30
    while time.monotonic() < end and Path(f"/proc/{worker}").exists():
        time.sleep(0.1)
    assert not Path(f"/proc/{worker}").exists()
