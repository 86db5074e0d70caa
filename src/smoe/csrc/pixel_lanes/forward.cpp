// Forward pass of tiny layers (a filter of few taps, few experts per pixel): lanes are sixteen pixels of an output row.
//
//   y[b, s, p] = sum over c, t of weight[indices[s, p], c, t] * x[b, c, source(p, t)]
//
// With up to 15 experts and AVX-512, or 7 and AVX2, the chosen weights of a tap are a permutation of a register that
// holds those of all experts. Otherwise the indirection is paid once per call and not once per sample: for each pixel
// of a band the chosen filters are looked up and written as weight planes, one per channel and tap. The rest is a
// convolution by these planes; see convolve.h for its registers, caches and loop order. Threads own bands of output
// rows, so every output is summed by one thread, taps in ascending order.
#include <new>

#include "convolve.h"

namespace smoe {
namespace pixel_lanes {
namespace {

struct ExpandForward {
    const Sweep& sweep;
    const int32_t* indices;
    int64_t experts;
    const float* tables;

    void operator()(int64_t first_row, int64_t end_row, float* planes) const {
        for (int64_t row = first_row; row < end_row; ++row) {
            for (int64_t slot = 0; slot < sweep.targets; ++slot) {
                const int32_t* chosen = indices + (slot * sweep.target_height + row) * sweep.target_width;
                for (int64_t block = 0; block < sweep.blocks; ++block) {
                    planes = expand_block(chosen + block * kLanes, sweep.block_width(block), planes);
                }
            }
        }
    }

 private:
    float* expand_block(const int32_t* chosen, int64_t width, float* planes) const {
        int32_t lane_experts[kLanes];
        std::fill(lane_experts, lane_experts + kLanes, static_cast<int32_t>(experts));
        std::copy(chosen, chosen + width, lane_experts);
        const int64_t pitch = table_pitch(experts);
        for (int64_t tap = 0; tap < sweep.taps(); ++tap, planes += kLanes) {
            look_up(tables + tap * pitch, experts, lane_experts, planes);
        }
        return planes;
    }
};

// Looked up once for all samples, too.
void add_bias(const smoe_geometry& g, const float* bias, const int32_t* indices, float* y) {
    constexpr int64_t kStretch = 1024;
    const int64_t size = g.selected * g.output_height * g.output_width;
#pragma omp parallel for num_threads(g.threads) schedule(static)
    for (int64_t begin = 0; begin < size; begin += kStretch) {
        const int64_t count = std::min(kStretch, size - begin);
        float added[kStretch];
        for (int64_t i = 0; i < count; ++i) added[i] = bias[indices[begin + i]];
        for (int64_t b = 0; b < g.batch; ++b) {
            float* target = y + b * size + begin;
            for (int64_t i = 0; i < count; ++i) target[i] += added[i];
        }
    }
}

void forward(const smoe_geometry& geometry, const float* x, const float* weight, const float* bias,
             const int32_t* indices, float* y) {
    Scratch scratch;
    const Sweep sweep = input_to_output(geometry);
    const Bands bands(sweep, geometry.threads);
    const int64_t pitch = table_pitch(geometry.experts), taps = sweep.taps();
    float* tables = scratch.floats((taps + 1) * pitch);
    fill_tables(weight, geometry.experts, taps, tables);
    std::vector<ExpandForward> expands(bands.threads, ExpandForward{sweep, indices, geometry.experts, tables});
#if defined(__AVX2__)
    if (geometry.experts < kRegisterLanes) {
        std::memset(tables + taps * pitch, 0, pitch * sizeof(float));
        if (bias != nullptr) std::copy_n(bias, geometry.experts, tables + taps * pitch);
        convolve(sweep, bands, x, y, scratch, expands, {indices, tables});
        return;
    }
#endif
    convolve(sweep, bands, x, y, scratch, expands);
    if (bias != nullptr) add_bias(geometry, bias, indices, y);
}

}  // namespace
}  // namespace pixel_lanes
}  // namespace smoe

extern "C" int smoe_pixel_forward(const smoe_geometry* geometry, const float* x, const float* weight, const float* bias,
                                  const int32_t* indices, float* y) {
    try {
        smoe::pixel_lanes::forward(*geometry, x, weight, bias, indices, y);
    } catch (const std::bad_alloc&) {
        return 1;
    }
    return 0;
}
