"""The library of C++ kernels: how it is found, called, and why it may not be used."""

from smoe.ops.native.library import NativeLibrary, has_library, native_library

__all__ = ["NativeLibrary", "has_library", "native_library"]
