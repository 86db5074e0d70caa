// The experts of a family, and registers of consecutive pixels of which the last may be incomplete.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "../vector.h"

namespace smoe {

// Consecutive experts; the first `experts % families` families have one more than the others.
struct Family {
    int64_t first, count;

    Family(int64_t number, int64_t experts, int64_t families)
        : first(number * (experts / families) + std::min(number, experts % families)),
          count(experts / families + (number < experts % families)) {}
};

// The incomplete register repeats its last pixel.
inline Register load_pixels(const float* source, int64_t lanes) {
    Register values;
    if (lanes >= kRegisterLanes) {
        std::memcpy(&values, source, sizeof(values));
    } else {
        for (int64_t lane = 0; lane < kRegisterLanes; ++lane) values[lane] = source[std::min(lane, lanes - 1)];
    }
    return values;
}

template <typename T, typename V>
inline void store_pixels(T* target, V values, int64_t lanes) {
    std::memcpy(target, &values, sizeof(T) * std::min<int64_t>(lanes, kRegisterLanes));
}

}  // namespace smoe
