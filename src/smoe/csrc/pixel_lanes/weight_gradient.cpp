// Weight gradient of tiny layers: lanes are sixteen pixels of an output row.
//
//   dw[k, c, t] = sum over b and all (s, p) with indices[s, p] = k of g[b, s, p] * x[b, c, source(p, t)]
//
// The experts are the same for all samples, so the sum over the batch comes first and needs no indirection; the sums of
// a pixel are handed to its expert once per call. Bands of output rows whose sums fit L1 and L2 beside the rows read:
//   1. for each group of up to kGroup samples, row by row: rows of x are packed into the ring (L1). Registers: the
//      group's gradients of 16 pixels; for each tap the sum is loaded, kGroup products are added, and it is stored:
//      1 + 1 / kGroup loads and 1 / kGroup stores per multiply-add. Sums: [row][s][block of 16 pixels][c, t][16].
//   2. the band's sums go to their experts: with few experts by masks, sixteen pixels at once into sixteen partial sums
//      of each expert and tap; with many by one addition per pixel and tap.
// Each band has its own dw and they are added in their order at the end. Bands depend on the shape alone, so the result
// does not depend on the number of threads. x and g are read once.
#include <new>

#include "../scratch.h"
#include "rows.h"

namespace smoe {
namespace pixel_lanes {
namespace {

constexpr int64_t kBandBytes = 64 << 10;
// As many copies of dw as there may be bands.
constexpr int64_t kMaxBands = 64;
// Masks cost a few operations per expert and vector, single additions sixteen per vector: equal at about ten experts.
constexpr int64_t kMaxMasks = 10;

struct Bands {
    int64_t rows, count;

    explicit Bands(const Sweep& sweep) {
        const int64_t row_bytes = sweep.planes_per_row() * kLanes * static_cast<int64_t>(sizeof(float));
        rows = std::max(std::max<int64_t>(1, kBandBytes / row_bytes), ceil_divide(sweep.target_height, kMaxBands));
        count = ceil_divide(sweep.target_height, rows);
        rows = ceil_divide(sweep.target_height, count);
        count = ceil_divide(sweep.target_height, rows);
    }
};

struct CorrelatedRow {
    const Sweep& sweep;
    const std::vector<Tap>& taps;
    const float* gradient;  // this row of the group's first sample
    const float* packed;
    int64_t sample_stride;
    float* sums;
};

template <int kSamples>
inline void load_block(const float* gradient, int64_t stride, int64_t width, Register (&gradients)[kSamples][kParts]) {
    float block[kSamples][kLanes];
    if (width < kLanes) {
        std::memset(block, 0, sizeof(block));
        for (int i = 0; i < kSamples; ++i) std::copy(gradient + i * stride, gradient + i * stride + width, block[i]);
        gradient = block[0];
        stride = kLanes;
    }
#pragma GCC unroll 8
    for (int i = 0; i < kSamples; ++i) {
#pragma GCC unroll 4
        for (int part = 0; part < kParts; ++part) gradients[i][part] = load_part(gradient + i * stride, part);
    }
}

template <int kSamples>
inline void add_products(const Register (&gradients)[kSamples][kParts], const float* pixels, int64_t stride,
                         float* sums) {
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
        Register sum = load_part(sums, part);
#pragma GCC unroll 8
        for (int i = 0; i < kSamples; ++i) sum += gradients[i][part] * load_part(pixels + i * stride, part);
        store_part(sums, part, sum);
    }
}

template <int kSamples>
void correlate_row(const CorrelatedRow& row) {
    const Sweep& sweep = row.sweep;
    const Tap* taps = row.taps.data();
    const int64_t num_taps = row.taps.size();
    const int64_t block_size = sweep.taps() * kLanes, stride = row.sample_stride;
    const int64_t plane_size = sweep.target_height * sweep.target_width, gradient_stride = sweep.targets * plane_size;
    float* sums = row.sums;
    for (int64_t slot = 0; slot < sweep.targets; ++slot) {
        for (int64_t block = 0; block < sweep.blocks; ++block, sums += block_size) {
            const float* packed = row.packed + block * kLanes;
            Register gradients[kSamples][kParts];
            load_block(row.gradient + slot * plane_size + block * kLanes, gradient_stride, sweep.block_width(block),
                       gradients);
            for (int64_t i = 0; i < num_taps; ++i) {
                add_products(gradients, packed + taps[i].offset, stride, sums + taps[i].plane);
            }
        }
    }
}

template <size_t... kIndices>
void correlate_row(const CorrelatedRow& row, int64_t samples, std::index_sequence<kIndices...>) {
    using Kernel = void (*)(const CorrelatedRow&);
    constexpr Kernel kKernels[] = {correlate_row<kIndices + 1>...};
    kKernels[samples - 1](row);
}

void correlate_band(const Sweep& sweep, int64_t first_row, int64_t end_row, const float* x, const float* g, float* sums,
                    RowRing<float>& ring) {
    const int64_t row_size = sweep.planes_per_row() * kLanes;
    std::memset(sums, 0, (end_row - first_row) * row_size * sizeof(float));
    for_each_group(sweep.batch, [&](int64_t first_sample, int64_t samples) {
        ring.start(x + first_sample * sweep.sources * sweep.source_height * sweep.source_width, samples);
        const float* gradient = g + first_sample * sweep.targets * sweep.target_height * sweep.target_width;
        for (int64_t row = first_row; row < end_row; ++row) {
            ring.advance(row);
            const CorrelatedRow work{sweep,         ring.taps(),          gradient + row * sweep.target_width,
                                     ring.packed(), ring.sample_stride(), sums + (row - first_row) * row_size};
            correlate_row(work, samples, std::make_index_sequence<kGroup>());
        }
    });
}

// Calls visit(sums of a block, its indices, its width) in the order of the sums in memory.
template <class Visit>
void for_each_block(const Sweep& sweep, int64_t first_row, int64_t end_row, const int32_t* indices, const float* sums,
                    Visit visit) {
    for (int64_t row = first_row; row < end_row; ++row) {
        for (int64_t slot = 0; slot < sweep.targets; ++slot) {
            const int32_t* chosen = indices + (slot * sweep.target_height + row) * sweep.target_width;
            for (int64_t block = 0; block < sweep.blocks; ++block, sums += sweep.taps() * kLanes) {
                visit(sums, chosen + block * kLanes, sweep.block_width(block));
            }
        }
    }
}

// Adds the sums of those pixels of a block that chose the expert to its partial sums, [taps][16].
void add_masked(const float* block, const int32_t* lane_experts, int64_t expert, int64_t taps, float* partial) {
    IntRegister masks[kParts];
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
        std::memcpy(&masks[part], lane_experts + part * kRegisterLanes, sizeof(IntRegister));
        masks[part] = masks[part] == static_cast<int32_t>(expert);
    }
    for (int64_t tap = 0; tap < taps; ++tap) {
#pragma GCC unroll 4
        for (int part = 0; part < kParts; ++part) {
            const Register chosen = (Register)((IntRegister)load_part(block + tap * kLanes, part) & masks[part]);
            store_part(partial + tap * kLanes, part, load_part(partial + tap * kLanes, part) + chosen);
        }
    }
}

// partial: memory of [X][taps][16].
void add_by_masks(const Sweep& sweep, int64_t first_row, int64_t end_row, const int32_t* indices, const float* sums,
                  int64_t experts, float* partial, float* dw) {
    const int64_t taps = sweep.taps();
    std::memset(partial, 0, experts * taps * kLanes * sizeof(float));
    const auto add_block = [&](const float* block, const int32_t* chosen, int64_t width) {
        int32_t lane_experts[kLanes];
        std::fill(lane_experts, lane_experts + kLanes, -1);
        std::copy(chosen, chosen + width, lane_experts);
        for (int64_t expert = 0; expert < experts; ++expert) {
            add_masked(block, lane_experts, expert, taps, partial + expert * taps * kLanes);
        }
    };
    for_each_block(sweep, first_row, end_row, indices, sums, add_block);
    for (int64_t i = 0; i < experts * taps; ++i) {
        float sum = 0;
        for (int lane = 0; lane < kLanes; ++lane) sum += partial[i * kLanes + lane];
        dw[i] = sum;
    }
}

void add_one_by_one(const Sweep& sweep, int64_t first_row, int64_t end_row, const int32_t* indices, const float* sums,
                    int64_t experts, float* dw) {
    const int64_t taps = sweep.taps();
    std::memset(dw, 0, experts * taps * sizeof(float));
    const auto add_block = [&](const float* block, const int32_t* chosen, int64_t width) {
        for (int64_t lane = 0; lane < width; ++lane) {
            float* filter = dw + chosen[lane] * taps;
            for (int64_t tap = 0; tap < taps; ++tap) filter[tap] += block[tap * kLanes + lane];
        }
    };
    for_each_block(sweep, first_row, end_row, indices, sums, add_block);
}

void weight_gradient(const smoe_geometry& geometry, const float* x, const float* g, const int32_t* indices, float* dw) {
    Scratch scratch;
    const Sweep sweep = input_to_output(geometry);
    const Bands bands(sweep);
    const int64_t threads = useful_threads(sweep, std::min(geometry.threads, bands.count));
    const int64_t experts = geometry.experts, bank_size = experts * sweep.taps();

    const bool has_masks = experts <= kMaxMasks;
    const size_t sums_size = bands.rows * sweep.planes_per_row() * kLanes;
    const size_t partial_size = has_masks ? bank_size * kLanes : 0;
    const size_t ring_size = RowRing<float>::size(sweep, kGroup);
    const size_t thread_size = sums_size + partial_size + ring_size;
    float* memory = scratch.floats(threads * thread_size + bands.count * bank_size);
    float* band_gradients = memory + threads * thread_size;
    std::vector<RowRing<float>> rings;
    for (int64_t thread = 0; thread < threads; ++thread) {
        rings.emplace_back(sweep, kGroup, memory + thread * thread_size + sums_size + partial_size, 0.0f);
    }

#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t thread = 0; thread < threads; ++thread) {
        float* sums = memory + thread * thread_size;
        for (int64_t band = bands.count * thread / threads; band < bands.count * (thread + 1) / threads; ++band) {
            const int64_t first_row = band * bands.rows;
            const int64_t end_row = std::min(first_row + bands.rows, sweep.target_height);
            float* band_gradient = band_gradients + band * bank_size;
            correlate_band(sweep, first_row, end_row, x, g, sums, rings[thread]);
            if (has_masks) {
                add_by_masks(sweep, first_row, end_row, indices, sums, experts, sums + sums_size, band_gradient);
            } else {
                add_one_by_one(sweep, first_row, end_row, indices, sums, experts, band_gradient);
            }
        }
    }

    std::memcpy(dw, band_gradients, bank_size * sizeof(float));
    for (int64_t band = 1; band < bands.count; ++band) {
        for (int64_t i = 0; i < bank_size; ++i) dw[i] += band_gradients[band * bank_size + i];
    }
}

}  // namespace
}  // namespace pixel_lanes
}  // namespace smoe

extern "C" int smoe_pixel_weight_gradient(const smoe_geometry* geometry, const float* x, const float* g,
                                          const int32_t* indices, float* dw) {
    try {
        smoe::pixel_lanes::weight_gradient(*geometry, x, g, indices, dw);
    } catch (const std::bad_alloc&) {
        return 1;
    }
    return 0;
}
