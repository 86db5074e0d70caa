// Memory that kernels work in, kept between calls: fresh pages cost 10-30 % of a large layer.
//
// A thread has one piece of it, as large as the kernel that needs most. A Scratch takes parts of this piece, until its
// end; it is asked before a parallel region and shared by the region's threads.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "pages.h"

namespace smoe {

class Arena {
 public:
    Arena() = default;
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;
    ~Arena() { clear(); }

    void* take(size_t size) {
        if (taken_ == 0 && most_ > capacity_) {
            clear();
            const size_t capacity = round_to_pages(most_);
            pieces_.emplace_back(allocate_pages(capacity), capacity);
            capacity_ = capacity;
        }
        void* data = nullptr;
        if (taken_ + size <= capacity_) {
            data = static_cast<char*>(pieces_.front().first) + taken_;
        } else {
            // A piece of its own for now; the next call begins with one piece for all.
            pieces_.reserve(pieces_.size() + 1);
            data = allocate_pages(round_to_pages(size));
            pieces_.emplace_back(data, round_to_pages(size));
        }
        taken_ += size;
        most_ = std::max(most_, taken_);
        return data;
    }

    void give_back(size_t size) {
        taken_ -= size;
        if (taken_ == 0 && most_ > capacity_) clear();
    }

 private:
    void clear() {
        for (const auto& [data, size] : pieces_) free_pages(data, size);
        pieces_.clear();
        capacity_ = 0;
    }

    std::vector<std::pair<void*, size_t>> pieces_;
    size_t capacity_ = 0, taken_ = 0, most_ = 0;  // bytes of the first piece, in use, and at most so far
};

inline Arena& thread_arena() {
    static thread_local Arena arena;
    return arena;
}

class Scratch {
 public:
    Scratch() = default;
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() { arena_.give_back(size_); }

    // `count` floats, 64-byte aligned, with whatever was in them.
    float* floats(size_t count) { return static_cast<float*>(bytes(count * sizeof(float))); }

    void* bytes(size_t size) {
        size = (size + 63) / 64 * 64;
        void* data = arena_.take(size);
        size_ += size;
        return data;
    }

 private:
    Arena& arena_ = thread_arena();
    size_t size_ = 0;
};

}  // namespace smoe
