// Two symbols of newer C and C++ libraries, so that one build runs on systems from glibc 2.28 (manylinux_2_28) on.
//
// Headers of a new GCC refer to them wherever std::shared_ptr and std::vector are used. Hidden definitions satisfy
// these references inside this library and are visible nowhere else.
#include <new>

#if __has_include(<sys/single_threaded.h>)
#include <sys/single_threaded.h>

extern "C" {
// "There may be other threads": reference counts are atomic, as with every older C library.
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
}
#endif

#if defined(__GLIBCXX__)
namespace std {
__attribute__((visibility("hidden"), noreturn)) void __throw_bad_array_new_length() { throw bad_array_new_length(); }
}  // namespace std
#endif
