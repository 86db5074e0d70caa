"""Measures what an installation costs: the time of an import, the size of the wheel and of what it holds.

Run: make wheel, then smoe bench package [--dist dist]. Prints the table and stores it in results/bench. A test bounds
the same quantities (tests/packaging).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import zipfile
from pathlib import Path

from smoe.benchmarks.stored_table import circumstances, write_table

# Largest values that the tests accept, about twice what was measured.
BOUNDS = {
    "import smoe, s": 0.2,
    "smoe.SpatialMoE2d after torch, s": 1.0,
    "first layer, s": 4.0,
    "smoe --help, s": 1.0,
    "wheel, MB": 3.0,
}

_IMPORTS = """
import json, time
times = [time.process_time()]
import smoe
times.append(time.process_time())
import torch, numpy
times.append(time.process_time())
smoe.SpatialMoE2d
times.append(time.process_time())
smoe.SpatialMoE2d(1, num_experts=2, num_selected=1, spatial_shape=(4, 4))
times.append(time.process_time())
print(json.dumps([after - before for before, after in zip(times, times[1:])]))
"""
_HELP = "import smoe.cli, time; smoe.cli.main(['--help']); print(time.process_time())"


def import_times(repeats: int = 3) -> dict[str, float]:
    """Processor time of imports in new processes, in seconds: the best of some."""
    smoe_alone, _, layers, first = (
        min(times) for times in zip(*(json.loads(_last_line(_IMPORTS)) for _ in range(repeats)), strict=True)
    )
    return {
        "import smoe, s": smoe_alone,
        "smoe.SpatialMoE2d after torch, s": layers,
        "first layer, s": first,
        "smoe --help, s": min(float(_last_line(_HELP)) for _ in range(repeats)),
    }


def wheel_sizes(wheel: Path) -> dict[str, float]:
    """Size of a wheel and of the kernels in it, in MB."""
    with zipfile.ZipFile(wheel) as archive:
        kernels = sum(entry.file_size for entry in archive.infolist() if entry.filename.endswith(".so"))
        files = sum(entry.file_size for entry in archive.infolist())
    return {"wheel, MB": wheel.stat().st_size / 1e6, "installed, MB": files / 1e6, "kernels, MB": kernels / 1e6}


def _last_line(program: str) -> str:
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return result.stdout.splitlines()[-1]


def main(args: list[str] | None = None) -> None:
    """Measures and stores."""
    parser = argparse.ArgumentParser("smoe bench package", description=__doc__)
    parser.add_argument("--dist", type=Path, default=Path("dist"), help="folder with the wheel")
    arguments = parser.parse_args(args)
    wheels = sorted(arguments.dist.glob("smoe-*.whl"))
    if len(wheels) != 1:
        raise SystemExit(f"smoe bench package needs one wheel in {arguments.dist}, found {len(wheels)}: run make wheel")
    measured = {**import_times(), **wheel_sizes(wheels[0])}
    rows = [
        {"what": what, "value": round(value, 3), "bound": BOUNDS.get(what, ""), **circumstances()}
        for what, value in measured.items()
    ]
    columns = ["what", "value", "bound", "processor", "torch", "commit", "date"]
    notes = (
        "Processor time, best of three new processes; the first layer imports torch's compiler, which any optimiser "
        f"does, too. The wheel is {wheels[0].name}."
    )
    path = Path("results") / "bench" / "package.md"
    print(write_table(path, "What an installation costs", "smoe bench package", columns, rows, notes))
