from __future__ import annotations

import pytest
import torch

from smoe.cli.main import main
from smoe.command_line import UsageError
from smoe_paper.benchmarks import device


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_device_benchmark_without_a_device():
    with pytest.raises(UsageError, match="--device cuda needs a CUDA device"):
        device.main([])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("arguments", [["layer", "--device", "cuda", "--dtype", "bf16"]])
def test_one_line_without_a_device(arguments, capsys):
    assert main(["bench", *arguments]) == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1 and "--device cuda needs a CUDA device, and PyTorch" in text
