"""Makes planned runs in several processes. Runs are resumable at any moment.

Each process trains one run at a time and stores it itself. A run that is stopped leaves its checkpoint, from which the
next call continues.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Protocol

from smoe._files import FileLock, LockedError
from smoe.child_processes import STOPS
from smoe.experiments.reproduction.run import PlannedRun, train_and_store
from smoe.experiments.result_tables.stored_runs import RunStore
from smoe.training.run_directory import RunError

_SECONDS_BETWEEN_LOOKS = 0.5


class Watcher(Protocol):
    """Reports the progress of the runs."""

    def begin(self, run: PlannedRun, folder: Path) -> None:
        """Reports that a run begins, or continues."""
        ...

    def end(self, run: PlannedRun) -> None:
        """Reports that a run is stored."""
        ...

    def look(self) -> None:
        """Updates what is shown; called every half second."""
        ...


def make_runs(
    planned: Sequence[PlannedRun], store: RunStore, runs_dir: Path, *, jobs: int, num_threads: int, watcher: Watcher
) -> bool:
    """Trains and stores all planned runs, in their order; returns whether all came to their end.

    Args:
        planned: Runs to make, without those that are stored.
        store: Store of the results.
        runs_dir: Folder of the runs' folders.
        jobs: Number of processes.
        num_threads: Threads of each process.
        watcher: Reports the progress.

    Raises:
        RunError: If a process was killed.
    """
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    waiting = list(reversed(planned))
    active: dict[Future[bool], PlannedRun] = {}
    with _only_one(runs_dir), _stopped_by_signals(stop):
        pool = ProcessPoolExecutor(
            jobs, mp_context=context, initializer=_begin_process, initargs=(num_threads, os.getpid(), stop)
        )
        try:
            while (waiting or active) and not (stop.is_set() and not active):
                while waiting and len(active) < jobs and not stop.is_set():
                    run = waiting.pop()
                    active[pool.submit(train_and_store, run, store, runs_dir)] = run
                    watcher.begin(run, runs_dir / run.key.name)
                done, _ = wait(active, timeout=_SECONDS_BETWEEN_LOOKS, return_when=FIRST_COMPLETED)
                watcher.look()
                for future in done:
                    run = active.pop(future)
                    # After a stop, a process that was between two runs is gone, and its run waits for the next call.
                    failure = future.exception()
                    if stop.is_set() and failure is not None:
                        continue
                    if isinstance(failure, BrokenProcessPool):
                        raise RunError(
                            f"the process that trained {run.label} was killed from outside, perhaps for its memory; "
                            "the checkpoint of its last epoch stays: give the same command again, or fewer --jobs"
                        )
                    if future.result():
                        watcher.end(run)
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
    return all(store.has(run.key) for run in planned)


def _begin_process(num_threads: int, parent: int, stop: Event) -> None:
    import torch

    torch.set_num_threads(num_threads)
    # The terminal sends Ctrl-C to all processes of the group; the parent passes it on through the event.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_watch, args=(parent, stop), daemon=True).start()


def _watch(parent: int, stop: Event) -> None:
    while os.getppid() == parent:
        # Not `stop.wait`: if this process is killed while it waits, whoever sets the event waits for it for ever.
        if stop.is_set():
            # The loop saves its state on this signal and returns; the next one, between two runs, ends the process.
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1.0)
    # The parent was killed: nobody would take the result. The checkpoint of the last epoch stays.
    os._exit(1)


@contextlib.contextmanager
def _stopped_by_signals(stop: Event) -> Iterator[None]:
    ours = [number for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, lambda *_: stop.set()) for number in ours}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _only_one(runs_dir: Path) -> Iterator[None]:
    """Keeps a second call from training the same runs at the same time.

    Raises:
        RunError: If another process makes runs in the folder.
    """
    runs_dir.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(FileLock(runs_dir / ".lock"))
        except LockedError as error:
            raise RunError(f"{error.holder} is making runs in {runs_dir}; wait for it or stop it") from None
        yield
