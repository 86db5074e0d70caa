// Memory that is kept between calls, outside the heap: there it would lie between the tensors that come and go, and
// keep the heap from shrinking or fitting the next ones in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace smoe {

constexpr size_t kPage = size_t{64} << 10, kHugePage = size_t{2} << 20;

inline size_t round_to_pages(size_t size) {
    const size_t alignment = size >= kHugePage ? kPage : 64;
    return (size + alignment - 1) / alignment * alignment;
}

// `size` bytes, a multiple of what round_to_pages() gives; from 2 MB on, in huge pages where there are any and they
// are filled.
inline void* allocate_pages(size_t size) {
#if defined(__linux__)
    if (size >= kHugePage) {
        void* mapped = mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) throw std::bad_alloc();
        char* begin = static_cast<char*>(mapped);
        const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
        if (before > 0) munmap(begin, before);
        munmap(begin + before + size, kHugePage - before);
        madvise(begin + before, size, MADV_HUGEPAGE);
        return begin + before;
    }
#endif
    void* data = std::aligned_alloc(size >= kHugePage ? kPage : 64, size);
    if (data == nullptr && size > 0) throw std::bad_alloc();
    return data;
}

inline void free_pages(void* data, size_t size) {
#if defined(__linux__)
    if (size >= kHugePage) {
        munmap(data, size);
        return;
    }
#endif
    std::free(data);
}

// For a std::vector that is kept.
template <typename T>
struct PageAllocator {
    using value_type = T;

    PageAllocator() = default;
    template <typename U>
    PageAllocator(const PageAllocator<U>&) {}

    T* allocate(size_t count) { return static_cast<T*>(allocate_pages(round_to_pages(count * sizeof(T)))); }
    void deallocate(T* data, size_t count) { free_pages(data, round_to_pages(count * sizeof(T))); }

    template <typename U>
    bool operator==(const PageAllocator<U>&) const {
        return true;
    }
    template <typename U>
    bool operator!=(const PageAllocator<U>&) const {
        return false;
    }
};

}  // namespace smoe
