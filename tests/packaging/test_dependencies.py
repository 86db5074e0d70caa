"""What `import smoe` needs and costs."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

from smoe.benchmarks.package import BOUNDS, import_times
from smoe.version import __version__

ROOT = Path(__file__).parents[2]
STORED = ROOT / "results" / "bench" / "package.jsonl"

# Refuses every package but torch, numpy and what torch itself requires, as in an environment with nothing else.
REFUSE_OTHERS = """
import sys
ALLOWED = {"smoe", "torch", "torchgen", "numpy", "filelock", "fsspec", "jinja2", "markupsafe", "mpmath", "networkx",
           "sympy", "typing_extensions", "functorch", "triton"}
class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in ALLOWED or top in sys.stdlib_module_names or top.startswith("_"):
            return self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""


def run(program: str) -> str:
    command = [sys.executable, "-W", "error", "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_every_public_name_of_the_core_needs_torch_and_numpy_only() -> None:
    run(
        REFUSE_OTHERS
        + """
import importlib
import torch, smoe
refused = {}
for name in smoe.__all__:
    try:
        getattr(smoe, name)
    except ModuleNotFoundError as error:
        refused[name] = str(error)
assert set(refused) <= {"GridRegressor", "load", "plot_routing"}, refused  # names of the extras `fit` and `plot`
for room in ("ops", "nn", "losses", "metrics", "diagnostics", "gridded", "models", "rules"):
    module = importlib.import_module(f"smoe.{room}")
    for name in getattr(module, "__all__", ()):
        getattr(module, name)
layer = smoe.SpatialMoE2d(1, num_experts=3, num_selected=1, spatial_shape=(8, 8))
layer(torch.randn(2, 1, 8, 8)).square().mean().backward()
print(smoe.describe(layer))
"""
    )


def test_the_refusal_works() -> None:
    output = run(REFUSE_OTHERS + "try:\n    import xarray\nexcept ModuleNotFoundError as error:\n    print(error)")
    assert output == "No module named 'xarray'\n"


def test_imports_are_quick_and_the_stored_wheel_is_small() -> None:
    stored = {row["what"]: row["value"] for row in map(json.loads, STORED.read_text().splitlines())}
    measured = stored | import_times()
    assert [what for what, bound in BOUNDS.items() if max(stored[what], measured[what]) >= bound] == []


def test_the_version_is_written_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "smoe.version.__version__"}
    assert f"version: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text()
