"""What is raised when data cannot be used, or an optional package is missing. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

# The extra of pyproject.toml that installs a package.
EXTRAS = {
    **dict.fromkeys(("accelerate", "tyro", "rich", "matplotlib", "xarray", "netCDF4", "zarr", "dask"), "fit"),
    "safetensors": "fit",
    "meshio": "mesh",
    "cfgrib": "weather",
    "eccodes": "weather",
}


class DataError(ValueError):
    """Data are not what they should be: says what was found, where, what was expected, and what to do."""


class MissingPackageError(ModuleNotFoundError):
    """An optional package is not installed: says what needs it, and how to install it."""


def missing_package(user: str, package: str) -> MissingPackageError:
    """The error that names the extra which installs a package.

    Args:
        user: What needs the package.
        package: Name by which it is imported, one of `EXTRAS`.
    """
    extra = EXTRAS[package]
    return MissingPackageError(
        f'{user} needs {package}, which the extra {extra!r} installs: pip install ".[{extra}]" in a checkout of smoe',
        name=package,
    )


@contextmanager
def naming_extras(user: str) -> Iterator[None]:
    """Turns the failed import of an optional package into an error that names its extra.

    Args:
        user: What needs the packages that are imported within.
    """
    try:
        yield
    except MissingPackageError:
        raise
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise missing_package(user, package) from error


def printable(text: str) -> str:
    """A text in one line; codes that a terminal would obey are spelled out."""
    return "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in " ".join(text.split())
    )
