// Weight gradient with channels in the lanes and the batch as the sum.
//
// At one output pixel and tap, dW (E x C) += g (E x B) times x (B x C), into the rows of the experts that the pixel
// chose. The experts of one pixel are distinct, so a group of rows may be loaded, added to and stored as one.
//
//   registers   the rows of up to 24 experts x 16 channels (6 x 16 with 16 registers); per sample the channels are
//               loaded once, and each slot's gradient is broadcast
//   L1          the block of channels of one input pixel [B][channels]; the dW rows of all experts for one tap and
//               block [X][channels], as far as they fit
//   L2          the gradient and input of the tile's pixels, used by all taps and blocks
//   L3          the packed rows of a band: x [row][column][B][C], g [row][column][B][E], indices [row][column][E]
//
// Loops: band of output rows > tile of output pixels > (tap, block of channels) > pixel > group of slots.
// Each (tap, block) belongs to one thread, which alone adds to its slab of dW, pixel by pixel: no sums across threads.
#include <omp.h>

#include <array>
#include <new>

#include "../scratch.h"
#include "packing.h"

namespace smoe {
namespace batch_lanes {
namespace {

constexpr int64_t kPixelsBytes = 256 << 10;  // gradients and inputs of a tile: a part of L2

constexpr int64_t kBlock = 16;  // channels that a register tile covers
constexpr int kVectors = kBlock / kWidth<Register>;
constexpr int kMostRows = kSums / kVectors;

// slab[experts[r]][channel] += sum over samples of gradient[sample][r] * x[sample][channel]
template <int kRows>
void multiply(const float* gradient, int64_t gradient_stride, const float* x, int64_t x_stride, int64_t samples,
              const int32_t* experts, float* slab) {
    Sums<Register, kRows, kVectors> sum;
    const auto row = [&](int r) { return slab + experts[r] * kBlock; };
    sum.load(row);
    for (int64_t sample = 0; sample < samples; ++sample) {
        sum.add(x, [&](auto r) { return spread<Register>(gradient + r); });
        x += x_stride;
        gradient += gradient_stride;
    }
    sum.store(row);
}

using Multiply = void (*)(const float*, int64_t, const float*, int64_t, int64_t, const int32_t*, float*);

template <int... rows>
constexpr std::array<Multiply, sizeof...(rows)> multiply_table(std::integer_sequence<int, rows...>) {
    return {multiply<rows + 1>...};
}

constexpr auto kMultiply = multiply_table(std::make_integer_sequence<int, kMostRows>());

struct Work {
    const smoe_geometry& g;
    const std::vector<int64_t>& rows;   // see source_rows()
    int64_t x_stride, gradient_stride;  // floats from sample to sample
    float* x;                           // [slot of the row][column][B][C]
    float* gradient;                    // [row of the band][column][B][E]
    int32_t* experts;                   // [row of the band][column][E]
    float* slabs;                       // [tap][block][X][channels of a block]
};

// One line of channels of one sample: all rows that arrive with the band.
void pack_input(const Work& work, const float* x, const Band& band, int64_t sample, int64_t channel) {
    const smoe_geometry& g = work.g;
    const int64_t plane = g.height * g.width, planes = g.channels - channel;
    const float* source = x + (sample * g.channels + channel) * plane;
    float* target = work.x + sample * work.x_stride + channel;
    for (const auto& [row, slot] : band.arrivals) {
        pack_planes(source + row * g.width, plane, planes, g.width, target + slot * g.width * g.batch * work.x_stride,
                    g.batch * work.x_stride);
    }
}

void pack_gradient(const Work& work, const float* gradient, const Band& band, int64_t sample, int64_t slot) {
    const smoe_geometry& g = work.g;
    const int64_t plane = g.output_height * g.output_width, planes = g.selected - slot;
    pack_planes(gradient + (sample * g.selected + slot) * plane + band.begin * g.output_width, plane, planes,
                (band.end - band.begin) * g.output_width, work.gradient + sample * work.gradient_stride + slot,
                g.batch * work.gradient_stride);
}

void pack_experts(const Work& work, const int32_t* indices, const Band& band, int64_t slot) {
    const smoe_geometry& g = work.g;
    const int64_t begin = band.begin * g.output_width, end = band.end * g.output_width;
    const int32_t* source = indices + slot * g.output_height * g.output_width;
    for (int64_t pixel = begin; pixel < end; ++pixel) {
        work.experts[(pixel - begin) * g.selected + slot] = source[pixel];
    }
}

// One (tap, block of channels): what a thread owns.
void add_pixels(const Work& work, const Band& band, int64_t first, int64_t count, int64_t tap, int64_t block,
                float* slab) {
    const smoe_geometry& g = work.g;
    const Groups groups(g.selected, kMostRows);
    const int64_t* rows = work.rows.data() + tap / g.kernel_width * g.output_height;
    const int32_t* experts_end = work.experts + (first + count - band.begin * g.output_width) * g.selected;
    for (int64_t pixel = first; pixel < first + count; ++pixel) {
        const int64_t row = rows[pixel / g.output_width];
        const int64_t column = source_coordinate(pixel % g.output_width, tap % g.kernel_width, g.column_padding,
                                                 g.stride, g.width, g.wraps_columns);
        if (row < 0 || column < 0) continue;
        const float* x = work.x + (band.slot[row] * g.width + column) * g.batch * work.x_stride + block * kBlock;
        const int64_t here = pixel - band.begin * g.output_width;
        const float* gradient = work.gradient + here * g.batch * work.gradient_stride;
        const int32_t* experts = work.experts + here * g.selected;
        for (int64_t group = 0; group < groups.count; ++group) {
            const int64_t slot = groups.begin(group);
            // The rows of the group after this one; of a large bank they are not in L1.
            const int32_t* next = experts + slot + groups.size(group);
            for (int64_t r = 0; r < std::min<int64_t>(kMostRows, experts_end - next); ++r) {
                __builtin_prefetch(slab + next[r] * kBlock, 1);
            }
            kMultiply[groups.size(group) - 1](gradient + slot, work.gradient_stride, x, work.x_stride, g.batch,
                                              experts + slot, slab);
        }
    }
}

void unpack_expert(const smoe_geometry& g, const float* slabs, int64_t blocks, int64_t expert, float* dw) {
    const int64_t taps = g.kernel_height * g.kernel_width;
    for (int64_t c = 0; c < g.channels; ++c) {
        for (int64_t tap = 0; tap < taps; ++tap) {
            const int64_t slab = tap * blocks + c / kBlock;
            dw[(expert * g.channels + c) * taps + tap] = slabs[(slab * g.experts + expert) * kBlock + c % kBlock];
        }
    }
}

void weight_gradient(const smoe_geometry& g, const float* x, const float* gradient, const int32_t* indices, float* dw) {
    const int64_t taps = g.kernel_height * g.kernel_width;
    const int64_t blocks = ceil_divide(g.channels, kBlock), units = taps * blocks;
    const int64_t x_stride = odd_lines(blocks * kBlock), gradient_stride = odd_lines(g.selected);
    const int64_t x_row = g.width * g.batch * x_stride, gradient_row = g.output_width * g.batch * gradient_stride;
    const std::vector<int64_t> rows = source_rows(g);
    const auto read = [&](int64_t row, int64_t tap) { return rows[tap * g.output_height + row]; };
    const Bands bands = cut_into_bands(g.output_height, g.height, g.kernel_height,
                                       rows_per_band(x_row * g.stride + gradient_row, g.output_width, g.threads), read);
    const int64_t band_rows = bands.list.front().end;
    const int64_t pixel_bytes = g.batch * (x_stride + gradient_stride) * sizeof(float);
    const int64_t tile = std::max<int64_t>(1, kPixelsBytes / pixel_bytes);

    Scratch scratch;
    const Work work{g,
                    rows,
                    x_stride,
                    gradient_stride,
                    scratch.floats(bands.slots * x_row),
                    scratch.floats(band_rows * gradient_row),
                    static_cast<int32_t*>(scratch.bytes(band_rows * g.output_width * g.selected * sizeof(int32_t))),
                    scratch.floats(units * g.experts * kBlock)};

#pragma omp parallel num_threads(g.threads)
    {
#pragma omp for schedule(static)
        for (int64_t unit = 0; unit < units; ++unit) {
            std::fill_n(work.slabs + unit * g.experts * kBlock, g.experts * kBlock, 0.0f);
        }
        for (const Band& band : bands.list) {
#pragma omp for schedule(static) collapse(2) nowait
            for (int64_t sample = 0; sample < g.batch; ++sample) {
                for (int64_t channel = 0; channel < g.channels; channel += kLineFloats) {
                    pack_input(work, x, band, sample, channel);
                }
            }
#pragma omp for schedule(static) collapse(2) nowait
            for (int64_t sample = 0; sample < g.batch; ++sample) {
                for (int64_t slot = 0; slot < g.selected; slot += kLineFloats) {
                    pack_gradient(work, gradient, band, sample, slot);
                }
            }
#pragma omp for schedule(static)
            for (int64_t slot = 0; slot < g.selected; ++slot) pack_experts(work, indices, band, slot);
            const int64_t begin = band.begin * g.output_width, end = band.end * g.output_width;
            const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
            for (int64_t first = begin; first < end; first += tile) {
                for (int64_t unit = thread * units / threads; unit < (thread + 1) * units / threads; ++unit) {
                    add_pixels(work, band, first, std::min(tile, end - first), unit / blocks, unit % blocks,
                               work.slabs + unit * g.experts * kBlock);
                }
            }
#pragma omp barrier
        }
#pragma omp for schedule(static)
        for (int64_t expert = 0; expert < g.experts; ++expert) {
            unpack_expert(g, work.slabs, blocks, expert, dw);
        }
    }
}

}  // namespace
}  // namespace batch_lanes
}  // namespace smoe

extern "C" int smoe_batch_weight_gradient(const smoe_geometry* geometry, const float* x, const float* g,
                                          const int32_t* indices, float* dw) {
    try {
        smoe::batch_lanes::weight_gradient(*geometry, x, g, indices, dw);
    } catch (const std::bad_alloc&) {
        return 1;
    }
    return 0;
}
