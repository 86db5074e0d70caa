// Input gradient of tiny layers: lanes are sixteen pixels of an input row.
//
//   dx[b, c, q] = sum over s, t of weight[indices[s, o], c, t] * g[b, s, o],   o the output pixel whose tap t reads q
//
// Gathered, not scattered: a sum of shifted stores would reload what it has just stored, one lane further. Each input
// pixel has at most one such o for each tap, so dx is again a convolution by planes, of g with flipped taps, and the
// plane of tap t holds at q the filter that o chose. Where there is no o (beyond a zero border, or between the pixels
// of a stride) g is padded with zeros and the expert is X, whose weights are zero. Rows of no o are left out.
//
// The indices are packed like rows of g; lookups, registers, caches and loop order are those of the forward pass (see
// convolve.h). Threads own bands of input rows.
#include <new>

#include "convolve.h"

namespace smoe {
namespace pixel_lanes {
namespace {

class ExpandInputGradient {
 public:
    ExpandInputGradient(const Sweep& sweep, const int32_t* indices, int64_t experts, const float* tables,
                        int32_t* ring_memory)
        : sweep_(sweep),
          indices_(indices),
          experts_(experts),
          tables_(tables),
          ring_(sweep, 1, ring_memory, static_cast<int32_t>(experts)) {}

    void operator()(int64_t first_row, int64_t end_row, float* planes) {
        ring_.start(indices_, 1);
        for (int64_t row = first_row; row < end_row; ++row) {
            ring_.advance(row);
            for (int64_t channel = 0; channel < sweep_.targets; ++channel) {
                for (int64_t block = 0; block < sweep_.blocks; ++block, planes += sweep_.taps() * kLanes) {
                    expand_block(channel, ring_.packed() + block * kLanes, planes);
                }
            }
        }
    }

 private:
    void expand_block(int64_t channel, const int32_t* packed, float* planes) const {
        const int64_t kernel_size = sweep_.kernel_rows() * sweep_.columns.kernel;
        const int64_t pitch = table_pitch(experts_);
        const float* tables = tables_ + channel * kernel_size * pitch;
        for (const Tap& tap : ring_.taps()) {
            const int64_t kernel_tap = tap.plane / kLanes % kernel_size;
            look_up(tables + kernel_tap * pitch, experts_, packed + tap.offset, planes + tap.plane);
        }
    }

    const Sweep& sweep_;
    const int32_t* indices_;
    int64_t experts_;
    const float* tables_;
    RowRing<int32_t> ring_;
};

void input_gradient(const smoe_geometry& geometry, const float* g, const float* weight, const int32_t* indices,
                    float* dx) {
    Scratch scratch;
    const Sweep sweep = output_to_input(geometry);
    const Bands bands(sweep, geometry.threads);
    const int64_t filter_size = geometry.channels * geometry.kernel_height * geometry.kernel_width;
    float* tables = scratch.floats(filter_size * table_pitch(geometry.experts));
    fill_tables(weight, geometry.experts, filter_size, tables);
    const size_t ring_size = RowRing<int32_t>::size(sweep, 1);
    int32_t* rings = static_cast<int32_t*>(scratch.bytes(bands.threads * ring_size * sizeof(int32_t)));
    std::vector<ExpandInputGradient> expands;
    for (int64_t thread = 0; thread < bands.threads; ++thread) {
        expands.emplace_back(sweep, indices, geometry.experts, tables, rings + thread * ring_size);
    }
    convolve(sweep, bands, g, dx, scratch, expands);
}

}  // namespace
}  // namespace pixel_lanes
}  // namespace smoe

extern "C" int smoe_pixel_input_gradient(const smoe_geometry* geometry, const float* g, const float* weight,
                                         const int32_t* indices, float* dx) {
    try {
        smoe::pixel_lanes::input_gradient(*geometry, g, weight, indices, dx);
    } catch (const std::bad_alloc&) {
        return 1;
    }
    return 0;
}
