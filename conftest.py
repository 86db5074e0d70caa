"""What all tests share."""

from __future__ import annotations

import os
import signal

import pytest
import torch

# Without a GPU, Triton kernels run in Triton's interpreter, which reads this variable when Triton is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Under `nohup make test &` SIGINT and SIGHUP are ignored, which the processes that tests start would inherit.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    # The tensors are small, and several test processes at once would wait for each other's threads.
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)
