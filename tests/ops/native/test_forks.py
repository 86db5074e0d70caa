"""Forks while another thread convolves: the child does not hang, and its results are equal."""

from __future__ import annotations

import subprocess
import sys

import pytest

from smoe.ops._operators import native_library

if native_library() is None:
    pytest.skip("the kernels are not built here; python -m smoe.ops.backends says why", allow_module_level=True)

# One thread convolves with routings that are new each time, so that plans are made most of the time; the other forks,
# and each child convolves. A child that does not answer within a minute hangs.
FORKS = """
import os, select, signal, sys, threading
import torch
from smoe.ops import routed_conv2d

torch.set_num_threads(1)
torch.manual_seed(0)
input, weight = torch.randn(1, 9, 60, 80), torch.randn(7, 9, 3, 3)
routings = [torch.rand(1, 7, 4800).topk(5, dim=1).indices.int() for _ in range(40)]
expected = routed_conv2d(input, weight, routings[0])
is_done = False

def convolve():
    while not is_done:
        for routing in routings:
            routed_conv2d(input, weight, routing)

thread = threading.Thread(target=convolve)
thread.start()
for _ in range(int(sys.argv[1])):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        is_equal = torch.equal(routed_conv2d(input, weight, routings[0]), expected)
        os.write(writing, b"equal" if is_equal else b"other")
        os._exit(0)
    os.close(writing)
    has_answer = bool(select.select([reading], [], [], 60)[0])
    answer = os.read(reading, 5) if has_answer else b"hangs"
    os.close(reading)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if answer != b"equal":
        print(answer.decode())
        break
else:
    print("all equal")
is_done = True
thread.join()
"""


def test_a_fork_while_another_thread_convolves_does_not_hang() -> None:
    result = subprocess.run(
        [sys.executable, "-c", FORKS, "60"], capture_output=True, text=True, check=False, timeout=280
    )
    assert (result.stdout, result.returncode) == ("all equal\n", 0), result.stderr
