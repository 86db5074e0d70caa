"""`smoe data fetch era5-sample`: downloads a few real fields of ERA5 from a package."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from smoe.atomic_files import write_atomically
from smoe.command_line import parse
from smoe.errors import DataError

# The source package of cfgrib contains ERA5 fields for its own tests; later releases may not.
PACKAGE = "cfgrib==0.9.15.1"
MEMBER = "tests/sample-data/era5-levels-members.nc"


@dataclass(frozen=True)
class FetchSample:
    """Fetches ERA5's ten ensemble members at 3 degrees: geopotential and temperature at 850 and 500 hPa, four times.

    The fields are from January 2017; pip downloads 10 MB, the source package of cfgrib.

    Attributes:
        output_dir: Folder for the file.
    """

    output_dir: Path = Path("data/era5-sample")


def run(args: list[str]) -> int:
    """Fetches the file and prints its path."""
    options = parse(FetchSample, args, prog="smoe data fetch era5-sample")
    sys.stdout.write(f"{fetch_era5_sample(options.output_dir)}\n")
    return 0


def fetch_era5_sample(output_dir: Path) -> Path:
    """Downloads the package with pip, extracts the file and checks it; an existing file is kept."""
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
