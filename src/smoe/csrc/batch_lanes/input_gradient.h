// The input gradient of at most eight samples, in a file of its own (input_gradient_few.cpp).
#pragma once

#include <cstdint>

#include "../geometry.h"

namespace smoe {
namespace batch_lanes {

constexpr int64_t kFewSamples = 8;

// May throw std::bad_alloc.
void input_gradient_few(const smoe_geometry& geometry, const float* gradient, const float* weight,
                        const int32_t* indices, float* dx);

}  // namespace batch_lanes
}  // namespace smoe
