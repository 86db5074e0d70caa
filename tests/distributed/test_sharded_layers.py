"""Every geometry and every kind of gate trains sharded (FSDP2) as it does whole."""

from __future__ import annotations

import socket

import pytest
from torch import distributed, multiprocessing

from sharded_layers import run_process

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="torch was built without distributed")


def test_every_geometry_and_gate_trains_sharded_as_whole() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(run_process, args=(2, port), nprocs=2)
