"""How operators find their implementation: the dense one, the CPU kernels, or those of a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

# From the fastest build to the one that runs anywhere, each with the CPU capabilities (torch's names) that can run it.
INSTRUCTION_SETS = {"avx512": ("AVX512",), "avx2": ("AVX512", "AVX2"), "portable": None}
INSTRUCTION_SET_VARIABLE = "SMOE_INSTRUCTION_SET"
LIBRARY_DIR_VARIABLE = "SMOE_LIBRARY_DIR"
# Names under which builds of torch load their OpenMP runtime: GNU's, Intel's and LLVM's.
OPENMP_RUNTIMES = ("libgomp.so.1", "libiomp5.so", "libomp.so", "@rpath/libomp.dylib")


BACKEND_VARIABLE = "SMOE_BACKEND"
# Operators are registered once, so that the environment is read once.
IS_DENSE_ONLY = os.environ.get(BACKEND_VARIABLE) == "dense"


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
    """An opened library."""

    instruction_set: str
    functions: ctypes.CDLL

    def call(self, name: str, *arguments: object) -> bool:
        """Calls a function; tensors are passed by their address, integers as int64. False: it does not serve these."""
        converted: list[object] = []
        for argument in arguments:
            if isinstance(argument, torch.Tensor):
                argument = ctypes.c_void_p(argument.data_ptr())
            elif isinstance(argument, int):
                argument = ctypes.c_int64(argument)
            converted.append(argument)
        code = getattr(self.functions, name)(*converted)
        if code == 1:
            raise MemoryError(f"the kernel {name} could not allocate its memory; use a smaller batch")
        return code == 0

    @functools.cached_property
    def has_family_lanes(self) -> bool:
        """Whether the kernel of families of two experts is faster than others on this processor."""
        return self.call("smoe_family_is_fast")


def _library_file(instruction_set: str) -> Path:
    folder = Path(os.environ.get(LIBRARY_DIR_VARIABLE) or Path(__file__).parents[1])
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
    """An opened library, or the reason why it could not be opened.

    Beside the sources, in a checkout, it must have been built from them: it would crash where the two differ.
    """
    _show_openmp()
    try:
        library = ctypes.CDLL(str(file))
    except OSError as error:
        return f"it could not be opened: {error}"
    checksum = 0
    for source in sorted((file.parent / "csrc").rglob("*.[ch]*")):
        checksum = zlib.crc32(source.read_bytes(), checksum)
    if checksum and checksum != (library.smoe_sources() & 0xFFFFFFFF if hasattr(library, "smoe_sources") else None):
        raise RuntimeError(
            f"{file.name} was built from other sources than those in csrc beside it: build it again by python setup.py "
            "build_ext --inplace, or install smoe again"
        )
    return library


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
    if os.environ.get(BACKEND_VARIABLE) == "dense":
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
    for tensor in tensors:
        if tensor.device.type != "cpu" or tensor.dtype != torch.float32:
            return None
    return native_library()


def has_library() -> bool:
    """Whether there are kernels for this processor; compilers treat the result as a constant."""
    return native_library() is not None


# What torch.compiler.assume_constant_result does, which would import the compiler: a second more for `import smoe.nn`.
has_library._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


_forked_processes: list[int] = []
os.register_at_fork(after_in_child=lambda: _forked_processes.append(os.getpid()))


def num_threads() -> int:
    """The number of threads that kernels are called with.

    It is 1 in a forked process: the threads of OpenMP are not forked, and a kernel would wait for them without end.
    """
    return 1 if _forked_processes else torch.get_num_threads()


def format_of(tensor: torch.Tensor) -> torch.memory_format:
    """The memory format of the result that belongs to `(B, C, H, W)`: channels_last if the tensor has it."""
    if has_transforms():  # vmap knows no formats
        return torch.contiguous_format
    is_plane = tensor.ndim == 4 and not tensor.is_contiguous()
    is_last = is_plane and tensor.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if is_last else torch.contiguous_format


# Operators are defined by schema and not by torch.library.custom_op, whose Python wrapping takes as long as the kernel
# of a small layer.
_LIBRARY = torch.library.Library("smoe", "FRAGMENT")
_DENSE: dict[Callable[..., Any], Callable[..., Any]] = {}


def has_transforms() -> bool:
    """Whether a transform of torch.func or forward-mode differentiation is active.

    They need PyTorch's own operations, and none in place.
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def is_observed() -> bool:
    """Whether a compiler, a tracer, a mode or a transform has to see PyTorch's operations."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return True
    return has_transforms() or torch._C._get_tracing_state() is not None


def register_operator(
    schema: str,
    *,
    dense: Callable[..., Any],
    fake: Callable[..., Any],
    native: Callable[..., Any] | None = None,
    cuda: Callable[..., Any] | None = None,
    gradients: Callable[..., Any] | None = None,
    setup_context: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Defines `smoe::NAME` and registers its implementations."""
    name = schema.partition("(")[0]
    _LIBRARY.define(schema)
    operator = getattr(torch.ops.smoe, name).default
    _DENSE[operator] = dense
    if IS_DENSE_ONLY:
        # Programs that were exported with the operators can still be run.
        _LIBRARY.impl(name, dense, "CompositeImplicitAutograd")
        return dense
    _LIBRARY.impl(name, dense, "CompositeExplicitAutograd")
    if native is not None:
        _LIBRARY.impl(name, native, "CPU")
    if cuda is not None:
        _LIBRARY.impl(name, cuda, "CUDA")
    torch.library.register_fake(f"smoe::{name}", fake, lib=_LIBRARY)
    if gradients is not None:
        torch.library.register_autograd(f"smoe::{name}", gradients, setup_context=setup_context, lib=_LIBRARY)
    return operator


def call_operator(operator: Callable[..., Any], *arguments: Any) -> Any:
    """Calls an operator, or its dense implementation where transforms are active.

    Where no gradients are recorded, its backward formula is passed over.

    PyTorch calls the formula's wrapper, which is written in Python, even if no gradient is needed: it takes as long as
    the kernel of a small layer.
    """
    if torch.compiler.is_compiling():
        return _DENSE.get(operator, operator)(*arguments) if _is_for_onnx() else operator(*arguments)
    if torch._C._len_torch_dispatch_stack():
        _show_flops()
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return _DENSE.get(operator, operator)(*arguments)
    if torch.is_grad_enabled() or IS_DENSE_ONLY:
        return operator(*arguments)
    with torch._C._AutoDispatchBelowAutograd():
        return operator(*arguments)


def _is_for_onnx() -> bool:
    """Whether `torch.onnx.export` is tracing a network: ONNX has none of these operators."""
    flags = sys.modules.get("torch.onnx._internal.exporter._flags")
    return flags is not None and flags._is_onnx_exporting


# As for `has_library`.
_is_for_onnx._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]

FLOP_FORMULAS: dict[Callable[..., Any], Callable[..., int]] = {}
"""Floating-point operations of operators, by arguments and results, for `torch.utils.flop_counter`."""


def _show_flops() -> None:
    """Gives the formulas to the counters that are active: their module takes long to import, so that it is not."""
    for mode in _get_current_dispatch_mode_stack():
        registry = getattr(getattr(mode, "counter", None), "flop_registry", None)
        if isinstance(registry, dict):
            registry.update(FLOP_FORMULAS)


def plain_operators() -> dict[torch._ops.OperatorBase, Callable[..., Any]]:
    """The dense implementation of each operator, for `ExportedProgram.run_decompositions`.

    A program that was exported and decomposed so has PyTorch's own operations only: it runs without this library, and
    other runtimes can read it.
    """
    return dict(_DENSE)  # type: ignore[return-value]


def is_plain(*tensors: torch.Tensor | None) -> bool:
    """Whether a kernel may work on tensors beside PyTorch: nothing observes it, and they are plain float32 on a CPU."""
    if torch.is_autocast_enabled("cpu") or is_observed():
        return False
    for each in tensors:
        if each is not None and (type(each) not in _PLAIN or not each.is_cpu or each.dtype is not torch.float32):
            return False
    return True


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """As `torch.equal`, of tensors on a CPU, and several times faster; NaN equals itself."""
    library = native_library()
    if library is None or one.dtype != other.dtype or not (one.is_contiguous() and other.is_contiguous()):
        return torch.equal(one, other)
    return one.shape == other.shape and library.call("smoe_equal", one, other, one.nbytes)
