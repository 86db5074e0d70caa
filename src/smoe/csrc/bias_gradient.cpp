// gradient[e] = sum of the error over the samples, and over the pixels and slots that select expert e.
//
// Slots are dealt out in groups, whose number depends on the geometry only, and a group's sums are made by one thread:
// the result does not depend on the number of threads. Of a stretch of pixels the samples are added first; where few
// experts occur in it, as in a family, each one's sum is made by comparisons in vector lanes.
#include <algorithm>
#include <new>
#include <vector>

#include "geometry.h"
#include "vector.h"

namespace smoe {
namespace {

constexpr int64_t kStretch = 1024;
constexpr int32_t kFew = 16;
constexpr int64_t kGroups = 16;

// A whole number of registers.
void add_stretch(const float* error, const int32_t* experts, int64_t count, double* sums) {
    const auto [least, most] = std::minmax_element(experts, experts + count);
    if (*most - *least >= kFew) {
        for (int64_t i = 0; i < count; ++i) sums[experts[i]] += error[i];
        return;
    }
    for (int32_t expert = *least; expert <= *most; ++expert) {
        Register total = {};
        for (int64_t i = 0; i < count; i += kRegisterLanes) {
            Register values;
            IntRegister chosen;
            std::memcpy(&values, error + i, sizeof(values));
            std::memcpy(&chosen, experts + i, sizeof(chosen));
            total += chosen == expert ? values : Register{};
        }
        float sum = 0.0f;
        for (int i = 0; i < kRegisterLanes; ++i) sum += total[i];
        sums[expert] += sum;
    }
}

void bias_gradient(const smoe_geometry& g, const float* error, const int32_t* indices, float* gradient) {
    const int64_t plane = g.output_height * g.output_width, groups = std::min(kGroups, g.selected);
    std::vector<double> sums(groups * g.experts);
#pragma omp parallel for num_threads(g.threads) schedule(static)
    for (int64_t group = 0; group < groups; ++group) {
        float added[kStretch];
        for (int64_t s = g.selected * group / groups; s < g.selected * (group + 1) / groups; ++s) {
            for (int64_t begin = 0; begin < plane; begin += kStretch) {
                const int64_t count = std::min(kStretch, plane - begin);
                const float* first = error + s * plane + begin;
                if (g.batch > 1) {
                    std::copy_n(first, count, added);
                    for (int64_t b = 1; b < g.batch; ++b) {
                        const float* more = first + b * g.selected * plane;
                        for (int64_t i = 0; i < count; ++i) added[i] += more[i];
                    }
                    first = added;
                }
                // A rest that fills no register goes one by one.
                const int64_t whole = count / kRegisterLanes * kRegisterLanes;
                const int32_t* experts = indices + s * plane + begin;
                double* target = sums.data() + group * g.experts;
                if (whole > 0) add_stretch(first, experts, whole, target);
                for (int64_t i = whole; i < count; ++i) target[experts[i]] += first[i];
            }
        }
    }
    for (int64_t expert = 0; expert < g.experts; ++expert) {
        double total = 0.0;
        for (int64_t group = 0; group < groups; ++group) total += sums[group * g.experts + expert];
        gradient[expert] = static_cast<float>(total);
    }
}

}  // namespace
}  // namespace smoe

extern "C" int smoe_bias_gradient(const smoe_geometry* geometry, const float* error, const int32_t* indices,
                                  float* gradient) {
    try {
        smoe::bias_gradient(*geometry, error, indices, gradient);
    } catch (const std::bad_alloc&) {
        return 1;
    }
    return 0;
}
