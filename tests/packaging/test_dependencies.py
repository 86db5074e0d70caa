"""What `import smoe` needs and costs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from smoe.version import __version__

ROOT = Path(__file__).parents[2]

# Largest processor times in seconds, about twice what was measured.
BOUNDS = {"import smoe": 0.2, "smoe.SpatialMoE2d after torch": 1.0, "first layer": 4.0, "smoe --help": 1.0}
IMPORTS = """
import json, time
times = [time.process_time()]
import smoe
times.append(time.process_time())
import torch, numpy
times.append(time.process_time())
smoe.SpatialMoE2d
times.append(time.process_time())
smoe.SpatialMoE2d.from_experts(1, num_experts=2, num_selected=1, spatial_shape=(4, 4))
times.append(time.process_time())
print(json.dumps([after - before for before, after in zip(times, times[1:])]))
"""
HELP = "import smoe.cli, time; smoe.cli.main(['--help']); print(time.process_time())"

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
for room in ("ops", "nn", "losses", "diagnostics", "gridded", "rules"):
    module = importlib.import_module(f"smoe.{room}")
    for name in getattr(module, "__all__", ()):
        getattr(module, name)
layer = smoe.SpatialMoE2d.from_experts(1, num_experts=3, num_selected=1, spatial_shape=(8, 8))
layer(torch.randn(2, 1, 8, 8)).square().mean().backward()
print(smoe.describe(layer))
try:
    import xarray
    raise AssertionError("the refusal does not work")
except ModuleNotFoundError:
    pass
"""
    )


def test_imports_are_quick() -> None:
    """A new process, or the best of three."""
    slow, measured = set(BOUNDS), {}
    for _ in range(3):
        alone, _, layers, first = json.loads(run(IMPORTS))
        usage = float(run(HELP).splitlines()[-1])
        measured = dict(zip(BOUNDS, (alone, layers, first, usage), strict=True))
        slow &= {what for what, seconds in measured.items() if seconds >= BOUNDS[what]}
        if not slow:
            return
    raise AssertionError(measured)


def test_the_kernels_need_no_newer_system_than_the_wheel_says() -> None:
    elffile = pytest.importorskip("elftools.elf.elffile")
    needed: set[str] = set()
    for path in (ROOT / "src/smoe").glob("_native_*.so"):
        with path.open("rb") as file:
            for _, versions in elffile.ELFFile(file).get_section_by_name(".gnu.version_r").iter_versions():
                needed |= {version.name for version in versions}
    glibc = [name for name in needed if name.startswith("GLIBC_")]
    assert [name for name in glibc if tuple(map(int, name[6:].split("."))) > (2, 28)] == []


def test_the_version_is_written_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version", "readme", "urls"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "smoe.version.__version__"}
    assert f"version: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_conda_recipe_needs_what_the_package_needs() -> None:
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {f"python {project['requires-python']}"} | {
        re.sub(r"^torch\b", "pytorch", each).replace(">=", " >=") for each in project["dependencies"]
    }
    assert set(recipe["requirements"]["run"]) == {each.replace("  ", " ") for each in needed}
    assert recipe["package"] == {"name": project["name"], "version": __version__}
    assert recipe["about"]["summary"] == project["description"]
