// Memory that a kernel works in, kept between calls: fresh pages cost 10-30 % of a large layer.
//
// A Scratch belongs to the calling thread. It is asked for before a parallel region and shared by the region's threads.
#pragma once

#include "pages.h"

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
            data_ = allocate_pages(round_to_pages(size));
            capacity_ = round_to_pages(size);
        }
        return data_;
    }

    size_t capacity() const { return capacity_; }

    void release() {
        if (data_ != nullptr) free_pages(data_, capacity_);
        data_ = nullptr;
        capacity_ = 0;
    }

 private:
    void* data_ = nullptr;
    size_t capacity_ = 0;
};

}  // namespace smoe
