// Asks for large pages under a result that is about to be written for the first time: a result of some megabytes is
// fresh memory at each call, and the system hands it over page by page, which takes longer than writing it.
#pragma once

#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace smoe {
namespace training {

inline void advise_huge_pages(void* data, int64_t size) {
#if defined(__linux__)
    constexpr uintptr_t kPage = uintptr_t{2} << 20;
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + kPage - 1) / kPage * kPage;
    const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + size) / kPage * kPage;
    // Advice only: where it is not taken, nothing is lost.
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
    static_cast<void>(data);
    static_cast<void>(size);
#endif
}

}  // namespace training
}  // namespace smoe
