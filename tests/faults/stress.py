"""`python -m faults.stress KIND`: reads numbers of cases and answers each with a line, `equal` or what went wrong.

One interpreter serves all cases of a kind. It is started anew, and not forked from the one that counts the outcomes,
because it runs several threads.
"""

from __future__ import annotations

import copy
import os
import select
import signal
import sys
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

import smoe
from faults.shared_layers import Shared, make_layers
from smoe.ops import routed_conv2d

RULES = ("rc", "probe", "straight_through", "end_to_end", "frozen")
NUM_CALLS, NUM_FORKS, NUM_STEPS = 400, 10, 1000
_SECONDS = 60.0
# Bytes that a rule may take more after all of its steps: 100 for each of 10,000 steps.
_MOST_GROWTH = 1_000_000


class Threads:
    """Eight threads share all layers, while another one trains copies of them and changes the number of threads."""

    def __init__(self) -> None:
        self.layers = make_layers()
        with torch.no_grad():
            self.expected = [[each.layer(*inputs) for inputs in each.inputs] for each in self.layers]
        # Threads take turns as often as they can.
        sys.setswitchinterval(1e-5)

    def try_case(self, number: int) -> str:
        """Returns `equal`, or which results differ."""
        is_over = threading.Event()
        trainer = threading.Thread(target=self._train_copies, args=(number, is_over))
        trainer.start()
        try:
            with ThreadPoolExecutor(8) as pool:
                names = [name for name in pool.map(self._compute, range(number, number + NUM_CALLS)) if name]
        finally:
            is_over.set()
            trainer.join()
        return f"{len(names)} of {NUM_CALLS} results differ: {', '.join(sorted(set(names)))}" if names else "equal"

    def _compute(self, number: int) -> str:
        place = number % len(self.layers)
        shared = self.layers[place]
        chosen = number // 7 % len(shared.inputs)
        with torch.no_grad():
            is_equal = torch.equal(shared.layer(*shared.inputs[chosen]), self.expected[place][chosen])
        return "" if is_equal else shared.name

    def _train_copies(self, number: int, is_over: threading.Event) -> None:
        copies = [copy.deepcopy(shared.layer).train() for shared in self.layers]
        while not is_over.is_set():
            place = number % len(copies)
            torch.set_num_threads(1 + number % 3)
            copies[place](*self.layers[place].inputs[0]).square().mean().backward()
            number += 1


class Forks:
    """A thread works while the process is forked; the children compute and train the same layer."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.layers = make_layers()
        self.input, self.weight = torch.randn(1, 9, 30, 40), torch.randn(7, 9, 3, 3)
        # New routings each time, so that plans are made most of the time.
        self.routings = [torch.rand(1, 7, 1200).topk(5, dim=1).indices.int() for _ in range(40)]

    def try_case(self, number: int) -> str:
        """Returns `equal`, or what a child answered."""
        shared = self.layers[number % len(self.layers)]
        is_over, first = threading.Event(), _gradients(shared)
        worker = threading.Thread(target=self._work, args=(shared, number, is_over))
        worker.start()
        try:
            answers = [_ask_child(shared, first) for _ in range(NUM_FORKS)]
        finally:
            is_over.set()
            worker.join()
        wrong = next((answer for answer in answers if answer != "equal"), None)
        return "equal" if wrong is None else f"{shared.name}: the child: {wrong}"

    def _work(self, shared: Shared, number: int, is_over: threading.Event) -> None:
        own = Shared(shared.name, copy.deepcopy(shared.layer).train(), shared.inputs)
        while not is_over.is_set():
            _gradients(own)
            routed_conv2d(self.input, self.weight, self.routings[number % 40])
            number += 1


def _gradients(shared: Shared) -> list[Tensor]:
    """The output and the gradients of a step in evaluation mode."""
    shared.layer.zero_grad()
    output = shared.layer(*shared.inputs[0])
    if output.requires_grad:
        output.square().mean().backward()
    gradients = [parameter.grad for parameter in shared.layer.parameters() if parameter.grad is not None]
    return [output.detach(), *(gradient.clone() for gradient in gradients)]


def _ask_child(shared: Shared, expected: list[Tensor]) -> str:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        answer = b"an error"
        try:
            found = _gradients(shared)
            is_equal = len(found) == len(expected) and all(map(torch.equal, found, expected))
            answer = b"equal" if is_equal else b"other values"
        except Exception as error:  # the answer says so
            answer = repr(error).encode()[:1000]
        finally:
            os.write(writing, answer)
            os._exit(0)
    os.close(writing)
    answer = os.read(reading, 1000) if select.select([reading], [], [], _SECONDS)[0] else b"no answer"
    os.close(reading)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return answer.decode() or "it ended without an answer"


class Leaks:
    """Memory over training steps, added up for each rule."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.grown: dict[str, int] = defaultdict(int)
        self.trained = {rule: _Trained(rule) for rule in RULES}
        for trained in self.trained.values():
            trained.steps(500)

    def try_case(self, number: int) -> str:
        """Returns `equal`, or the bytes that a rule has taken."""
        rule = RULES[number % len(RULES)]
        before = _resident()
        self.trained[rule].steps(NUM_STEPS)
        self.grown[rule] += _resident() - before
        taken = self.grown[rule]
        return f"{rule}: {taken} bytes more after {NUM_STEPS} steps" if taken > _MOST_GROWTH else "equal"


class _Trained:
    def __init__(self, rule: str) -> None:
        self.layer = smoe.SpatialMoE2d(2, 5, 2, spatial_shape=(6, 5), rule=rule, weighted=rule == "end_to_end")
        self.optimizer = torch.optim.Adam(self.layer.parameters(), lr=1e-3)

    def steps(self, count: int) -> None:
        for step in range(count):
            x = torch.randn(1 + step % 3, 2, 6, 5)
            smoe.track_loss_scale(self.layer(x).square().mean(), self.layer).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Answers until the input ends."""
    torch.manual_seed(0)
    kind = {"threads": Threads, "forks": Forks, "leaks": Leaks}[sys.argv[1]]()
    for line in sys.stdin:
        sys.stdout.write(f"{' '.join(kind.try_case(int(line)).split())}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
