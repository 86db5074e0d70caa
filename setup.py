"""Builds the C++ kernels, once for each instruction set; everything else is in pyproject.toml.

The kernels are plain shared libraries behind a C interface, opened by ctypes: no torch or Python headers, so they build
in seconds, in any environment. They are optional: without a compiler the install succeeds and PyTorch does the work.
"""

import platform
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FOLDER = Path("src") / "smoe" / "csrc"

# Floating-point results must not depend on the order a compiler likes: no -ffast-math.
# -Wno-psabi: vectors wider than a register are passed between inlined functions only.
COMMON = ["-O3", "-std=c++17", "-fopenmp", "-Wno-psabi"]
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


sources = sorted(str(path) for path in FOLDER.rglob("*.cpp"))
headers = sorted(str(path) for path in FOLDER.rglob("*.h"))
setup(
    cmdclass={"build_ext": BuildKernels},
    ext_modules=[
        Extension(
            f"smoe._native_{name}",
            sources=sources,
            depends=headers,
            include_dirs=[str(FOLDER)],
            extra_compile_args=[*COMMON, *flags],
            extra_link_args=["-fopenmp"],
            language="c++",
            optional=True,
        )
        for name, flags in INSTRUCTION_SETS.items()
    ],
)
