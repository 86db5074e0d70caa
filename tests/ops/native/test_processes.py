"""The kernels in threads that share a layer, and in forked processes, to which the threads of OpenMP do not go."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from smoe import SpatialMoE2d, TensorGate, freeze
from smoe.ops._operators import native_library
from smoe_paper.baselines.layers import ConvGate

if native_library() is None:
    pytest.skip("the kernels are not built here; python -m smoe.ops.backends says why", allow_module_level=True)


@pytest.mark.parametrize("kind", ["tensor", "conv", "frozen"])
def test_threads_that_share_a_layer_in_inference_compute_the_same(kind: str) -> None:
    gate = ConvGate(3, 5, 2) if kind == "conv" else TensorGate(5, 2, (13, 11), order="families")
    layer = SpatialMoE2d.from_experts(3, 5, 2, gate=gate).eval()
    layer = freeze(layer) if kind == "frozen" else layer
    # Batches of one, some and many samples have kernels of their own.
    inputs = [torch.randn(size, 3, 13, 11) for size in (1, 3, 16, 1)]
    with torch.inference_mode():
        expected = [layer(input) for input in inputs]

    def compute(number: int) -> bool:
        # Inference mode belongs to a thread.
        with torch.inference_mode():
            return torch.equal(layer(inputs[number % 4]), expected[number % 4])

    with ThreadPoolExecutor(max_workers=8) as pool:
        assert all(pool.map(compute, range(400)))


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
        [sys.executable, "-c", FORKS, "20"], capture_output=True, text=True, check=False, timeout=280
    )
    assert (result.stdout, result.returncode) == ("all equal\n", 0), result.stderr
