"""Builds the C++ kernels, once for each instruction set; everything else is in pyproject.toml.

The kernels are plain shared libraries behind a C interface, opened by ctypes: no torch or Python headers, so they build
in seconds, in any environment. They are optional: without a compiler the install succeeds and PyTorch does the work.
"""

import platform
from pathlib import Path

from setuptools import Extension, setup

FOLDER = Path("src") / "smoe" / "csrc"

# Floating-point results must not depend on the order a compiler likes: no -ffast-math.
# -Wno-psabi: vectors wider than a register are passed between inlined functions only.
COMMON = ["-O3", "-std=c++17", "-fopenmp", "-Wno-psabi"]
INSTRUCTION_SETS = {"portable": []}
if platform.machine().lower() in ("x86_64", "amd64"):
    INSTRUCTION_SETS |= {"avx2": ["-mavx2", "-mfma"], "avx512": ["-march=x86-64-v4"]}

sources = sorted(str(path) for path in FOLDER.rglob("*.cpp"))
headers = sorted(str(path) for path in FOLDER.rglob("*.h"))
setup(
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
    ]
)
