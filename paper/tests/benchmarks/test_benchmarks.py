from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from smoe.cli.main import main
from smoe_paper.benchmarks import memory
from smoe_paper.benchmarks.registry import BENCHMARKS
from smoe_paper.benchmarks.timing import interleaved_medians, write_table


def test_a_layer_is_measured_and_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from smoe_paper.benchmarks import layer

    monkeypatch.setattr(layer, "CONFIGURATIONS", {"tiny": layer.Configuration(2, 3, 2, 2, 9, 10)})
    table = tmp_path / "layer.md"
    assert main(["bench", "layer", "tiny", "--output", str(table), "--seconds", "0.01"]) == 0
    text = table.read_text()
    assert text.count("| tiny |") == 2 and "| smooth | 1 |" in text
    assert len(table.with_suffix(".jsonl").read_text().splitlines()) == 2


def test_an_unknown_configuration_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "layer", "nonsense"]) == 2
    assert "no configuration's name contains nonsense" in capsys.readouterr().err


def test_medians_are_of_each_way() -> None:
    calls: list[str] = []
    times = interleaved_medians({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, seconds=0.0)
    assert set(times) == {"a", "b"} and calls[2:6] == ["a", "b", "a", "b"]
    assert calls.count("a") == calls.count("b") == 6


def test_a_table_is_markdown_with_its_command(tmp_path: Path) -> None:
    text = write_table(tmp_path / "t.md", "Title", "make it", ["x"], [{"x": 1, "hidden": 2}], "A note.")
    assert text == "# Title\n\nMade by `make it`.\n\n| x |\n|---|\n| 1 |\n\nA note.\n"
    assert (tmp_path / "t.jsonl").read_text() == '{"x": 1, "hidden": 2}\n'


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_is_found_by_name_and_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["bench", name, "--help"])
    except SystemExit as stop:
        code = stop.code
    assert code in (0, None)
    assert f"smoe bench {name}" in capsys.readouterr().out


def test_an_unknown_benchmark_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "layr"]) == 2
    assert "smoe bench has no 'layr'; did you mean 'layer'?" in capsys.readouterr().err


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peaks are read from /proc")
@pytest.mark.slow
def test_a_step_needs_at_most_a_third_more_memory_than_that_of_a_convolution() -> None:
    row = memory.measure("CIFAR, 64")
    assert set(memory.COLUMNS) <= set(row)
    assert all(float(row[f"{way} less its numbers"]) <= 1.35 for way in ("default", "frozen"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_one_line_without_a_device(capsys):
    assert main(["bench", "device", "--dtype", "bf16"]) == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1 and "--device cuda needs a CUDA device, and PyTorch" in text
