"""Threads that share layers, forks while a thread convolves, and memory over many steps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from faults.outcome import Kind, Outcome, TryCase

_SECONDS = 300.0

_THREADS = """
import sys, torch, smoe
from concurrent.futures import ThreadPoolExecutor
torch.manual_seed(int(sys.argv[1]))
torch.set_num_threads(1 + int(sys.argv[1]) % 2)
layers = []
for rule, gate in (("rc", None), ("straight_through", None), ("rc", smoe.ConvGate(3, 6, 2))):
    shape = None if gate is not None else (9, 7)
    layers.append(smoe.SpatialMoE2d(3, 6, 2, spatial_shape=shape, gate=gate, rule=rule).eval())
shared = layers[0].gate
layers.append(smoe.SpatialMoE2d(3, 6, 2, gate=shared, rule="rc").eval())
inputs = [torch.randn(2, 3, 9, 7) for _ in range(4)]
with torch.no_grad():
    expected = {(l, i): layers[l](inputs[i]) for l in range(len(layers)) for i in range(4)}
    def compute(number):
        with torch.no_grad():
            key = (number % len(layers), number // 7 % 4)
            return torch.equal(layers[key[0]](inputs[key[1]]), expected[key])
    with ThreadPoolExecutor(8) as pool:
        wrong = sum(not right for right in pool.map(compute, range(400)))
sys.exit(f"{wrong} of 400 results differ" if wrong else 0)
"""

_FORKS = """
import os, select, signal, sys, threading, torch
from smoe.ops import routed_conv2d
torch.manual_seed(int(sys.argv[1]))
torch.set_num_threads(1)
input, weight = torch.randn(1, 9, 30, 40), torch.randn(7, 9, 3, 3)
# New routings each time, so that plans are made most of the time.
routings = [torch.rand(1, 7, 1200).topk(5, dim=1).indices.int() for _ in range(40)]
expected = routed_conv2d(input, weight, routings[0])
is_over = threading.Event()
def convolve():
    while not is_over.is_set():
        for routing in routings:
            routed_conv2d(input, weight, routing)
thread = threading.Thread(target=convolve)
thread.start()
problem = None
for _ in range(10):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"equal" if torch.equal(routed_conv2d(input, weight, routings[0]), expected) else b"wrong")
        os._exit(0)
    os.close(writing)
    answer = os.read(reading, 5) if select.select([reading], [], [], 60)[0] else b"no answer"
    os.close(reading)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    problem = problem or (None if answer == b"equal" else f"the child: {answer.decode()}")
is_over.set()
thread.join()
sys.exit(problem)
"""

_STEPS = """
import resource, sys, torch, smoe
rules = ("rc", "probe", "straight_through", "end_to_end", "frozen")
torch.manual_seed(0)
torch.set_num_threads(1)
number, num_steps = int(sys.argv[1]), 1000
rule = rules[number % len(rules)]
layer = smoe.SpatialMoE2d(2, 5, 2, spatial_shape=(6, 5), rule=rule, weighted=rule == "end_to_end")
optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3)
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
def steps(count):
    for step in range(count):
        x = torch.randn(1 + step % 3, 2, 6, 5)
        smoe.track_loss_scale(layer(x).square().mean(), layer).backward()
        optimizer.step()
        optimizer.zero_grad()
steps(300)
before = resident()
steps(num_steps)
grown = resident() - before
sys.exit(f"{rule}: {grown} bytes more after {num_steps} steps" if grown > 1_000_000 else 0)
"""


def _script(text: str, bad: str) -> TryCase:
    def try_case(number: int) -> Outcome:
        command = [sys.executable, "-W", "ignore", "-c", text, str(number)]
        environment = {**os.environ, "OMP_NUM_THREADS": "2"}
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return Outcome("hang", f"case {number}")
        if done.returncode == 0:
            return Outcome("equal", f"case {number}")
        return Outcome("crash" if done.returncode < 0 else bad, f"code {done.returncode}: {done.stderr[-1500:]}")

    return try_case


def _prepare(text: str, bad: str = "silent"):
    def prepare(folder: Path) -> TryCase:
        del folder
        return _script(text, bad)

    return prepare


KINDS = (
    Kind("threads", "8 threads that share layers, 400 calls each", 20, _prepare(_THREADS), is_isolated=False),
    Kind("forks", "10 forks each, while a thread convolves", 20, _prepare(_FORKS), is_isolated=False),
    Kind("leaks", "memory after 1,000 training steps each, five rules", 50, _prepare(_STEPS, "memory"),
         is_isolated=False),
)  # fmt: skip
