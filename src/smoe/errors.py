"""What is raised when data cannot be used or a package is missing, and what messages say. Imports nothing heavy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

# The extra of pyproject.toml that installs a package.
EXTRAS = {
    **dict.fromkeys(("accelerate", "tyro", "rich", "matplotlib", "xarray", "netCDF4", "zarr", "dask"), "fit"),
    **dict.fromkeys(("cf_xarray", "scipy", "safetensors"), "fit"),
    "meshio": "mesh",
    "cfgrib": "weather",
    "eccodes": "weather",
}


class SmoeError(Exception):
    """Base of what smoe raises about a user's data, options, recipes and packages."""


class DataError(SmoeError, ValueError):
    """Data are not what they should be: says what was found, where, what was expected, and what to do."""


class OptionError(SmoeError, ValueError, TypeError):
    """An option that does not exist, or has a value that it cannot have."""


class MissingPackageError(SmoeError, ModuleNotFoundError):
    """An optional package is not installed: says what needs it, and how to install it."""


def missing_package(user: str, package: str) -> MissingPackageError:
    """The error that names the extra which installs a package."""
    extra = EXTRAS[package]
    return MissingPackageError(
        f'{user} needs {package}, which the extra {extra!r} installs: pip install ".[{extra}]" in a checkout of smoe',
        name=package,
    )


@contextmanager
def naming_extras(user: str) -> Iterator[None]:
    """Turns the failed import of an optional package into an error that names its extra."""
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


def suggest(name: str, known: Iterable[str], *, cutoff: float = 0.6, otherwise: str = "there are") -> str:
    """`did you mean 'train'?`, or, if nothing is near, all the names there are."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=cutoff)
    return f"did you mean {near[0]!r}?" if near else f"{otherwise} {', '.join(names)}"
