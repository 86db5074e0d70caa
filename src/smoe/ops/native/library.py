"""Opens the shared library of kernels that suits this processor.

The library is opened by the first operator that runs, not at import. It names no OpenMP runtime of its own: torch is
loaded before it, and its runtime serves the kernels too, so that one pool of threads is shared.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from smoe.ops.registration import is_dense_only

# From the fastest build to the one that runs anywhere, each with the CPU capabilities (torch's names) that can run it.
INSTRUCTION_SETS = {"avx512": ("AVX512",), "avx2": ("AVX512", "AVX2"), "portable": None}
INSTRUCTION_SET_VARIABLE = "SMOE_INSTRUCTION_SET"
LIBRARY_DIR_VARIABLE = "SMOE_LIBRARY_DIR"
# Names under which builds of torch load their OpenMP runtime: GNU's, Intel's and LLVM's.
OPENMP_RUNTIMES = ("libgomp.so.1", "libiomp5.so", "libomp.so", "@rpath/libomp.dylib")


class Geometry(ctypes.Structure):
    """`smoe_geometry` of csrc/geometry.h."""

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in (
            *("batch", "channels", "experts", "selected", "height", "width", "output_height", "output_width"),
            *("kernel_height", "kernel_width", "stride", "wraps_rows", "wraps_columns", "threads"),
            *("depth", "output_depth", "kernel_depth", "wraps_depth"),
            *("depth_padding", "row_padding", "column_padding"),
        )
    )


@dataclass(frozen=True)
class NativeLibrary:
    """An opened library.

    Attributes:
        instruction_set: Instruction set that it was built for.
        functions: Its C functions.
    """

    instruction_set: str
    functions: ctypes.CDLL

    def call(self, name: str, *arguments: object) -> None:
        """Calls a function that returns 0; tensors are passed by their address.

        Raises:
            MemoryError: If the kernel could not allocate its memory.
        """
        converted = [
            ctypes.c_void_p(argument.data_ptr()) if isinstance(argument, torch.Tensor) else argument
            for argument in arguments
        ]
        if getattr(self.functions, name)(*converted):
            raise MemoryError(f"the kernel {name} could not allocate its memory; use a smaller batch")


def _library_file(instruction_set: str) -> Path:
    folder = Path(os.environ.get(LIBRARY_DIR_VARIABLE) or Path(__file__).parents[2])
    return folder / f"_native_{instruction_set}.so"


def _show_openmp() -> None:
    """Makes the symbols of the OpenMP runtime that is loaded visible to the kernels; never loads another one.

    Most builds of torch do this themselves.
    """
    for name in OPENMP_RUNTIMES:
        with contextlib.suppress(OSError):
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL | os.RTLD_NOLOAD)


@functools.cache
def _open(file: Path) -> ctypes.CDLL | str:
    """An opened library, or the reason why it could not be opened."""
    _show_openmp()
    try:
        return ctypes.CDLL(str(file))
    except OSError as error:
        return f"it could not be opened: {error}"


def why_not(instruction_set: str) -> str | None:
    """The reason why a build of the kernels cannot be used here, or None."""
    capabilities = INSTRUCTION_SETS[instruction_set]
    capability = torch.backends.cpu.get_cpu_capability()
    file = _library_file(instruction_set)
    if not file.is_file():
        return "not built: no C++ compiler was found when smoe was installed, or it could not build for this platform"
    if capabilities is not None and capability not in capabilities:
        return f"this processor cannot run it (torch calls it {capability})"
    opened = _open(file)
    return opened if isinstance(opened, str) else None


@functools.cache
def native_library() -> NativeLibrary | None:
    """The library for this processor, or None if there is none or SMOE_BACKEND=dense is set in the environment."""
    if is_dense_only():
        return None
    asked = os.environ.get(INSTRUCTION_SET_VARIABLE)
    if asked is not None and asked not in INSTRUCTION_SETS:
        raise ValueError(f"{INSTRUCTION_SET_VARIABLE} must be one of {', '.join(INSTRUCTION_SETS)}, got {asked!r}")
    for instruction_set in [asked] if asked else INSTRUCTION_SETS:
        if why_not(instruction_set) is None:
            functions = _open(_library_file(instruction_set))
            assert isinstance(functions, ctypes.CDLL)
            return NativeLibrary(instruction_set, functions)
    return None


def library_for(*tensors: torch.Tensor) -> NativeLibrary | None:
    """The library if its kernels can work on these tensors, which they can on float32 tensors on a CPU; else None."""
    if all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in tensors):
        return native_library()
    return None


def has_library() -> bool:
    """Whether there are kernels for this processor; compilers treat the result as a constant."""
    return native_library() is not None


# What torch.compiler.assume_constant_result does, which would import the compiler: a second more for `import smoe.nn`.
has_library._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


_forked_processes: list[int] = []
os.register_at_fork(after_in_child=lambda: _forked_processes.append(os.getpid()))


def num_threads() -> ctypes.c_int64:
    """The number of threads that kernels are called with.

    It is 1 in a forked process: the threads of OpenMP are not forked, and a kernel would wait for them for ever.
    """
    return ctypes.c_int64(1 if _forked_processes else torch.get_num_threads())
