// What the pixel-lane kernels share: which source pixel a tap of a target pixel reads, and source rows packed so that a
// tap of sixteen neighbouring target pixels is one contiguous load.
//
// Both directions of the layer are sums over taps of shifted source rows:
//
//   forward, weight gradient: source x (C planes), target y (E planes). Tap k of target o reads coordinate
//                             s o + k - P, where s is the stride and P the padding.
//   input gradient: source g (E planes), target x (C planes). g is thought of as spread over the grid of x, with s - 1
//                   zeros between its pixels. Tap k of target q reads coordinate q - k + P.
//
// so that one `Sweep` describes either. A position is a coordinate counted from the first one that any tap can reach.
// Positions beyond the border are looked up once per row when it is packed; nothing after that knows about borders.
#pragma once

// Lanes are passed between functions of one file only, all built alike: how older compilers passed them is no matter.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "../geometry.h"
#include "../vector.h"

namespace smoe {
namespace pixel_lanes {

constexpr int kParts = kLanes / kRegisterLanes;  // registers of a block of sixteen pixels

inline Register load_part(const float* block, int part) {
    Register lanes;
    std::memcpy(&lanes, block + part * kRegisterLanes, sizeof(lanes));
    return lanes;
}

inline void store_part(float* block, int part, Register lanes) {
    std::memcpy(block + part * kRegisterLanes, &lanes, sizeof(lanes));
}

struct Axis {
    int64_t kernel;
    int64_t step;      // positions from one target pixel to the next
    int64_t dilation;  // coordinates from one source pixel to the next
    int64_t padding;   // positions before the first coordinate
    int64_t size;      // of the grid of coordinates
    int64_t wraps;
    bool is_flipped;

    // Position that a tap reads, counted from the first position of its target pixel.
    int64_t tap_position(int64_t tap) const { return is_flipped ? kernel - 1 - tap : tap; }

    // Source pixel at a position, or -1 where there is a zero.
    int64_t source(int64_t position) const {
        const int64_t coordinate = source_coordinate(0, position, padding, 1, size, wraps);
        return coordinate < 0 || coordinate % dilation != 0 ? -1 : coordinate / dilation;
    }
};

// One walk over all target rows. A packed row holds `step` phases: the positions 0, s, 2 s, ... then 1, 1 + s, ...
struct Sweep {
    int64_t batch, sources, targets;  // samples; planes of one sample that are read and made
    int64_t source_height, source_width, target_height, target_width;
    int64_t source_slice_height, target_slice_height;
    Axis slices, rows, columns;  // rows of one slice
    int64_t blocks;              // of sixteen pixels in a target row
    int64_t pitch;               // of a packed row
    int64_t packed_count;        // elements of it that target pixels read; what follows is for lanes beyond the row
    std::vector<int32_t> column_sources;  // source column of each packed element, or -1
    std::vector<int32_t> column_offsets;  // of each horizontal tap in a packed row
    int64_t copied_from, copied_count;    // packed elements that are the source row as it is

    int64_t kernel_rows() const { return slices.kernel * rows.kernel; }
    int64_t taps() const { return sources * kernel_rows() * columns.kernel; }  // of one target plane
    int64_t planes_per_row() const { return targets * blocks * taps(); }       // vectors, one per block and tap
    int64_t block_width(int64_t block) const { return std::min<int64_t>(kLanes, target_width - block * kLanes); }
};

inline void map_columns(Sweep& sweep) {
    const Axis& axis = sweep.columns;
    sweep.blocks = ceil_divide(sweep.target_width, kLanes);
    const int64_t phase_pitch = ceil_divide(sweep.blocks * kLanes + (axis.kernel - 1) / axis.step, kLanes) * kLanes;
    sweep.pitch = axis.step * phase_pitch;
    sweep.column_sources.assign(sweep.pitch, -1);
    const int64_t num_positions = (sweep.target_width - 1) * axis.step + axis.kernel;
    for (int64_t position = 0; position < num_positions; ++position) {
        const int64_t element = position % axis.step * phase_pitch + position / axis.step;
        sweep.column_sources[element] = static_cast<int32_t>(axis.source(position));
    }
    sweep.column_offsets.resize(axis.kernel);
    for (int64_t tap = 0; tap < axis.kernel; ++tap) {
        const int64_t position = axis.tap_position(tap);
        sweep.column_offsets[tap] = static_cast<int32_t>(position % axis.step * phase_pitch + position / axis.step);
    }
    sweep.packed_count = (axis.step == 1 ? 0 : sweep.pitch - phase_pitch) + ceil_divide(num_positions, axis.step);
    const bool is_plain = axis.step == 1 && axis.dilation == 1;
    sweep.copied_from = is_plain ? axis.padding : 0;
    sweep.copied_count = is_plain ? sweep.source_width : 0;
}

inline Axis forward_axis(const smoe_geometry& g, int64_t kernel, int64_t padding, int64_t size, int64_t wraps) {
    return {kernel, g.stride, 1, padding, size, wraps, false};
}

// Beyond the last output there is no gradient, even where the input goes on.
inline Axis backward_axis(const smoe_geometry& g, int64_t kernel, int64_t padding, int64_t size, int64_t outputs,
                          int64_t wraps) {
    return {kernel, 1, g.stride, kernel - 1 - padding, wraps ? size : outputs * g.stride, wraps, true};
}

inline Sweep input_to_output(const smoe_geometry& g) {
    Sweep sweep;
    sweep.batch = g.batch, sweep.sources = g.channels, sweep.targets = g.selected;
    sweep.source_height = g.height, sweep.source_width = g.width;
    sweep.target_height = g.output_height, sweep.target_width = g.output_width;
    sweep.source_slice_height = slice_height(g), sweep.target_slice_height = output_slice_height(g);
    sweep.slices = forward_axis(g, g.kernel_depth, g.depth_padding, g.depth, g.wraps_depth);
    sweep.rows = forward_axis(g, kernel_slice_height(g), g.row_padding, slice_height(g), g.wraps_rows);
    sweep.columns = forward_axis(g, g.kernel_width, g.column_padding, g.width, g.wraps_columns);
    map_columns(sweep);
    return sweep;
}

inline Sweep output_to_input(const smoe_geometry& g) {
    Sweep sweep;
    sweep.batch = g.batch, sweep.sources = g.selected, sweep.targets = g.channels;
    sweep.source_height = g.output_height, sweep.source_width = g.output_width;
    sweep.target_height = g.height, sweep.target_width = g.width;
    sweep.source_slice_height = output_slice_height(g), sweep.target_slice_height = slice_height(g);
    sweep.slices = backward_axis(g, g.kernel_depth, g.depth_padding, g.depth, g.output_depth, g.wraps_depth);
    sweep.rows =
        backward_axis(g, kernel_slice_height(g), g.row_padding, slice_height(g), output_slice_height(g), g.wraps_rows);
    sweep.columns = backward_axis(g, g.kernel_width, g.column_padding, g.width, g.output_width, g.wraps_columns);
    map_columns(sweep);
    return sweep;
}

template <class T>
void pack_row(const Sweep& sweep, const T* source, T absent, T* packed) {
    const int32_t* columns = sweep.column_sources.data();
    const auto pick = [&](int64_t from, int64_t to) {
        for (int64_t i = from; i < to; ++i) packed[i] = columns[i] < 0 ? absent : source[columns[i]];
    };
    pick(0, sweep.copied_from);
    std::memcpy(packed + sweep.copied_from, source, sweep.copied_count * sizeof(T));
    pick(sweep.copied_from + sweep.copied_count, sweep.packed_count);
}

// A tap of a target row whose source row exists.
struct Tap {
    int64_t offset;  // of its first pixel in a sample's packed rows
    int64_t plane;   // of its weights in a block's planes, in floats
};

// The packed rows that the current target row reads, of a few samples: [sample][source plane][kernel row][pitch], a
// ring for each slice of the kernel. A row is packed when the first target row of its slice needs it and overwritten
// when none does any more, so that all of them stay in L1. Rows of zeros are not kept: their taps are left out.
template <class T>
class RowRing {
 public:
    static size_t size(const Sweep& sweep, int64_t samples) {
        return samples * sweep.sources * sweep.kernel_rows() * sweep.pitch;
    }

    RowRing(const Sweep& sweep, int64_t samples, T* memory, T absent)
        : sweep_(sweep), memory_(memory), absent_(absent), is_present_(sweep.kernel_rows()) {
        taps_.reserve(sweep.taps());
        std::fill(memory, memory + samples * sample_stride(), absent);
    }

    // Begins anew with these samples, at any target row.
    void start(const T* source, int64_t samples) {
        source_ = source;
        samples_ = samples;
        slice_ = -1;
    }

    // Packs what `row` reads and the row before it, if any, did not. Rows must come in ascending order.
    void advance(int64_t row) {
        if (row / sweep_.target_slice_height != slice_) {
            slice_ = row / sweep_.target_slice_height;
            next_position_ = 0;
        }
        const int64_t first = row % sweep_.target_slice_height * sweep_.rows.step;
        const int64_t end = first + sweep_.rows.kernel;
        for (int64_t position = std::max(first, next_position_); position < end; ++position) {
            for (int64_t slice = 0; slice < sweep_.slices.kernel; ++slice) pack(slice, position);
        }
        next_position_ = end;
        list_taps(first);
    }

    const std::vector<Tap>& taps() const { return taps_; }
    const T* packed() const { return memory_; }
    int64_t sample_stride() const { return sweep_.sources * sweep_.kernel_rows() * sweep_.pitch; }

 private:
    void pack(int64_t kernel_slice, int64_t position) {
        const int64_t slot = kernel_slice * sweep_.rows.kernel + position % sweep_.rows.kernel;
        const int64_t row = sweep_.rows.source(position);
        const int64_t slice =
            sweep_.slices.source(slice_ * sweep_.slices.step + sweep_.slices.tap_position(kernel_slice));
        is_present_[slot] = row >= 0 && slice >= 0;
        if (!is_present_[slot]) return;
        const T* source = source_ + (slice * sweep_.source_slice_height + row) * sweep_.source_width;
        T* packed = memory_ + slot * sweep_.pitch;
        for (int64_t plane = 0; plane < samples_ * sweep_.sources; ++plane) {
            pack_row(sweep_, source + plane * sweep_.source_height * sweep_.source_width, absent_,
                     packed + plane * sweep_.kernel_rows() * sweep_.pitch);
        }
    }

    void list_taps(int64_t first_position) {
        const int64_t rows = sweep_.rows.kernel, height = sweep_.kernel_rows(), width = sweep_.columns.kernel;
        taps_.clear();
        for (int64_t plane = 0; plane < sweep_.sources; ++plane) {
            for (int64_t i = 0; i < height; ++i) {
                const int64_t slot = i / rows * rows + (first_position + sweep_.rows.tap_position(i % rows)) % rows;
                if (!is_present_[slot]) continue;
                for (int64_t j = 0; j < width; ++j) {
                    taps_.push_back({(plane * height + slot) * sweep_.pitch + sweep_.column_offsets[j],
                                     ((plane * height + i) * width + j) * kLanes});
                }
            }
        }
    }

    const Sweep& sweep_;
    T* memory_;
    T absent_;
    const T* source_ = nullptr;
    int64_t samples_ = 0;
    int64_t slice_ = -1;  // of the current target row
    int64_t next_position_ = 0;
    std::vector<char> is_present_;
    std::vector<Tap> taps_;
};

// Samples that share one load of a weight plane: as many as there are accumulators, and pointers to address them.
constexpr int64_t kGroup = std::min(kAccumulators, 8);

// Calls visit(first sample, number of samples) with near-equal groups: a last group of one sample would wait for each
// multiply-add instead of overlapping them.
template <class Visit>
void for_each_group(int64_t batch, Visit visit) {
    const int64_t groups = ceil_divide(batch, kGroup);
    for (int64_t group = 0; group < groups; ++group) {
        const int64_t first = batch * group / groups;
        visit(first, batch * (group + 1) / groups - first);
    }
}

// As many threads as there is work for: starting them costs as much as about 2^18 multiply-adds.
inline int64_t useful_threads(const Sweep& sweep, int64_t max_threads) {
    const double work = 1.0 * sweep.batch * sweep.target_height * sweep.planes_per_row() * kLanes;
    const int64_t worthwhile = static_cast<int64_t>(std::min(work / (1 << 18), 1e6));
    return std::max<int64_t>(1, std::min(max_threads, worthwhile));
}

}  // namespace pixel_lanes
}  // namespace smoe
