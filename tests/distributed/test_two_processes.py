from __future__ import annotations

import pytest
import torch
from torch import distributed, multiprocessing

from distributed_training import make_default_net, make_net, run_process, train
from launched_training import free_port

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="torch was built without distributed")


def test_two_processes_train_as_one_with_the_same_global_batch(tmp_path):
    multiprocessing.spawn(run_process, args=(2, free_port(), str(tmp_path)), nprocs=2)
    # Of the default rule, the first update of the experts is that of one process; gates learn from the samples of each.
    first = make_default_net("straight_through(noise=0.0)")
    for name, expected, num_steps in (("rc", make_net(), 4), ("first", first, 1), ("default", make_default_net(), 4)):
        start = {key: value.clone() for key, value in expected.state_dict().items()}
        train(expected, slice(None), num_steps)
        states = [torch.load(tmp_path / f"{name}-{rank}.pt") for rank in range(2)]
        for key, value in expected.state_dict().items():
            assert torch.equal(states[0][key], states[1][key]), (name, key)
            if name == "rc" or (name == "first" and key.endswith(("weight", "bias"))):
                torch.testing.assert_close(states[0][key], value, rtol=1e-10, atol=1e-12, msg=key)
            assert not value.is_floating_point() or states[0][key].isfinite().all(), key
        moved = [key for key, value in start.items() if not torch.allclose(states[0][key].double(), value.double())]
        assert any("gate" in key for key in moved) and any(key.endswith("weight") for key in moved), name
