// A scale and an offset for each channel and pixel: y = offset + scale * x for all samples, and its gradients.
//
// Pixels are dealt out in stretches of all channels; a stretch is worked off for all samples while its scale, and the
// sums of its gradients, are in the first level cache. One thread makes a stretch, the samples in their order.
#include <algorithm>

#include "geometry.h"

namespace {

constexpr int64_t kStretch = 1024;

}  // namespace

extern "C" {

int smoe_local_affine(int64_t batch, int64_t size, const float* x, const float* scale, const float* offset, float* y,
                      int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t begin = 0; begin < size; begin += kStretch) {
        const int64_t end = std::min(begin + kStretch, size);
        for (int64_t b = 0; b < batch; ++b) {
            const float* source = x + b * size;
            float* target = y + b * size;
#pragma omp simd
            for (int64_t i = begin; i < end; ++i) target[i] = offset[i] + scale[i] * source[i];
        }
    }
    return 0;
}

// Gradients of x, scale and offset.
int smoe_local_affine_gradient(int64_t batch, int64_t size, const float* error, const float* x, const float* scale,
                               float* by_x, float* by_scale, float* by_offset, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t begin = 0; begin < size; begin += kStretch) {
        const int64_t end = std::min(begin + kStretch, size);
        std::fill(by_scale + begin, by_scale + end, 0.0f);
        std::fill(by_offset + begin, by_offset + end, 0.0f);
        for (int64_t b = 0; b < batch; ++b) {
            const float *signal = error + b * size, *source = x + b * size;
            float* target = by_x + b * size;
#pragma omp simd
            for (int64_t i = begin; i < end; ++i) {
                const float value = signal[i];
                target[i] = value * scale[i];
                by_scale[i] += value * source[i];
                by_offset[i] += value;
            }
        }
    }
    return 0;
}

}  // extern "C"
