"""Builds the wheel as `make wheel` does, and installs it where there is no compiler."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from smoe.version import __version__

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="the wheel of Linux, x86_64"),
]


def run(*arguments: object, **options: object) -> str:
    result = subprocess.run([str(word) for word in arguments], capture_output=True, text=True, check=False, **options)  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    # The environment is not made again by its own test.
    run("make", "--old-file=.venv/ready", "wheel", f"DIST={folder}", f"BIN={Path(sys.executable).parent}", cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    return next(dist.glob("*.whl"))


def test_one_wheel_serves_every_python(dist: Path) -> None:
    assert sorted(path.name for path in dist.iterdir()) == [
        f"smoe-{__version__}-py3-none-manylinux_2_28_x86_64.whl",
        f"smoe-{__version__}.tar.gz",
    ]


def test_it_holds_the_kernels_and_no_runtime(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        libraries = [name for name in archive.namelist() if ".so" in name]
        archive.extractall(tmp_path, libraries)
        names = archive.namelist()
        assert {name.partition("/")[0] for name in names} == {"smoe", f"smoe-{__version__}.dist-info"}
        assert not [name for name in names if "csrc" in name or "tests" in name or "paper" in name]
    assert sorted(libraries) == [f"smoe/_native_{name}.so" for name in ("avx2", "avx512", "portable")]
    for name in libraries:
        needed = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", tmp_path / name))
        assert needed and not [library for library in needed if "omp" in library]


def test_it_is_small_and_needs_torch_and_numpy_only(wheel: Path) -> None:
    assert wheel.stat().st_size < 3e6
    with zipfile.ZipFile(wheel) as archive:
        metadata = Parser().parsestr(archive.read(f"smoe-{__version__}.dist-info/METADATA").decode())
    required = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert sorted(re.split(r"[^\w-]", line)[0] for line in required) == ["numpy", "torch"]
    extras = metadata.get_all("Provides-Extra", [])
    assert {"fit", "mesh", "gpu", "docs"} <= set(extras)


def test_it_runs_where_there_is_no_compiler(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    binaries = tmp_path / "venv" / "bin"
    run(binaries / "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel)
    environment = {"PATH": str(binaries), "HOME": str(tmp_path), "OMP_NUM_THREADS": "2"}
    for compiler in ("cc", "gcc", "g++", "clang"):
        assert shutil.which(compiler, path=environment["PATH"]) is None
    there = {"cwd": tmp_path, "env": environment}
    output = run(binaries / "python", ROOT / "tools" / "check_installation.py", **there)
    report = json.loads(output.splitlines()[-1])
    assert report["version"] == __version__
    assert [Path(file).parent.name for file in report["OpenMP"]] == ["lib"] and "torch" in report["OpenMP"][0]
    assert run(binaries / "smoe", "--version", **there).strip() == f"smoe {__version__}"
    assert "used for float32 on a CPU" in run(binaries / "python", "-m", "smoe.ops.backends", **there)


def test_the_sdist_builds_where_there_is_no_torch(dist: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    pip = tmp_path / "venv" / "bin" / "pip"
    # Without a compiler, too: the install succeeds and the wheel has no kernels.
    environment = {**os.environ, "CC": "false", "CXX": "false"}
    run(pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, next(dist.glob("*.tar.gz")), env=environment)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]
        assert "smoe/nn/_grid_layers.py" in archive.namelist()
