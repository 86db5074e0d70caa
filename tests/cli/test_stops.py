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
    code, _ = stop(_COMMAND.replace("wait(60)", "wait(0.5)"), tmp_path, signal.SIGHUP, before=ignoring)
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


_SWALLOWING = {
    "a callback of a C library": """
        import ctypes
        library = ctypes.CDLL(None)
        compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(lambda *_: time.sleep(0.2) or 0)
        library.qsort((ctypes.c_int * 8)(), 8, 4, compare)
""",
    "a finaliser": """
        class Slow:
            def __del__(self):
                time.sleep(1.0)
        Slow()
""",
}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("place", _SWALLOWING)
def test_a_signal_is_not_lost_where_its_exception_would_be(tmp_path: Path, place: str, number: signal.Signals) -> None:
    command = _COMMAND.replace("        wait(60)\n", _SWALLOWING[place].lstrip("\n") + "        wait(60)\n")
    code, said = stop(command, tmp_path, number, seconds=0.3)
    assert (code, said) == (128 + number, f"stopped by {number.name}\n")
    assert not any(tmp_path.iterdir())


def test_objects_that_were_interrupted_while_they_were_made_say_nothing(tmp_path: Path) -> None:
    made = """        class Half:
            def __init__(self):
                wait(60)
                self.file = None
            def __del__(self):
                self.file.close()
        Half()
"""
    code, said = stop(_COMMAND.replace("        wait(60)\n", made), tmp_path, signal.SIGTERM, seconds=0.3)
    assert (code, said) == (128 + signal.SIGTERM, "stopped by SIGTERM\n")


def test_a_command_whose_clean_up_never_ends_is_ended(tmp_path: Path) -> None:
    waits = "        try:\n            wait(60)\n        finally:\n            wait(60)\n"
    command = _COMMAND.replace("        wait(60)\n", waits)
    command = command.replace("entry.COMMANDS", "entry._SECONDS_TO_END = 0.5\nentry.COMMANDS")
    code, said = stop(command, tmp_path, signal.SIGTERM)
    assert (code, said) == (128 + signal.SIGTERM, "stopped by SIGTERM, without cleaning up\n")


def test_a_signal_between_two_locks_of_xarray_leaves_neither_held(tmp_path: Path) -> None:
    pytest.importorskip("xarray")
    waits = """        import threading
        from xarray.backends.locks import CombinedLock
        first, second = threading.Lock(), threading.Lock()
        both = CombinedLock([first, second])
        busy = both.locks[-1]
        busy.acquire()
        threading.Timer(1.0, busy.release).start()
        try:
            with both:
                wait(60)
        finally:
            with both:
                pass
"""
    command = "import xarray\n" + _COMMAND.replace("        wait(60)\n", waits)
    code, said = stop(command, tmp_path, signal.SIGTERM, seconds=0.5)
    assert (code, said) == (128 + signal.SIGTERM, "stopped by SIGTERM\n")
