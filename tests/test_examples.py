from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
# What each example prints, and the value below which its number must be.
OUTPUTS = {
    "another_grid.py": (r"never trained there: (\S+)\na gate of \(80,\) nodes", 1e-3),
    "convert_net.py": (r"5: left, its kernel is 1 x 1\n[^\n]+\nlargest difference at the start: (\S+)\n", 1e-5),
    "correct_forecast.py": (r"\* model +(\S+) ", 0.8),
    "mesh.py": (r"loss (\S+), (?:9[5-9]|100)% of the nodes have the expert of their region", 1e-2),
    "one_layer.py": (r"SMoE layer (\S+); .*\n([01])(?: \2){15}(?: (?!\2)[01]){16}\n[\s\S]*the routing helps", 1e-3),
    "read_routing.py": (r"first row: \[([01])(?:, \1){11}(?:, (?!\1)[01]){12}\]\n[\s\S]*the routing helps", 2.0),
    "several_machines.py": (r"2 processes, loss (\S+)\n", 1e-2),
    "unet.py": (r"plain \S+, with one layer (\S+)\n", 0.25),
}


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_an_example_is_short_and_does_what_it_says(name: str, tmp_path: Path) -> None:
    assert len((EXAMPLES / name).read_text().splitlines()) < 40
    several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *(several if name == "several_machines.py" else []), str(EXAMPLES / name)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    # PyTorch's own threads of a process group can abort a process that has done everything, as Python ends.
    if name == "several_machines.py" and "terminate called without an active exception" in result.stderr:
        result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    pattern, limit = OUTPUTS[name]
    found = re.search(pattern, result.stdout)
    assert found is not None and float(found[1]) < limit, result.stdout
