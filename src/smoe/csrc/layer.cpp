// A layer by one call in each direction: the biases of experts, the convolution and the local affine map.
//
//   y = offset + scale * z,  z = routed convolution of x, with the biases of the experts
//
// A bias may contain the part of a mean input: what the filter makes of the mean, less the same of its family, is taken
// away from it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <vector>

#include "geometry.h"
#include "vector.h"

extern "C" {

typedef int (*SmoeForward)(const smoe_geometry*, const float*, const float*, const float*, const int32_t*, float*);
typedef int (*SmoeGradient)(const smoe_geometry*, const float*, const float*, const int32_t*, float*);

// What follows from the shapes. Of two kernels, the second serves a routing that the first does not.
struct smoe_layer {
    smoe_geometry geometry;
    SmoeForward forward;
    SmoeGradient input_gradient[2], weight_gradient[2];
};

int smoe_family_layer(const smoe_geometry*, const float*, const float*, const float*, const int32_t*, uint16_t*,
                      const float*, const float*, float*, float*);

// Returns 2 if two pieces of memory differ.
int smoe_equal(const void* one, const void* other, int64_t size) { return std::memcmp(one, other, size) == 0 ? 0 : 2; }

}  // extern "C"

namespace smoe {
namespace {

constexpr int64_t kStretch = 1024;
constexpr int64_t kGroups = 16;
constexpr int32_t kFew = 16;

// A mean for each tap of a filter.
std::vector<float> tap_means(const smoe_geometry& g, const float* mean) {
    const int64_t taps = g.kernel_height * g.kernel_width;
    std::vector<float> means(g.channels * taps);
    for (int64_t c = 0; c < g.channels; ++c) std::fill_n(means.begin() + c * taps, taps, mean[c]);
    return means;
}

// Takes the mean of its family from each expert's value.
void centre_families(const smoe_geometry& g, float* values) {
    const int64_t size = g.experts / g.selected, larger = g.experts % g.selected;
    for (int64_t s = 0; s < g.selected; ++s) {
        const int64_t count = size + (s < larger);
        double sum = 0.0;
        for (int64_t k = 0; k < count; ++k) sum += values[k];
        for (int64_t k = 0; k < count; ++k) values[k] -= static_cast<float>(sum / static_cast<double>(count));
        values += count;
    }
}

void find_offsets(const smoe_geometry& g, const float* weight, const float* bias, const float* response,
                  const float* mean, float* offsets) {
    const std::vector<float> means = tap_means(g, mean);
    const int64_t count = static_cast<int64_t>(means.size()), whole = count / kRegisterLanes * kRegisterLanes;
#pragma omp parallel for num_threads(g.threads) schedule(static)
    for (int64_t expert = 0; expert < g.experts; ++expert) {
        const float* filter = weight + expert * count;
        Register total = {};
        for (int64_t i = 0; i < whole; i += kRegisterLanes) {
            Register one, other;
            std::memcpy(&one, filter + i, sizeof(one));
            std::memcpy(&other, means.data() + i, sizeof(other));
            total += one * other;
        }
        float sum = 0.0f;
        for (int lane = 0; lane < kRegisterLanes; ++lane) sum += total[lane];
        for (int64_t i = whole; i < count; ++i) sum += filter[i] * means[i];
        offsets[expert] = sum;
    }
    centre_families(g, offsets);
    for (int64_t i = 0; i < g.experts; ++i) offsets[i] = bias[i] + (response[i] - offsets[i]);
}

// The gradient that the filters receive by way of the offsets.
void add_mean_gradient(const smoe_geometry& g, const float* by_bias, const float* mean, float* by_weight) {
    const std::vector<float> means = tap_means(g, mean);
    std::vector<float> factors(by_bias, by_bias + g.experts);
    centre_families(g, factors.data());
    const int64_t count = static_cast<int64_t>(means.size());
#pragma omp parallel for num_threads(g.threads) schedule(static)
    for (int64_t expert = 0; expert < g.experts; ++expert) {
        float* target = by_weight + expert * count;
        const float factor = factors[expert];
        for (int64_t i = 0; i < count; ++i) target[i] -= factor * means[i];
    }
}

// Adds the values of each expert; where few experts occur, as in a family, by comparisons in vector lanes.
void add_by_expert(const float* values, const int32_t* experts, int64_t count, double* sums) {
    int32_t least = experts[0], most = experts[0];
    for (int64_t i = 0; i < count; ++i) {
        least = std::min(least, experts[i]);
        most = std::max(most, experts[i]);
    }
    // A rest that fills no register goes one by one.
    const int64_t whole = most - least < kFew ? count / kRegisterLanes * kRegisterLanes : 0;
    for (int32_t expert = least; whole > 0 && expert <= most; ++expert) {
        Register total = {};
        for (int64_t i = 0; i < whole; i += kRegisterLanes) {
            Register part;
            IntRegister chosen;
            std::memcpy(&part, values + i, sizeof(part));
            std::memcpy(&chosen, experts + i, sizeof(chosen));
            total += chosen == expert ? part : Register{};
        }
        float sum = 0.0f;
        for (int i = 0; i < kRegisterLanes; ++i) sum += total[i];
        sums[expert] += sum;
    }
    for (int64_t i = whole; i < count; ++i) sums[experts[i]] += values[i];
}

// What one sweep over the error makes of it: the error of z, and the gradients of scale, offset and bias, where they
// are asked for. Stretches of the outputs are dealt out in groups, whose number depends on the geometry only, and a
// group's sums are made by one thread: nothing depends on the number of threads.
struct ErrorSweep {
    const smoe_geometry& g;
    const float *error, *z, *scale;
    const int32_t* indices;
    float *by_z, *by_scale, *by_offset, *by_bias;

    // Whether the sum of the error of z is finite.
    bool run() const {
        const int64_t plane = g.output_height * g.output_width, in_plane = ceil_divide(plane, kStretch);
        const int64_t stretches = g.selected * in_plane, groups = std::min(kGroups, stretches);
        std::vector<double> sums(groups * (g.experts + 1));
#pragma omp parallel for num_threads(g.threads) schedule(static)
        for (int64_t group = 0; group < groups; ++group) {
            double* mine = sums.data() + group * (g.experts + 1);
            for (int64_t n = stretches * group / groups; n < stretches * (group + 1) / groups; ++n) {
                const int64_t begin = n % in_plane * kStretch;
                sweep(n / in_plane * plane + begin, std::min(kStretch, plane - begin), mine);
            }
        }
        for (int64_t group = 1; group < groups; ++group) {
            for (int64_t i = 0; i <= g.experts; ++i) sums[i] += sums[group * (g.experts + 1) + i];
        }
        double total = sums[g.experts];
        for (int64_t i = 0; i < g.experts; ++i) total += sums[i];
        if (by_bias != nullptr) std::copy_n(sums.data(), g.experts, by_bias);
        return std::isfinite(total);
    }

 private:
    void sweep(int64_t begin, int64_t count, double* sums) const {
        const int64_t sample = g.selected * g.output_height * g.output_width;
        const float* factors = scale + begin;
        float added[kStretch] = {}, products[kStretch] = {};
        for (int64_t b = 0; b < g.batch; ++b) {
            const float *signal = error + b * sample + begin, *input = z + b * sample + begin;
            float* target = by_z + b * sample + begin;
            if (scale == nullptr) {
#pragma omp simd
                for (int64_t i = 0; i < count; ++i) added[i] += signal[i];
            } else if (by_scale == nullptr) {
#pragma omp simd
                for (int64_t i = 0; i < count; ++i) {
                    added[i] += signal[i];
                    target[i] = signal[i] * factors[i];
                }
            } else {
#pragma omp simd
                for (int64_t i = 0; i < count; ++i) {
                    const float value = signal[i];
                    added[i] += value;
                    products[i] += value * input[i];
                    target[i] = value * factors[i];
                }
            }
        }
        if (by_scale != nullptr) std::copy_n(products, count, by_scale + begin);
        if (by_offset != nullptr) std::copy_n(added, count, by_offset + begin);
        for (int64_t i = 0; scale != nullptr && i < count; ++i) added[i] *= factors[i];
        if (by_bias != nullptr) {
            add_by_expert(added, indices + begin, count, sums);
            return;
        }
        float total = 0.0f;
#pragma omp simd reduction(+ : total)
        for (int64_t i = 0; i < count; ++i) total += added[i];
        sums[g.experts] += total;
    }
};

}  // namespace
}  // namespace smoe

extern "C" {

// The local affine map of all samples; y may be x.
int smoe_local_affine(int64_t batch, int64_t size, const float* x, const float* scale, const float* offset, float* y,
                      int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t begin = 0; begin < size; begin += smoe::kStretch) {
        const int64_t end = std::min(begin + smoe::kStretch, size);
        for (int64_t b = 0; b < batch; ++b) {
            const float* source = x + b * size;
            float* target = y + b * size;
#pragma omp simd
            for (int64_t i = begin; i < end; ++i) target[i] = offset[i] + scale[i] * source[i];
        }
    }
    return 0;
}

// The biases of experts with the part of a mean input, of filters with `taps` weights for each channel.
int smoe_offsets(int64_t experts, int64_t selected, int64_t channels, int64_t taps, const float* weight,
                 const float* bias, const float* response, const float* mean, float* offsets, int64_t threads) {
    try {
        smoe_geometry g = {};
        g.experts = experts, g.selected = selected, g.channels = channels, g.threads = threads;
        g.kernel_height = 1, g.kernel_width = taps;
        smoe::find_offsets(g, weight, bias, response, mean, offsets);
    } catch (const std::bad_alloc&) {
        return 1;
    }
    return 0;
}

// mean and response: of the biases, or none; offsets: those of the experts, as they are used, if there is a mean.
// masks: those of families of two, or none. scale and offset may be missing; z is not stored if it is null.
int smoe_layer_forward(const smoe_layer* layer, const float* x, const float* weight, const float* bias,
                       const float* response, const float* mean, const int32_t* indices, uint16_t* masks,
                       const float* scale, const float* offset, float* offsets, float* z, float* y) {
    const smoe_geometry& g = layer->geometry;
    try {
        if (mean != nullptr) {
            smoe::find_offsets(g, weight, bias, response, mean, offsets);
            bias = offsets;
        }
    } catch (const std::bad_alloc&) {
        return 1;
    }
    if (masks != nullptr) return smoe_family_layer(&g, x, weight, bias, indices, masks, scale, offset, z, y);
    float* output = z == nullptr ? y : z;
    const int code = layer->forward(&g, x, weight, bias, indices, output);
    if (code != 0 || scale == nullptr) return code;
    return smoe_local_affine(g.batch, g.selected * g.output_height * g.output_width, output, scale, offset, y,
                             g.threads);
}

// Gradients that are null are not asked for; by_z, which may be z, is needed with a scale, by_bias with a mean.
int smoe_layer_backward(const smoe_layer* layer, const float* error, const float* x, const float* weight,
                        const float* mean, const int32_t* indices, const float* scale, const float* z, float* by_z,
                        float* by_scale, float* by_offset, float* by_bias, float* by_x, float* by_weight,
                        int64_t* is_finite) {
    const smoe_geometry& g = layer->geometry;
    try {
        *is_finite = smoe::ErrorSweep{g, error, z, scale, indices, by_z, by_scale, by_offset, by_bias}.run();
        if (scale != nullptr) error = by_z;
        int code = 0;
        if (by_x != nullptr) {
            code = layer->input_gradient[0](&g, error, weight, indices, by_x);
            if (code == 2) code = layer->input_gradient[1](&g, error, weight, indices, by_x);
        }
        if (code == 0 && by_weight != nullptr) {
            code = layer->weight_gradient[0](&g, x, error, indices, by_weight);
            if (code == 2) code = layer->weight_gradient[1](&g, x, error, indices, by_weight);
            if (code == 0 && mean != nullptr) smoe::add_mean_gradient(g, by_bias, mean, by_weight);
        }
        return code;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

// gradient[e] = sum of the error over the samples, and over the pixels and slots that select expert e.
int smoe_bias_gradient(const smoe_geometry* geometry, const float* error, const int32_t* indices, float* gradient) {
    try {
        smoe::ErrorSweep{*geometry, error, nullptr, nullptr, indices, nullptr, nullptr, nullptr, gradient}.run();
    } catch (const std::bad_alloc&) {
        return 1;
    }
    return 0;
}

// Gradients of the local affine map: those of its input, and of scale and offset, which each have `size` numbers.
int smoe_local_affine_gradient(int64_t batch, int64_t size, const float* error, const float* x, const float* scale,
                               float* by_x, float* by_scale, float* by_offset, int64_t threads) {
    try {
        smoe_geometry g = {};
        g.batch = batch, g.selected = g.output_height = 1, g.output_width = size, g.threads = threads;
        smoe::ErrorSweep{g, error, x, scale, nullptr, by_x, by_scale, by_offset, nullptr}.run();
    } catch (const std::bad_alloc&) {
        return 1;
    }
    return 0;
}

}  // extern "C"
