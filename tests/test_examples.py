from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name: str) -> str:
    result = subprocess.run([sys.executable, EXAMPLES / name], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_one_layer_learns_its_two_halves() -> None:
    output = run("one_layer.py")
    assert float(output.split("final loss ")[1].split(";")[0]) < 1e-6
    rows = [line.split() for line in output.splitlines() if line[0].isdigit()]
    left, right = ({expert for row in rows for expert in row[half]} for half in (slice(0, 8), slice(8, 16)))
    assert len(rows) == 12 and not left & right


def test_shared_gate_counts_once_and_keeps_its_prior() -> None:
    output = run("shared_gate.py")
    # 16 experts x (3 + 8) channels x 9 taps, a 16 x 32 x 64 gate, batch norm 16, 1 x 1 convolution 8 + 1.
    assert f"{16 * 11 * 9 + 16 * 32 * 64 + 16 + 9} parameters" in output
    assert "land pixel: [8, 9, 10, 11, 12, 13, 14, 15]" in output


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_an_example_is_short(name: str) -> None:
    assert len((EXAMPLES / name).read_text().splitlines()) < 60
