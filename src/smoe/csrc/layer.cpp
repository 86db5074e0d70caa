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
int smoe_joint_weight_gradient(const smoe_geometry*, const float*, const float*, const int32_t*, float*);
int smoe_joint_masked(const smoe_geometry*, const float*, const float*, const int32_t*, const uint16_t*, float*);
int smoe_channel_input_gradient(const smoe_geometry*, const float*, const float*, const int32_t*, float*);
int smoe_channel_masked(const smoe_geometry*, const float*, const float*, const int32_t*, const uint16_t*, float*);

// Returns 2 if two pieces of memory differ.
int smoe_equal(const void* one, const void* other, int64_t size) { return std::memcmp(one, other, size) == 0 ? 0 : 2; }

}  // extern "C"

namespace smoe {
namespace {

constexpr int64_t kStretch = 1024;
constexpr int64_t kGroups = 16;
constexpr int32_t kFew = 16;
// Where an offset is larger than this many times what was added to it, too few digits of that are left.
constexpr float kMostOffset = 128.0f;
constexpr float kLeastScale = 1e-30f;
constexpr int64_t kFewLost = 128;  // as a part of all places

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

// The same of a family of two, by the bits of its masks.
void add_by_bit(const float* values, const uint16_t* masks, int64_t bit, int64_t count, double* sums) {
    float even = 0.0f, odd = 0.0f;
#pragma omp simd reduction(+ : even, odd)
    for (int64_t i = 0; i < count; ++i) {
        const bool is_odd = (masks[i] >> bit & 1) != 0;
        even += is_odd ? 0.0f : values[i];
        odd += is_odd ? values[i] : 0.0f;
    }
    sums[0] += even;
    sums[1] += odd;
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
// are asked for. z may be stored, or is found from the output y = offset + scale * z but for some lost places.
// Stretches of the outputs are dealt out in groups, whose number depends on the geometry only, and a group's sums are
// made by one thread: nothing depends on the number of threads.
struct ErrorSweep {
    const smoe_geometry& g;
    const float *error, *z, *scale;
    const int32_t* indices;
    float *by_z, *by_scale, *by_offset, *by_bias;
    const float *y = nullptr, *offset = nullptr;
    const uint16_t* masks = nullptr;              // of families of two, in place of the indices
    std::vector<std::vector<int64_t>> lost = {};  // by group: no gradient of the scale yet

    // Whether the sum of the error of z is finite.
    bool run() {
        const int64_t plane = g.output_height * g.output_width, in_plane = ceil_divide(plane, kStretch);
        const int64_t stretches = g.selected * in_plane, groups = std::min(kGroups, stretches);
        std::vector<double> sums(groups * (g.experts + 1));
        lost.resize(groups);
#pragma omp parallel for num_threads(g.threads) schedule(static)
        for (int64_t group = 0; group < groups; ++group) {
            double* mine = sums.data() + group * (g.experts + 1);
            for (int64_t n = stretches * group / groups; n < stretches * (group + 1) / groups; ++n) {
                const int64_t begin = n % in_plane * kStretch;
                sweep(n / in_plane * plane + begin, std::min(kStretch, plane - begin), mine, lost[group]);
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
    void sweep(int64_t begin, int64_t count, double* sums, std::vector<int64_t>& lost_here) const {
        if (g.batch == 1 && y != nullptr && by_scale != nullptr && by_offset != nullptr) {
            return sweep_one(begin, count, sums, lost_here);
        }
        const int64_t sample = g.selected * g.output_height * g.output_width;
        const float* factors = scale + begin;
        float added[kStretch] = {}, products[kStretch] = {}, squares[kStretch] = {};
        for (int64_t b = 0; b < g.batch; ++b) {
            const float *signal = error + b * sample + begin, *input = (y == nullptr ? z : y) + b * sample + begin;
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
            } else if (y == nullptr) {
#pragma omp simd
                for (int64_t i = 0; i < count; ++i) {
                    const float value = signal[i];
                    added[i] += value;
                    products[i] += value * input[i];
                    target[i] = value * factors[i];
                }
            } else {
                const float* shifts = offset + begin;
#pragma omp simd
                for (int64_t i = 0; i < count; ++i) {
                    const float value = signal[i], scaled = input[i] - shifts[i];
                    added[i] += value;
                    products[i] += value * scaled;
                    squares[i] += scaled * scaled;
                    target[i] = value * factors[i];
                }
            }
        }
        if (by_scale != nullptr && y != nullptr) divide(begin, count, products, squares, lost_here);
        if (by_scale != nullptr) std::copy_n(products, count, by_scale + begin);
        if (by_offset != nullptr) std::copy_n(added, count, by_offset + begin);
        for (int64_t i = 0; scale != nullptr && i < count; ++i) added[i] *= factors[i];
        sum_biases(added, begin, count, sums);
    }

    // With one sample, each number is read and written once, which memory can keep pace with.
    void sweep_one(int64_t begin, int64_t count, double* sums, std::vector<int64_t>& lost_here) const {
        const float *signal = error + begin, *factors = scale + begin, *shifts = offset + begin, *output = y + begin;
        float *target = by_z + begin, *products = by_scale + begin;
        std::copy_n(signal, count, by_offset + begin);
#pragma omp simd
        for (int64_t i = 0; i < count; ++i) target[i] = signal[i] * factors[i];
        float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
        for (int64_t i = 0; i < count; ++i) {
            const float scaled = output[i] - shifts[i];
            products[i] = signal[i] * scaled / factors[i];
            squares += scaled * scaled;
        }
        find_lost(begin, count, squares, lost_here);
        sum_biases(target, begin, count, sums);
    }

    // Adds the error of z of a stretch, summed over the samples, to its experts, or to the sum of all.
    void sum_biases(const float* added, int64_t begin, int64_t count, double* sums) const {
        if (by_bias != nullptr) {
            const int64_t plane = g.output_height * g.output_width, slot = begin / plane;
            if (masks == nullptr) return add_by_expert(added, indices + begin, count, sums);
            return add_by_bit(added, masks + slot / 16 * plane + begin % plane, slot % 16, count, sums + 2 * slot);
        }
        float total = 0.0f;
#pragma omp simd reduction(+ : total)
        for (int64_t i = 0; i < count; ++i) total += added[i];
        sums[g.experts] += total;
    }

    // Products of the error and scale * z become those of the error and z, or their places are lost.
    void divide(int64_t begin, int64_t count, float* products, const float* squares,
                std::vector<int64_t>& lost_here) const {
        const float* factors = scale + begin;
        float scaled = 0.0f;
#pragma omp simd reduction(+ : scaled)
        for (int64_t i = 0; i < count; ++i) {
            scaled += squares[i];
            products[i] /= factors[i];
        }
        find_lost(begin, count, scaled, lost_here);
    }

    // The places of a stretch where the output does not tell z; scaled: sum of the squares of scale * z.
    void find_lost(int64_t begin, int64_t count, float scaled, std::vector<int64_t>& lost_here) const {
        const float *factors = scale + begin, *shifts = offset + begin;
        float scales = 0.0f;
#pragma omp simd reduction(+ : scales)
        for (int64_t i = 0; i < count; ++i) scales += factors[i] * factors[i];
        const float most = scales > 0.0f ? kMostOffset * std::sqrt(scaled / (scales * static_cast<float>(g.batch))) : 0;
        const auto is_kept = [&](int64_t i) {
            return (std::fabs(shifts[i]) <= most * std::fabs(factors[i])) & (std::fabs(factors[i]) > kLeastScale);
        };
        int32_t kept = 0;
#pragma omp simd reduction(+ : kept)
        for (int64_t i = 0; i < count; ++i) kept += is_kept(i);
        for (int64_t i = 0; kept < count && i < count; ++i) {
            if (!is_kept(i)) lost_here.push_back(begin + i);
        }
    }
};

// The gradient of the scale at one output and pixel, by definition.
float scale_gradient(const smoe_geometry& g, const float* error, const float* x, const float* weight, const float* bias,
                     const int32_t* indices, int64_t place) {
    const int64_t outputs = g.output_height * g.output_width, plane = g.height * g.width;
    const int64_t taps = g.kernel_height * g.kernel_width, pixel = place % outputs;
    std::vector<std::pair<int64_t, int64_t>> sources;  // taps and the places that they read
    for (int64_t tap = 0; tap < taps; ++tap) {
        const int64_t row = source_row(g, pixel / g.output_width, tap / g.kernel_width);
        const int64_t column = source_coordinate(pixel % g.output_width, tap % g.kernel_width, g.column_padding,
                                                 g.stride, g.width, g.wraps_columns);
        if (row >= 0 && column >= 0) sources.emplace_back(tap, row * g.width + column);
    }
    const float* filter = weight + indices[place] * g.channels * taps;
    float total = 0.0f;
    for (int64_t b = 0; b < g.batch; ++b, x += g.channels * plane) {
        float z = bias == nullptr ? 0.0f : bias[indices[place]];
        for (int64_t c = 0; c < g.channels; ++c) {
            for (const auto& [tap, source] : sources) z += filter[c * taps + tap] * x[c * plane + source];
        }
        total += error[b * g.selected * outputs + place] * z;
    }
    return total;
}

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

// All that a forward pass needs beside its input and output.
struct smoe_bound {
    const smoe_layer* layer;
    const float *weight, *bias;
    const int32_t* indices;
    uint16_t* masks;
    const float *scale, *offset;
};

int smoe_bound_forward(const smoe_bound* of, const float* x, float* y) {
    return smoe_layer_forward(of->layer, x, of->weight, of->bias, nullptr, nullptr, of->indices, of->masks, of->scale,
                              of->offset, nullptr, nullptr, y);
}

// Gradients that are null are not asked for; by_z, which may be z, is needed with a scale, by_bias with a mean. z: what
// was scaled; it may be missing if y and the offset are there. biases: as they were used. masks: as above. Returns 3 if
// z is needed.
int smoe_layer_backward(const smoe_layer* layer, const float* error, const float* x, const float* weight,
                        const float* biases, const float* mean, const int32_t* indices, const uint16_t* masks,
                        const float* scale, const float* offset, const float* y, const float* z, float* by_z,
                        float* by_scale, float* by_offset, float* by_bias, float* by_x, float* by_weight,
                        int64_t* is_finite) {
    const smoe_geometry& g = layer->geometry;
    try {
        smoe::ErrorSweep sweep{g, error, z, scale, indices, by_z, by_scale, by_offset, by_bias, y, offset, masks};
        *is_finite = sweep.run();
        std::vector<int64_t> lost;
        for (const std::vector<int64_t>& some : sweep.lost) lost.insert(lost.end(), some.begin(), some.end());
        const int64_t count = static_cast<int64_t>(lost.size());
        if (count > g.selected * g.output_height * g.output_width / smoe::kFewLost) return 3;
#pragma omp parallel for num_threads(g.threads) schedule(static)
        for (int64_t i = 0; i < count; ++i) {
            by_scale[lost[i]] = smoe::scale_gradient(g, error, x, weight, biases, indices, lost[i]);
        }
        if (scale != nullptr) error = by_z;
        int code = 0;
        if (by_x != nullptr) {
            code = masks != nullptr && layer->input_gradient[0] == smoe_channel_input_gradient
                       ? smoe_channel_masked(&g, error, weight, indices, masks, by_x)
                       : layer->input_gradient[0](&g, error, weight, indices, by_x);
            if (code == 2) code = layer->input_gradient[1](&g, error, weight, indices, by_x);
        }
        if (code == 0 && by_weight != nullptr) {
            code = masks != nullptr && layer->weight_gradient[0] == smoe_joint_weight_gradient
                       ? smoe_joint_masked(&g, x, error, indices, masks, by_weight)
                       : layer->weight_gradient[0](&g, x, error, indices, by_weight);
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
