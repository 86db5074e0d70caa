// Prepares a routing for the kernels: the checks they rely on, then an expert's F outputs as F experts.
//
// The check goes over the indices (E, P) in blocks of pixels. A block keeps, for each expert and each of its pixels,
// the number of the last block that named it there; the table fits the second-level cache up to some thousand experts.

#include <cstdint>
#include <new>
#include <vector>

namespace smoe {
namespace {

constexpr int64_t kBlock = 64;  // pixels

struct Problem {
    int64_t kind = 0;  // 0: none, 1: out of range, 2: named twice at a pixel
    int64_t slot = 0, pixel = 0, expert = 0;
};

Problem find_problem(const int32_t* indices, int64_t selected, int64_t pixels, int64_t experts) {
    std::vector<int32_t> named_in(experts * kBlock, -1);
    for (int64_t begin = 0, block = 0; begin < pixels; begin += kBlock, ++block) {
        const int64_t end = begin + kBlock < pixels ? begin + kBlock : pixels;
        for (int64_t slot = 0; slot < selected; ++slot) {
            for (int64_t pixel = begin; pixel < end; ++pixel) {
                const int64_t expert = indices[slot * pixels + pixel];
                if (expert < 0 || expert >= experts) return {1, slot, pixel, expert};
                int32_t& last = named_in[expert * kBlock + pixel - begin];
                if (last == block) return {2, slot, pixel, expert};
                last = static_cast<int32_t>(block);
            }
        }
    }
    return {};
}

int check(const int32_t* indices, int64_t selected, int64_t pixels, int64_t experts, int64_t* problem) {
    try {
        const Problem found = find_problem(indices, selected, pixels, experts);
        problem[0] = found.kind;
        problem[1] = found.slot;
        problem[2] = found.pixel;
        problem[3] = found.expert;
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

void fold(const int32_t* indices, int64_t selected, int64_t pixels, int64_t expert_channels, int32_t* folded) {
    for (int64_t slot = 0; slot < selected; ++slot) {
        const int32_t* source = indices + slot * pixels;
        for (int64_t channel = 0; channel < expert_channels; ++channel) {
            int32_t* target = folded + (slot * expert_channels + channel) * pixels;
            for (int64_t pixel = 0; pixel < pixels; ++pixel) {
                target[pixel] = static_cast<int32_t>(source[pixel] * expert_channels + channel);
            }
        }
    }
}

}  // namespace
}  // namespace smoe

extern "C" {

// problem receives {kind, slot, pixel, expert}; see Problem.
int smoe_check_routing(const int32_t* indices, int64_t selected, int64_t pixels, int64_t experts, int64_t* problem) {
    return smoe::check(indices, selected, pixels, experts, problem);
}

// indices (E, P) to folded (E * F, P).
int smoe_fold_routing(const int32_t* indices, int64_t selected, int64_t pixels, int64_t expert_channels,
                      int32_t* folded) {
    smoe::fold(indices, selected, pixels, expert_channels, folded);
    return 0;
}

}  // extern "C"
