"""Builds the C++ kernels, once for each instruction set; everything else is in pyproject.toml.

The kernels are plain shared libraries behind a C interface, opened by ctypes: no torch or Python headers, so they build
in seconds, in any environment, and one wheel serves every version of Python. They are optional: without a compiler the
install succeeds and PyTorch does the work.
"""

import platform
import re
import sys
import tomllib
import zlib
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FOLDER = Path("src") / "smoe" / "csrc"
IS_APPLE = sys.platform == "darwin"

# Floating-point results must not depend on the order a compiler likes: no -ffast-math.
# -Wno-psabi: vectors wider than a register are passed between inlined functions only.
# -fno-math-errno: nobody asks errno, and a square root that sets it is computed one by one.
# -g0: Python's own flags ask for debugging symbols, which are nine tenths of the file.
OPENMP = ["-Xpreprocessor", "-fopenmp"] if IS_APPLE else ["-fopenmp"]
COMMON = ["-O3", "-g0", "-std=c++17", *OPENMP, "-Wno-psabi", "-fno-math-errno"]
# OpenMP is compiled in and not linked: the symbols are found in the runtime that torch has loaded, whatever its file is
# called, so that there is never a second one with threads of its own.
LINK = ["-Wl,-undefined,dynamic_lookup"] if IS_APPLE else []
INSTRUCTION_SETS = {"portable": []}
if platform.machine().lower() in ("x86_64", "amd64"):
    INSTRUCTION_SETS |= {"avx2": ["-mavx2", "-mfma"], "avx512": ["-march=x86-64-v4"]}


class BuildKernels(build_ext):
    """Compiles the same files once for each instruction set, in a folder for each: objects must not mix."""

    def build_extension(self, ext: Extension) -> None:
        """Builds one library."""
        shared = self.build_temp
        self.build_temp = str(Path(shared) / ext.name)
        try:
            super().build_extension(ext)
        finally:
            self.build_temp = shared

    def finalize_options(self) -> None:
        """Builds one after the other: the folder is an attribute that parallel builds would share."""
        super().finalize_options()
        self.parallel = None

    def get_ext_filename(self, fullname: str) -> str:
        """File name without the version of Python, which the libraries do not depend on."""
        return str(Path(*fullname.split(".")).with_suffix(".so"))


class PlatformWheel(bdist_wheel):
    """A wheel for one platform and every version of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        """Tags of the file name."""
        return ("py3", "none", super().get_tag()[2])


def page_of_index() -> dict[str, Any]:
    """README for a package index, where relative links lead nowhere but with the address in pyproject.toml."""
    address = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["smoe"]["repository"].rstrip("/")
    text = Path("README.md").read_text()
    if address:
        text = re.sub(r"(!\[[^]]*\]\()(?!\w+://)", rf"\1{address}/raw/main/", text)
        text = re.sub(r"\]\((?!\w+://|#)", f"]({address}/blob/main/", text)
    return {
        "long_description": text,
        "long_description_content_type": "text/markdown",
        "project_urls": {"Repository": address, "Changelog": f"{address}/blob/main/CHANGELOG.md"} if address else {},
    }


# By which the loader tells that a library was built from other sources than those beside it (ops/_operators.py).
checksum = 0
for file in sorted(FOLDER.rglob("*.[ch]*")):
    checksum = zlib.crc32(file.read_bytes(), checksum)
sources = sorted(str(path) for path in FOLDER.rglob("*.cpp"))
headers = sorted(str(path) for path in FOLDER.rglob("*.h"))
setup(
    **page_of_index(),
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": PlatformWheel},
    ext_modules=[
        Extension(
            f"smoe._native_{name}",
            sources=sources,
            depends=headers,
            include_dirs=[str(FOLDER)],
            extra_compile_args=[*COMMON, f"-DSMOE_SOURCES={checksum}u", *flags],
            extra_link_args=LINK,
            language="c++",
            optional=True,
        )
        for name, flags in INSTRUCTION_SETS.items()
    ],
)
