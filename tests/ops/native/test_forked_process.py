"""A forked process calls the kernels with one thread: the threads of OpenMP are not forked."""

from __future__ import annotations

import subprocess
import sys

import pytest

from smoe.ops._operators import native_library

if native_library() is None:
    pytest.skip("the kernels are not built here; python -m smoe.ops.backends says why", allow_module_level=True)

PROGRAM = """
import os, select, signal
import torch
from smoe.ops import routed_conv2d

torch.set_num_threads(2)
input, weight = torch.randn(1, 9, 60, 80), torch.randn(7, 9, 3, 3)
routing = torch.rand(1, 7, 4800).topk(5, dim=1).indices.int()
expected = routed_conv2d(input, weight, routing)
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    # A comparison by torch would itself wait for the threads of OpenMP.
    output = routed_conv2d(input, weight, routing)
    os.write(writing, b"equal" if output.numpy().tobytes() == expected.numpy().tobytes() else b"other")
    os._exit(0)
print(os.read(reading, 5).decode() if select.select([reading], [], [], 60)[0] else "hangs")
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
"""


def test_a_forked_process_does_not_wait_for_threads_that_it_does_not_have() -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=280)
    assert (result.stdout, result.returncode) == ("equal\n", 0), result.stderr
