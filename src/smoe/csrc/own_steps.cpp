// A step of Adam of some numbers in units of their largest gradient, and a bound of their vectors: `AdamSteps` of
// nn/_own_steps.py says why.
//
// Sums are made of those of stretches, in their order: they do not depend on the number of threads.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "geometry.h"

// The `pow` of every glibc, not that of 2.29, so that a wheel serves systems from 2.28 on; both give the same numbers.
#if defined(__GLIBC__) && defined(__x86_64__)
__asm__(".symver pow, pow@GLIBC_2.2.5");
#elif defined(__GLIBC__) && defined(__aarch64__)
__asm__(".symver pow, pow@GLIBC_2.17");
#endif

namespace {

constexpr int64_t kStretch = 4096;
constexpr double kBeta1 = 0.9, kBeta2 = 0.999;
constexpr float kEpsilon = 1e-3f;
constexpr int64_t kTogether = 64;  // neighbours whose vectors are measured at once

double sum_of_squares(const float* values, int64_t count) {
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(values[i]) * values[i];
    return sum;
}

// `unit`, the largest root mean square of a gradient so far, is 0 at first; `step` counts this step too.
void take_step(int64_t size, float* values, const float* gradient, float* mean, float* square, float* unit, double step,
               double rate, int64_t threads) {
    const int64_t num_stretches = (size + kStretch - 1) / kStretch;
    std::vector<double> sums(num_stretches);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t n = 0; n < num_stretches; ++n) {
        const int64_t begin = n * kStretch;
        sums[n] = sum_of_squares(gradient + begin, std::min(kStretch, size - begin));
    }
    const double found = std::sqrt(std::accumulate(sums.begin(), sums.end(), 0.0) / static_cast<double>(size));
    if (!std::isfinite(found)) return;
    // Moments are in the unit, too.
    const float shrink = found > *unit ? static_cast<float>(*unit / found) : 1.0f;
    if (found > *unit) *unit = static_cast<float>(found);
    if (*unit == 0.0f) return;
    const float scale = 1.0f / *unit;
    const float move = static_cast<float>(rate / (1.0 - std::pow(kBeta1, step)));
    const float root = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(kBeta2, step)));
    const float share1 = static_cast<float>(1.0 - kBeta1), share2 = static_cast<float>(1.0 - kBeta2);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t begin = 0; begin < size; begin += kStretch) {
        const int64_t end = std::min(begin + kStretch, size);
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) {
            const float error = gradient[i] * scale;
            const float old_mean = mean[i] * shrink, old_square = square[i] * shrink * shrink;
            const float first = old_mean + share1 * (error - old_mean);
            const float second = old_square + share2 * (error * error - old_square);
            mean[i] = first;
            square[i] = second;
            values[i] -= move * first / (std::sqrt(second) * root + kEpsilon);
        }
    }
}

// Shortens vectors of `rank` numbers, which are `pitch` apart, to the length `longest`.
void shorten(int64_t size, float* values, int64_t rank, int64_t pitch, float longest, int64_t threads) {
    const int64_t parts = (pitch + kTogether - 1) / kTogether, blocks = size / (rank * pitch);
#pragma omp parallel for num_threads(threads) schedule(static) collapse(2)
    for (int64_t block = 0; block < blocks; ++block) {
        for (int64_t part = 0; part < parts; ++part) {
            float* first = values + block * rank * pitch + part * kTogether;
            const int64_t count = std::min(kTogether, pitch - part * kTogether);
            float factors[kTogether] = {};
            for (int64_t r = 0; r < rank; ++r) {
                for (int64_t i = 0; i < count; ++i) factors[i] += first[r * pitch + i] * first[r * pitch + i];
            }
            for (int64_t i = 0; i < count; ++i) factors[i] = std::min(1.0f, longest / std::sqrt(factors[i]));
            for (int64_t r = 0; r < rank; ++r) {
                for (int64_t i = 0; i < count; ++i) first[r * pitch + i] *= factors[i];
            }
        }
    }
}

}  // namespace

extern "C" {

// Tensors whose gradient is null stay as they are. Vectors of `ranks[n]` numbers, `pitches[n]` apart, are not longer
// than `longest` afterwards.
int smoe_take_steps(int64_t count, const int64_t* sizes, const int64_t* ranks, const int64_t* pitches,
                    float* const* values, const float* const* gradients, float* moments, float* units,
                    const int64_t* num_steps, double rate, double longest, int64_t threads) {
    int64_t total = 0;
    for (int64_t n = 0; n < count; ++n) total += sizes[n];
    for (int64_t n = 0; n < count; ++n) {
        if (gradients[n] != nullptr && sizes[n] > 0) {
            take_step(sizes[n], values[n], gradients[n], moments, moments + total, units + n,
                      static_cast<double>(*num_steps), rate, threads);
            if (std::isfinite(longest)) {
                shorten(sizes[n], values[n], ranks[n], pitches[n], static_cast<float>(longest), threads);
            }
        }
        moments += sizes[n];
    }
    return 0;
}

}  // extern "C"
