// What probing sees in one backward pass: sums over the samples at each pixel, in one pass over error and difference.

#include <algorithm>
#include <cstdint>

namespace smoe {
namespace {

constexpr int64_t kBlock = 256;  // pixels whose sums stay in the first cache

struct Arguments {
    const float *error, *difference;
    const int64_t* slots;
    int64_t batch, selected, outputs, pixels;
    float loss_scale;
};

void observe_block(const Arguments& a, int64_t begin, int64_t count, float* slopes, float* squares, float* sizes) {
    float slope_sums[kBlock] = {}, square_sums[kBlock] = {}, size_sums[kBlock] = {};
    for (int64_t sample = 0; sample < a.batch; ++sample) {
        float slope[kBlock] = {};
        for (int64_t output = 0; output < a.outputs; ++output) {
            const float* difference = a.difference + (sample * a.outputs + output) * a.pixels + begin;
            const float* error = a.error + (sample * a.selected * a.outputs + output) * a.pixels + begin;
            if (a.selected == 1) {
                for (int64_t i = 0; i < count; ++i) slope[i] += error[i] * difference[i];
            } else {
                const int64_t* slots = a.slots + begin;
                for (int64_t i = 0; i < count; ++i) {
                    slope[i] += error[slots[i] * a.outputs * a.pixels + i] * difference[i];
                }
            }
            for (int64_t i = 0; i < count; ++i) size_sums[i] += difference[i] * difference[i];
        }
        for (int64_t i = 0; i < count; ++i) {
            const float scaled = slope[i] / a.loss_scale;
            slope_sums[i] += scaled;
            square_sums[i] += scaled * scaled;
        }
    }
    std::copy_n(slope_sums, count, slopes + begin);
    std::copy_n(square_sums, count, squares + begin);
    std::copy_n(size_sums, count, sizes + begin);
}

}  // namespace
}  // namespace smoe

// error (B, E * F, P), difference (B, F, P) and slots (P) to three sums (P): of the slopes, which are error times
// difference over the loss scale, of their squares, and of the squared differences.
extern "C" int smoe_observe_probe(const float* error, const float* difference, const int64_t* slots,
                                  const float* loss_scale, int64_t batch, int64_t selected, int64_t outputs,
                                  int64_t pixels, float* slopes, float* squares, float* sizes, int64_t threads) {
    using namespace smoe;
    const Arguments arguments = {error, difference, slots, batch, selected, outputs, pixels, *loss_scale};
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t begin = 0; begin < pixels; begin += kBlock) {
        observe_block(arguments, begin, std::min(kBlock, pixels - begin), slopes, squares, sizes);
    }
    return 0;
}
