from __future__ import annotations

import pytest
import torch

from smoe.cli.main import main
from smoe.command_line import UsageError
from smoe_paper.benchmarks import device, step


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_device_benchmark_without_a_device():
    with pytest.raises(UsageError, match="--device cuda needs a CUDA device"):
        device.main([])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("arguments", [["layer", "--device", "cuda", "--dtype", "bf16"], ["step", "heat/smoe"]])
def test_one_line_without_a_device(arguments, capsys):
    assert main(["bench", *arguments]) == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1 and "--device cuda needs a CUDA device, and PyTorch" in text


def test_step_of_recipes_is_measured_on_a_cpu(tmp_path, capsys):
    path = tmp_path / "step.md"
    flags = ["--device", "cpu", "--dtype", "fp32", "--batch-size", "3", "--steps", "2", "--output", str(path)]
    step.main(["heat/smoe", "heat/conv", *flags])
    text = path.read_text()
    assert text in capsys.readouterr().out
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| heat")]
    assert [row[0] for row in rows] == ["| heat/smoe", "| heat/conv"]
    assert [row[1] for row in rows] == ["3", "3"] and rows[0][3] == "1.00"
    assert float(rows[0][2]) > 0
    assert rows[0][-1].startswith(("1 native (", "1 dense")) and rows[1][-1] == "none |"
    assert "--dtype fp32 --batch-size 3`" in text


def test_step_needs_a_recipe():
    with pytest.raises(UsageError, match="name a recipe"):
        step.main(["--device", "cpu"])
