"""What a run stores, and the memory that it keeps."""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from smoe.training.plan import TrainingPlan, resumable_fields
from smoe.training.run_directory import RunDirectory, RunError

RECIPE = {"name": "heat/smoe", "recipe": {"seed": 0, "data": {"num_steps": 5}, "training": {"max_epochs": 3}}}

# Locks a directory, prints a line, and waits; with a child that was forked meanwhile, as the readers of data are.
_HOLDER = """
import os, sys, time
from smoe.training.run_directory import RunDirectory
with RunDirectory(sys.argv[1]).lock():
    ready, begun = os.pipe()
    if os.fork() == 0:
        os.write(begun, b".")
        time.sleep(5)
        os._exit(0)
    os.read(ready, 1)
    print("locked", flush=True)
    time.sleep(30)
"""

# Takes the lock as often as it can, and makes a file that must not be there.
_TAKER = """
import os, sys, time
from pathlib import Path
from smoe._files import FileLock, LockedError
folder, end, num_held = Path(sys.argv[1]), time.monotonic() + 2, 0
while time.monotonic() < end:
    try:
        with FileLock(folder / ".lock"):
            os.close(os.open(folder / "inside", os.O_CREAT | os.O_EXCL))
            num_held += 1
            os.unlink(folder / "inside")
    except LockedError:
        pass
print(num_held)
"""


def test_a_new_directory_holds_recipe_and_versions(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "new")
    run.check(RECIPE, resume=False)
    assert not run.path.exists()
    run.begin(RECIPE)
    assert run.read_recipe() == RECIPE
    environment = json.loads(run.environment_file.read_text())
    assert environment["packages"]["torch"] and environment["python"]


def test_a_run_is_neither_overwritten_nor_resumed_by_another_recipe(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.begin(RECIPE)
    with pytest.raises(RunError, match="holds a run already; add --resume"):
        run.check(RECIPE, resume=False)
    run.check(RECIPE, resume=True)

    other = {**RECIPE, "recipe": {"seed": 1, "data": {"num_steps": 6}, "training": {"max_epochs": 3}}}
    with pytest.raises(RunError, match=r"recipe\.data\.num_steps is 5 there and 6 now; recipe\.seed is 0 there and 1"):
        run.check(other, resume=True)


def test_a_run_can_be_extended_and_keeps_the_new_recipe(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.begin(RECIPE)
    longer = {**RECIPE, "recipe": {**RECIPE["recipe"], "training": {"max_epochs": 9}}}  # type: ignore[dict-item]
    with pytest.raises(RunError, match=r"recipe\.training\.max_epochs is 3 there and 9 now"):
        run.check(longer, resume=True)
    run.check(longer, resume=True, may_differ=resumable_fields(TrainingPlan()))
    run.begin(longer)
    assert run.read_recipe() == longer


def test_epochs_cannot_change_where_they_decide_the_learning_rate() -> None:
    assert "training.max_epochs" in resumable_fields(TrainingPlan())
    assert "training.max_epochs" not in resumable_fields(TrainingPlan(schedule="cosine"))
    assert "training.num_workers" in resumable_fields(TrainingPlan(schedule="cosine"))


def test_a_run_that_has_moved_is_read(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "here")
    run.begin(RECIPE)
    run.write_history([{"epoch": 1}])
    shutil.move(tmp_path / "here", tmp_path / "there")
    moved = RunDirectory(str(tmp_path / "there"))
    assert moved.read_recipe() == RECIPE and moved.read_history() == [{"epoch": 1}]
    assert str(tmp_path) not in moved.recipe_file.read_text() + moved.environment_file.read_text()


def test_history_is_one_json_object_per_line_without_nan(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert run.read_history() == []
    run.write_history([{"epoch": 1, "validation/mse": 0.5}, {"epoch": 2, "validation/mse": math.nan}])
    assert run.metrics_file.read_text().count("\n") == 2
    assert "NaN" not in run.metrics_file.read_text()
    assert run.read_history() == [{"epoch": 1, "validation/mse": 0.5}, {"epoch": 2, "validation/mse": None}]


@pytest.mark.parametrize("line", [b'{"epoch"', b"[1]", b"3", b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_file_is_named_in_one_line(tmp_path: Path, line: bytes) -> None:
    run = RunDirectory(tmp_path)
    run.metrics_file.write_bytes(b'{"epoch": 1}\n' + line)
    with pytest.raises(RunError, match=r"metrics\.jsonl is damaged in line 2: [^\n]*$"):
        run.read_history()
    run.recipe_file.write_bytes(line)
    with pytest.raises(RunError, match=r"recipe\.json is damaged: [^\n]*$"):
        run.read_recipe()


def test_a_directory_that_cannot_be_used_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("text")
    for path in (file, file / "run"):
        with pytest.raises(RunError, match=r"cannot be used: .*file is a file; choose another one"):
            RunDirectory(path).check_writable()
    RunDirectory(tmp_path / "a" / "b").check_writable()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    with pytest.raises(RunError, match="is not a run directory"):
        RunDirectory(tmp_path).read_recipe()


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder that nobody can write")
def test_a_folder_that_nobody_can_write_is_refused() -> None:
    run = RunDirectory("/proc/self/run")
    with pytest.raises(RunError, match=r"/proc/self/run cannot be written: [^\n]*$"), run.lock():
        pass


def test_a_second_process_is_refused_and_a_kill_leaves_no_lock(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    holder = subprocess.Popen([sys.executable, "-c", _HOLDER, str(run.path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "locked\n"
        with pytest.raises(RunError, match=rf"process {holder.pid} trains in .*run; wait until it ends"), run.lock():
            pass
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        if holder.stdout is not None:
            holder.stdout.close()
    # At once, although a process that the killed one had forked is alive.
    with run.lock():
        assert [path.name for path in run.path.iterdir()] == [".lock"]


def test_a_lock_of_the_same_process_is_refused_too_but_may_be_taken_twice(tmp_path: Path) -> None:
    run, refused = RunDirectory(tmp_path), pytest.raises(RunError, match=f"process {os.getpid()} trains in")
    with run.lock(), run.lock(), refused, RunDirectory(tmp_path).lock():
        pass


def test_a_lock_leaves_nothing_behind(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "a" / "run").lock():
        pass
    assert not (tmp_path / "a").exists()
    run = RunDirectory(tmp_path / "b" / "run")
    with run.lock():
        run.begin(RECIPE)
    assert sorted(path.name for path in run.path.iterdir()) == ["environment.json", "recipe.json"]
    # An error of the work within is not taken for one of the directory.
    with pytest.raises(FileNotFoundError, match="nothing"), run.lock():
        (tmp_path / "nothing").read_text()


def test_only_the_first_of_several_processes_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunDirectory(tmp_path).lock():
        monkeypatch.setenv("RANK", "1")
        with RunDirectory(tmp_path).lock():
            pass


def test_many_processes_in_turn_never_hold_the_lock_together(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _TAKER, str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert all(int(output) > 0 for output in outputs)


needs_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such setting")

# Twelve steps that each take 48 MB in blocks of 8 MB and free all of it: page faults of the last ten.
_STEPS = """
import ctypes, resource, sys
if sys.argv[1] == "keep":
    from smoe.training.run_directory import keep_freed_memory
    assert keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
for step in range(12):
    if step == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [libc.malloc(8 << 20) for _ in range(6)]
    for block in blocks:
        libc.memset(block, 1, 8 << 20)
    for block in blocks:
        libc.free(block)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@needs_glibc
def test_the_next_step_finds_its_pages() -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MALLOC_") and name != "GLIBC_TUNABLES"
    }
    faults = {
        way: int(
            subprocess.run(
                [sys.executable, "-c", _STEPS, way], env=environment, capture_output=True, text=True, check=True
            ).stdout
        )
        for way in ("keep", "leave")
    }
    # 48 MB are 12,288 pages; huge pages would make them fewer.
    assert faults["keep"] < 100 < faults["leave"]
