"""The C++ kernels: finding them, calling them, and saying why they are not used."""

from smoe.ops.native.library import NativeLibrary, has_library, native_library

__all__ = ["NativeLibrary", "has_library", "native_library"]
