// target[b, m, p] = sum over source planes n and taps t of planes[m, n, t, p] * source[b, n, source(p, t)]:
// a convolution whose filter differs from pixel to pixel, written out as one plane of weights for each tap.
//
// Work of one thread: bands of target rows. For each band
//   1. its weight planes are expanded, [row][m][block of 16 pixels][n, t][16]: one stream, read in the order it lies in
//      memory, small enough for L2 (kBandBytes);
//   2. for each group of up to kGroup samples, row by row: source rows are packed into the ring (L1), and each block of
//      16 pixels is summed over all taps. Registers: one accumulator per sample, one plane vector that all samples
//      share; the samples' pixels are operands in L1. Loads per multiply-add: 1 + 1 / kGroup.
// Memory is read once per source row (plus the kernel's overlap of two bands) and written once.
//
// Where the weights of all experts for a tap are one register, there are no planes: the register is permuted by the
// experts of the pixels (LookUp).
#pragma once

#include <array>
#include <utility>

#include "../scratch.h"
#include "rows.h"

namespace smoe {
namespace pixel_lanes {

// Half of a small L2, so that rows and results pass through beside it.
constexpr int64_t kBandBytes = 256 << 10;

// The experts of each target plane and pixel, and a register of weights for each tap, in the order of planes, and one
// of biases behind them; or neither.
struct LookUp {
    const int32_t* experts = nullptr;
    const float* tables = nullptr;
};

struct ConvolvedRow {
    const Sweep& sweep;
    const std::vector<Tap>& taps;
    const float* planes;     // or tables
    const int32_t* experts;  // of the row in the first target plane
    const float* packed;
    int64_t sample_stride;
    float* target;  // this row of the group's first sample
};

// The weights of the pixels' experts.
template <bool kLooksUp>
inline Register find_weights(const float* plane, int part, const IntRegister (&experts)[kParts]) {
#if defined(__AVX2__)  // before it, registers cannot be permuted by others
    if constexpr (kLooksUp) return __builtin_shuffle(load_part(plane, 0), experts[part]);
#endif
    static_cast<void>(experts);
    return load_part(plane, part);
}

template <bool kLooksUp, int kSamples>
inline void add_tap(const float* plane, const IntRegister (&experts)[kParts], const float* pixels, int64_t stride,
                    Register (&sums)[kSamples][kParts]) {
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
        const Register weights = find_weights<kLooksUp>(plane, part, experts);
#pragma GCC unroll 8
        for (int i = 0; i < kSamples; ++i) sums[i][part] += weights * load_part(pixels + i * stride, part);
    }
}

template <int kSamples>
inline void store_block(const Register (&sums)[kSamples][kParts], float* target, int64_t stride, int64_t width) {
    if (width == kLanes) {
#pragma GCC unroll 8
        for (int i = 0; i < kSamples; ++i) {
#pragma GCC unroll 4
            for (int part = 0; part < kParts; ++part) store_part(target + i * stride, part, sums[i][part]);
        }
        return;
    }
    float block[kSamples][kLanes];
#pragma GCC unroll 8
    for (int i = 0; i < kSamples; ++i) {
#pragma GCC unroll 4
        for (int part = 0; part < kParts; ++part) store_part(block[i], part, sums[i][part]);
    }
    for (int i = 0; i < kSamples; ++i) std::copy(block[i], block[i] + width, target + i * stride);
}

template <bool kLooksUp, int kSamples>
void convolve_row(const ConvolvedRow& row) {
    const Sweep& sweep = row.sweep;
    const Tap* taps = row.taps.data();
    const int64_t num_taps = row.taps.size();
    const int64_t block_size = sweep.taps() * kLanes, stride = row.sample_stride;
    const int64_t plane_size = sweep.target_height * sweep.target_width, target_stride = sweep.targets * plane_size;
    const float* planes = row.planes;
    for (int64_t target = 0; target < sweep.targets; ++target) {
        for (int64_t block = 0; block < sweep.blocks; ++block) {
            const float* packed = row.packed + block * kLanes;
            const int64_t place = target * plane_size + block * kLanes, width = sweep.block_width(block);
            Register sums[kSamples][kParts] = {};
            IntRegister experts[kParts] = {};
            if constexpr (kLooksUp) {
                std::memcpy(experts, row.experts + place, width * sizeof(int32_t));
#pragma GCC unroll 4
                for (int part = 0; part < kParts; ++part) {
                    const Register biases = find_weights<true>(planes + block_size, part, experts);
#pragma GCC unroll 8
                    for (int i = 0; i < kSamples; ++i) sums[i][part] = biases;
                }
            }
            for (int64_t i = 0; i < num_taps; ++i) {
                add_tap<kLooksUp>(planes + taps[i].plane, experts, packed + taps[i].offset, stride, sums);
            }
            store_block(sums, row.target + place, target_stride, width);
            if constexpr (!kLooksUp) planes += block_size;
        }
    }
}

template <bool kLooksUp, size_t... kIndices>
void convolve_row(const ConvolvedRow& row, int64_t samples, std::index_sequence<kIndices...>) {
    using Kernel = void (*)(const ConvolvedRow&);
    constexpr Kernel kKernels[] = {convolve_row<kLooksUp, kIndices + 1>...};
    kKernels[samples - 1](row);
}

// Expand is called as expand(first row, end row, planes) and fills the planes of these rows, at least of all taps whose
// source row exists.
template <class Expand>
void convolve_band(const Sweep& sweep, int64_t first_row, int64_t end_row, const float* source, float* target,
                   float* planes, RowRing<float>& ring, Expand& expand, const LookUp& look_up) {
    constexpr std::make_index_sequence<kGroup> kSizes;
    if (look_up.tables == nullptr) expand(first_row, end_row, planes);
    for_each_group(sweep.batch, [&](int64_t first_sample, int64_t samples) {
        ring.start(source + first_sample * sweep.sources * sweep.source_height * sweep.source_width, samples);
        float* sample_target = target + first_sample * sweep.targets * sweep.target_height * sweep.target_width;
        for (int64_t row = first_row; row < end_row; ++row) {
            ring.advance(row);
            ConvolvedRow work{sweep,
                              ring.taps(),
                              look_up.tables,
                              nullptr,
                              ring.packed(),
                              ring.sample_stride(),
                              sample_target + row * sweep.target_width};
            if (look_up.tables != nullptr) {
                work.experts = look_up.experts + row * sweep.target_width;
                convolve_row<true>(work, samples, kSizes);
            } else {
                work.planes = planes + (row - first_row) * sweep.planes_per_row() * kLanes;
                convolve_row<false>(work, samples, kSizes);
            }
        }
    });
}

// How the target rows are dealt out: bands whose planes fit the cache, a run of bands for each thread. What a target
// pixel sums, and in which order, does not depend on it.
struct Bands {
    int64_t rows, count, threads;

    Bands(const Sweep& sweep, int64_t max_threads) {
        const int64_t row_bytes = sweep.planes_per_row() * kLanes * static_cast<int64_t>(sizeof(float));
        threads = useful_threads(sweep, std::min(max_threads, sweep.target_height));
        rows = std::min(std::max<int64_t>(1, kBandBytes / row_bytes), ceil_divide(sweep.target_height, threads));
        count = ceil_divide(sweep.target_height, rows);
    }
};

// The whole convolution, with one Expand per thread.
template <class Expand>
void convolve(const Sweep& sweep, const Bands& bands, const float* source, float* target, Scratch& scratch,
              std::vector<Expand>& expands, const LookUp& look_up = {}) {
    const size_t planes_size = look_up.tables != nullptr ? 0 : bands.rows * sweep.planes_per_row() * kLanes;
    const size_t ring_size = RowRing<float>::size(sweep, kGroup);
    float* memory = scratch.floats(bands.threads * (planes_size + ring_size));
    std::vector<RowRing<float>> rings;
    for (int64_t thread = 0; thread < bands.threads; ++thread) {
        rings.emplace_back(sweep, kGroup, memory + bands.threads * planes_size + thread * ring_size, 0.0f);
    }

#pragma omp parallel for num_threads(bands.threads) schedule(static)
    for (int64_t thread = 0; thread < bands.threads; ++thread) {
        const int64_t end_band = bands.count * (thread + 1) / bands.threads;
        for (int64_t band = bands.count * thread / bands.threads; band < end_band; ++band) {
            const int64_t first_row = band * bands.rows;
            const int64_t end_row = std::min(first_row + bands.rows, sweep.target_height);
            convolve_band(sweep, first_row, end_row, source, target, memory + thread * planes_size, rings[thread],
                          expands[thread], look_up);
        }
    }
}

// The bank as one table per channel and tap, [C, taps][pitch]: the weights of all experts, then zeros. Expert X is the
// one of pixels that are not there.
inline int64_t table_pitch(int64_t experts) { return ceil_divide(experts + 1, kLanes) * kLanes; }

inline void fill_tables(const float* weight, int64_t experts, int64_t filter_size, float* tables) {
    const int64_t pitch = table_pitch(experts);
    std::memset(tables, 0, filter_size * pitch * sizeof(float));
    for (int64_t expert = 0; expert < experts; ++expert) {
        for (int64_t i = 0; i < filter_size; ++i) tables[i * pitch + expert] = weight[expert * filter_size + i];
    }
}

// The table's entry of each lane's expert. A table of one register is looked up by one permutation, and one of a few
// registers by as many, each of which keeps the lanes that it holds.
inline void look_up(const float* table, int64_t experts, const int32_t* lane_experts, float* result) {
#if defined(__AVX2__)  // before it, registers cannot be permuted by others
    constexpr int64_t kMaxRegisters = 6;
    if (experts < kMaxRegisters * kRegisterLanes) {
        for (int part = 0; part < kParts; ++part) {
            IntRegister choice;
            std::memcpy(&choice, lane_experts + part * kRegisterLanes, sizeof(choice));
            Register found = __builtin_shuffle(load_part(table, 0), choice);  // by the choice modulo the lanes
            for (int64_t first = kRegisterLanes; first <= experts; first += kRegisterLanes) {
                const Register entries = __builtin_shuffle(load_part(table + first, 0), choice);
                found = choice >= static_cast<int32_t>(first) ? entries : found;
            }
            store_part(result, part, found);
        }
        return;
    }
#endif
    static_cast<void>(experts);
    for (int i = 0; i < kLanes; ++i) result[i] = table[lane_experts[i]];
}

}  // namespace pixel_lanes
}  // namespace smoe
