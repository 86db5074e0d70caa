// Memory that a kernel works in, kept between calls: fresh pages cost 10-30 % of a large layer.
//
// A Scratch belongs to the calling thread. It is asked for before a parallel region and shared by the region's threads.
#pragma once

#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace smoe {

class Scratch {
 public:
    Scratch() = default;
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() { release(); }

    // At least `count` floats, 64-byte aligned, with whatever the last call left in them.
    float* floats(size_t count) { return static_cast<float*>(bytes(count * sizeof(float))); }

    void* bytes(size_t size) {
        if (size > capacity_) {
            release();
            constexpr size_t kPage = size_t{2} << 20;
            const size_t alignment = size >= kPage ? kPage : 64;
            capacity_ = (size + alignment - 1) / alignment * alignment;
            data_ = std::aligned_alloc(alignment, capacity_);
            if (data_ == nullptr) {
                capacity_ = 0;
                throw std::bad_alloc();
            }
#if defined(__linux__)
            if (size >= kPage) madvise(data_, capacity_, MADV_HUGEPAGE);
#endif
        }
        return data_;
    }

    size_t capacity() const { return capacity_; }

    void release() {
        std::free(data_);
        data_ = nullptr;
        capacity_ = 0;
    }

 private:
    void* data_ = nullptr;
    size_t capacity_ = 0;
};

}  // namespace smoe
