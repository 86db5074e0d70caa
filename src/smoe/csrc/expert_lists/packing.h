// How the list kernels lay out inputs and weights: channels side by side, so that the taps of a kernel's row are one
// contiguous stretch of floats, for inputs and weights alike.
//
//   input    [sample][channel block][padded row][padded column][channel]
//   weights  [channel block][expert][kernel row][kernel column][channel]
//
// The padding holds the zeros or the wrapped values beyond the border, so that no kernel asks where the border is. A
// channel block has about 32 channels: the inputs of a tile then fit the first level cache, and a block's taps the
// registers. Where there are fewer channels than lanes, the row of taps of each output pixel is written out by itself
// instead, and rounded up to whole vectors as a row:
//
//   input    [sample][padded row][output column][kernel column][channel]
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "../geometry.h"
#include "../vector.h"
#include "plan.h"

namespace smoe {
namespace expert_lists {

constexpr int kWidth = kRegisterLanes;
typedef Register Vector;

inline Vector load_vector(const float* source) {  // any alignment
    Vector vector;
    std::memcpy(&vector, source, sizeof(vector));
    return vector;
}

// The same, in a register: GCC gives each multiply-add that uses it the memory as an operand, and to load it again and
// again takes as long as the multiply-adds.
inline Vector load_once(const float* source) {
    Vector vector = load_vector(source);
#if defined(__AVX512F__) && defined(__GNUC__)
    __asm__("" : "+v"(vector));
#endif
    return vector;
}

inline void store_vector(float* target, Vector vector) { std::memcpy(target, &vector, sizeof(vector)); }

inline Vector broadcast_vector(float value) { return value - Vector{}; }

// The same pointer, as one that nothing is known about. From it the vectors of a row are reached by constant offsets;
// otherwise GCC takes the sums of row and column for constants of the loop, more of them than there are registers.
inline const float* row_start(const float* pointer) {
    __asm__("" : "+r"(pointer));
    return pointer;
}

// For short stretches, where a call of memcpy takes longer than the copying.
inline void copy_floats(const float* source, int64_t count, float* target) {
    int64_t i = 0;
    for (; i + kWidth <= count; i += kWidth) store_vector(target + i, load_vector(source + i));
    for (; i < count; ++i) target[i] = source[i];
}

inline int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline int64_t round_up(int64_t value, int64_t unit) { return ceil_divide(value, unit) * unit; }

inline int thread_number() {
#if defined(_OPENMP)
    return omp_get_thread_num();
#else
    return 0;
#endif
}

// Lanes of a and b by number, those of b counted on from those of a. This and the next are for any width.
template <int... kNumbers, typename V>
inline V pick(V a, V b) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, kNumbers...);
#else
    typedef int32_t Numbers __attribute__((vector_size(sizeof(V))));
    return __builtin_shuffle(a, b, Numbers{kNumbers...});
#endif
}

// Shuffles that take one instruction each. The first two work within quarters of four lanes: kHigh picks the first or
// the last two floats of a and b, one by one or two by two in turns. The third works on whole quarters: kHigh picks the
// even or the odd ones of a and b.
template <bool kHigh, typename V, int... kLane>
inline V interleave_ones(V a, V b, std::integer_sequence<int, kLane...>) {
    return pick<(kLane / 4 * 4 + kLane % 4 / 2 + 2 * kHigh + kLane % 2 * static_cast<int>(sizeof...(kLane)))...>(a, b);
}
template <bool kHigh, typename V, int... kLane>
inline V interleave_twos(V a, V b, std::integer_sequence<int, kLane...>) {
    return pick<(kLane / 4 * 4 + kLane % 2 + 2 * kHigh + kLane % 4 / 2 * static_cast<int>(sizeof...(kLane)))...>(a, b);
}
template <bool kHigh, typename V, int... kLane>
inline V pick_quarters(V a, V b, std::integer_sequence<int, kLane...>) {
    return pick<(kLane / 4 * 8 + kLane % 4 + 4 * kHigh)...>(a, b);
}

constexpr std::make_integer_sequence<int, kWidth> kAllLanes{};

// Of each quarter, one lane in all four.
template <int kNumber, int... kLane>
inline Vector repeat_lane(Vector a, std::integer_sequence<int, kLane...>) {
    return pick<(kLane / 4 * 4 + kNumber)...>(a, a);
}

// Lane i of the result is the sum over the lanes of vectors[i], taken in the same order for each i. Overwrites them.
template <typename V>
inline V add_lanes(V* vectors) {
    constexpr int n = sizeof(V) / sizeof(float);
    constexpr std::make_integer_sequence<int, n> kAll{};
#pragma GCC unroll 8
    for (int i = 0; i < n / 2; ++i) {
        const V a = vectors[2 * i], b = vectors[2 * i + 1];
        vectors[i] = interleave_ones<false>(a, b, kAll) + interleave_ones<true>(a, b, kAll);
    }
#pragma GCC unroll 4
    for (int i = 0; i < n / 4; ++i) {
        const V a = vectors[2 * i], b = vectors[2 * i + 1];
        vectors[i] = interleave_twos<false>(a, b, kAll) + interleave_twos<true>(a, b, kAll);
    }
#pragma GCC unroll 2
    for (int count = n / 8; count > 0; count /= 2) {
#pragma GCC unroll 2
        for (int i = 0; i < count; ++i) {
            const V a = vectors[2 * i], b = vectors[2 * i + 1];
            vectors[i] = pick_quarters<false>(a, b, kAll) + pick_quarters<true>(a, b, kAll);
        }
    }
    return vectors[0];
}

// Transposes a square of kWidth x kWidth floats: first squares of 4 x 4 within it, then the squares as wholes.
// For any type of four bytes.
template <typename T>
inline void transpose_square(const T* source, int64_t source_pitch, T* target, int64_t target_pitch) {
    static_assert(sizeof(T) == sizeof(float));
    Vector rows[kWidth];
#pragma GCC unroll 4
    for (int i = 0; i < kWidth; i += 4) {
        Vector in[4], half[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) std::memcpy(&in[j], source + (i + j) * source_pitch, sizeof(Vector));
        half[0] = interleave_ones<false>(in[0], in[1], kAllLanes);
        half[1] = interleave_ones<true>(in[0], in[1], kAllLanes);
        half[2] = interleave_ones<false>(in[2], in[3], kAllLanes);
        half[3] = interleave_ones<true>(in[2], in[3], kAllLanes);
        rows[i] = interleave_twos<false>(half[0], half[2], kAllLanes);
        rows[i + 1] = interleave_twos<true>(half[0], half[2], kAllLanes);
        rows[i + 2] = interleave_twos<false>(half[1], half[3], kAllLanes);
        rows[i + 3] = interleave_twos<true>(half[1], half[3], kAllLanes);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        auto put = [&](int row, Vector vector) { std::memcpy(target + row * target_pitch, &vector, sizeof(vector)); };
        if constexpr (kWidth == 4) {
            put(i, rows[i]);
        } else if constexpr (kWidth == 8) {
            put(i, pick_quarters<false>(rows[i], rows[i + 4], kAllLanes));
            put(i + 4, pick_quarters<true>(rows[i], rows[i + 4], kAllLanes));
        } else {
            const Vector even_above = pick_quarters<false>(rows[i], rows[i + 4], kAllLanes);
            const Vector odd_above = pick_quarters<true>(rows[i], rows[i + 4], kAllLanes);
            const Vector even_below = pick_quarters<false>(rows[i + 8], rows[i + 12], kAllLanes);
            const Vector odd_below = pick_quarters<true>(rows[i + 8], rows[i + 12], kAllLanes);
            put(i, pick_quarters<false>(even_above, even_below, kAllLanes));
            put(i + 4, pick_quarters<false>(odd_above, odd_below, kAllLanes));
            put(i + 8, pick_quarters<true>(even_above, even_below, kAllLanes));
            put(i + 12, pick_quarters<true>(odd_above, odd_below, kAllLanes));
        }
    }
}

// target[j][i] = source[i][j], for i < height and j < width.
template <typename T>
inline void transpose(const T* source, int64_t source_pitch, int64_t height, int64_t width, T* target,
                      int64_t target_pitch) {
    const int64_t squares_down = height / kWidth * kWidth, squares_across = width / kWidth * kWidth;
    for (int64_t i = 0; i < squares_down; i += kWidth) {
        for (int64_t j = 0; j < squares_across; j += kWidth) {
            transpose_square(source + i * source_pitch + j, source_pitch, target + j * target_pitch + i, target_pitch);
        }
    }
    for (int64_t i = 0; i < height; ++i) {
        for (int64_t j = i < squares_down ? squares_across : 0; j < width; ++j) {
            target[j * target_pitch + i] = source[i * source_pitch + j];
        }
    }
}

// The taps of a vector's channels, (kWidth, taps) to a row of channels for each tap, and back. Whole vectors are copied
// as long as they stay within the filters.
inline void spread_taps(const float* source, int64_t taps, float* const* rows) {
    alignas(64) float packed[kWidth * kWidth] = {}, turned[kWidth * kWidth];
    for (int64_t c = 0; c < kWidth; ++c, source += taps) {
        if ((kWidth - c) * taps >= kWidth) {
            store_vector(packed + c * kWidth, load_vector(source));
        } else {
            for (int64_t tap = 0; tap < taps; ++tap) packed[c * kWidth + tap] = source[tap];
        }
    }
    transpose_square(packed, kWidth, turned, kWidth);
    for (int64_t tap = 0; tap < taps; ++tap) store_vector(rows[tap], load_vector(turned + tap * kWidth));
}

inline void gather_taps(const float* const* rows, int64_t taps, float* target) {
    alignas(64) float packed[kWidth * kWidth] = {}, turned[kWidth * kWidth];
    for (int64_t tap = 0; tap < taps; ++tap) store_vector(packed + tap * kWidth, load_vector(rows[tap]));
    transpose_square(packed, kWidth, turned, kWidth);
    for (int64_t c = 0; c < kWidth; ++c, target += taps) {
        if ((kWidth - c) * taps >= kWidth) {
            store_vector(target, load_vector(turned + c * kWidth));  // the next channel overwrites the rest
        } else {
            for (int64_t tap = 0; tap < taps; ++tap) target[tap] = turned[c * kWidth + tap];
        }
    }
}

// Channels that are convolved together, and where they lie in the packed input of a sample and in packed weights.
struct Block {
    int64_t first_channel, channels;
    int64_t width;         // floats of a pixel: the channels, rounded up
    int64_t row_floats;    // of one kernel row of taps; a multiple of kWidth
    int64_t pixel_pitch;   // between the taps of adjacent output pixels
    int64_t row_pitch;     // between adjacent padded rows
    int64_t input_offset;  // of the block's padded row 0 in a packed sample, whether or not that row is packed
    int64_t taps_offset;   // of the block in packed weights
};

// Padded rows of a slice. The slices of a padded volume lie below each other, each with its own padding.
inline int64_t padded_slice_height(const smoe_geometry& geometry) {
    return (output_slice_height(geometry) - 1) * geometry.stride + kernel_slice_height(geometry);
}

// Padded row that a kernel row of an output row reads.
inline int64_t padded_row(const smoe_geometry& geometry, int64_t output_row, int64_t kernel_row) {
    const int64_t outputs = output_slice_height(geometry), taps = kernel_slice_height(geometry);
    const int64_t slice = output_row / outputs * geometry.stride + kernel_row / taps;
    return slice * padded_slice_height(geometry) + output_row % outputs * geometry.stride + kernel_row % taps;
}

// Input row that a padded row repeats, or -1 for zeros.
inline int64_t padded_source_row(const smoe_geometry& geometry, int64_t padded_row) {
    const int64_t height = padded_slice_height(geometry);
    const int64_t slice =
        source_coordinate(0, padded_row / height, geometry.depth_padding, 1, geometry.depth, geometry.wraps_depth);
    const int64_t row =
        source_coordinate(0, padded_row % height, geometry.row_padding, 1, slice_height(geometry), geometry.wraps_rows);
    return slice < 0 || row < 0 ? -1 : slice * slice_height(geometry) + row;
}

inline int64_t padded_source_column(const smoe_geometry& geometry, int64_t padded_column) {
    return source_coordinate(0, padded_column, geometry.column_padding, 1, geometry.width, geometry.wraps_columns);
}

class Layout {
 public:
    // A row of 96 floats: with three rows, what the registers of AVX-512 hold of one expert.
    explicit Layout(const smoe_geometry& geometry) : Layout(geometry, Tiling(geometry), 96) {}

    Layout(const smoe_geometry& geometry, const Tiling& tiling, int64_t row_floats) : geometry_(geometry) {
        const int64_t kernel_width = geometry.kernel_width;
        written_out_ = geometry.channels < kWidth && ceil_divide(kernel_width * geometry.channels, kWidth) <
                                                         kernel_width * ceil_divide(geometry.channels, kWidth);
        block_channels_ = std::max<int64_t>(row_floats / kernel_width / 16, 1) * 16;
        padded_rows_ = padded_row(geometry, geometry.output_height - 1, geometry.kernel_height - 1) + 1;
        padded_columns_ = std::max((geometry.output_width - 1) * geometry.stride + kernel_width,
                                   geometry.column_padding + geometry.width);
        packed_channels_ = round_up(geometry.channels, kWidth);
        const int64_t last_width = (packed_channels_ - 1) % block_channels_ + 1;
        last_pitch_ = spread_rows(tiling, padded_columns_ * last_width, last_width);
        row_pitch_ = last_pitch_;
        if (blocks() > 1) row_pitch_ = spread_rows(tiling, padded_columns_ * block_channels_, block_channels_);
    }

    bool written_out() const { return written_out_; }
    int64_t padded_rows() const { return padded_rows_; }
    int64_t blocks() const { return written_out_ ? 1 : ceil_divide(geometry_.channels, block_channels_); }

    Block block(int64_t number) const { return block(number, 0, padded_rows_); }

    // The same where only `rows` padded rows are packed, from `first_row` on.
    Block block(int64_t number, int64_t first_row, int64_t rows) const {
        Block block;
        if (written_out_) {
            block.first_channel = 0;
            block.channels = block.width = geometry_.channels;
            block.row_floats = block.pixel_pitch = round_up(geometry_.kernel_width * block.width, kWidth);
            block.row_pitch = geometry_.output_width * block.row_floats;
        } else {
            block.first_channel = number * block_channels_;
            block.channels = std::min(block_channels_, geometry_.channels - block.first_channel);
            block.width = round_up(block.channels, kWidth);
            block.row_floats = geometry_.kernel_width * block.width;
            block.pixel_pitch = geometry_.stride * block.width;
            block.row_pitch = number + 1 < blocks() ? row_pitch_ : last_pitch_;
        }
        block.input_offset = number * rows * row_pitch_ - first_row * block.row_pitch;
        block.taps_offset = block.first_channel * geometry_.kernel_width * geometry_.kernel_height * geometry_.experts;
        return block;
    }

    // Of a padded row of all channels.
    int64_t row_floats() const { return written_out_ ? block(0).row_pitch : (blocks() - 1) * row_pitch_ + last_pitch_; }

    int64_t taps_floats() const {
        return geometry_.experts * geometry_.kernel_height *
               (written_out_ ? block(0).row_floats : geometry_.kernel_width * packed_channels_);
    }

    int64_t source_row(int64_t padded_row) const { return padded_source_row(geometry_, padded_row); }
    int64_t source_column(int64_t padded_column) const { return padded_source_column(geometry_, padded_column); }

    // Packs one padded row of a block. `sample` is (C, H, W).
    void pack_row(const float* sample, const Block& block, int64_t padded_row, float* packed_sample) const {
        float* target = packed_sample + (block.input_offset + padded_row * block.row_pitch);
        const int64_t row = source_row(padded_row);
        if (row < 0) {
            const int64_t used = written_out_ ? block.row_pitch : padded_columns_ * block.width;
            std::memset(target, 0, used * sizeof(float));
            return;
        }
        const int64_t plane = geometry_.height * geometry_.width;
        const float* source = sample + block.first_channel * plane + row * geometry_.width;
        if (written_out_) {
            write_out_row(source, block, target);
            return;
        }
        const int64_t left = geometry_.column_padding;
        float* inner = target + left * block.width;
        if (block.channels < block.width) {
            std::memset(inner, 0, geometry_.width * block.width * sizeof(float));
        }
        transpose(source, plane, block.channels, geometry_.width, inner, block.width);
        for (int64_t u = 0; u < padded_columns_; ++u) {
            if (u == left) u += geometry_.width;
            if (u < padded_columns_) copy_pixel(inner, source_column(u), block.width, target + u * block.width);
        }
    }

    // Adds up what the padded columns of a row say about the same input column, and writes it to `target`, a row of the
    // block's first channel in a (C, H, W) array. The opposite of packing. Overwrites the padded row.
    void unpack_row(float* padded, const Block& block, float* target) const {
        const int64_t plane = geometry_.height * geometry_.width;
        if (written_out_) {
            gather_row(padded, block, target);
            return;
        }
        const int64_t left = geometry_.column_padding;
        float* inner = padded + left * block.width;
        for (int64_t u = 0; u < padded_columns_; ++u) {
            if (u == left) u += geometry_.width;
            if (u >= padded_columns_) break;
            const int64_t column = source_column(u);
            if (column < 0) continue;
            for (int64_t c = 0; c < block.width; ++c) inner[column * block.width + c] += padded[u * block.width + c];
        }
        transpose(inner, block.width, geometry_.width, block.channels, target, plane);
    }

    // Packs a block of an expert's weights, (C, kh, kw), to kernel rows `row_pitch` floats apart.
    void pack_taps(const float* weight, const Block& block, int64_t row_pitch, float* target) const {
        const int64_t rows = geometry_.kernel_height, columns = geometry_.kernel_width;
        if (block.row_floats > columns * block.channels) {
            for (int64_t y = 0; y < rows; ++y) std::memset(target + y * row_pitch, 0, block.row_floats * sizeof(float));
        }
        const float* source = weight + block.first_channel * rows * columns;
        int64_t c = 0;
        for (; rows * columns <= kWidth && c + kWidth <= block.channels;
             c += kWidth, source += kWidth * rows * columns) {
            float* taps[kWidth];
            for (int64_t tap = 0; tap < rows * columns; ++tap) {
                taps[tap] = target + tap / columns * row_pitch + tap % columns * block.width + c;
            }
            spread_taps(source, rows * columns, taps);
        }
        for (; c < block.channels; ++c) {
            for (int64_t y = 0; y < rows; ++y) {
                for (int64_t x = 0; x < columns; ++x) target[y * row_pitch + x * block.width + c] = *source++;
            }
        }
    }

    void unpack_taps(const float* packed, const Block& block, int64_t row_pitch, float* weight) const {
        const int64_t rows = geometry_.kernel_height, columns = geometry_.kernel_width;
        float* target = weight + block.first_channel * rows * columns;
        int64_t c = 0;
        for (; rows * columns <= kWidth && c + kWidth <= block.channels;
             c += kWidth, target += kWidth * rows * columns) {
            const float* taps[kWidth];
            for (int64_t tap = 0; tap < rows * columns; ++tap) {
                taps[tap] = packed + tap / columns * row_pitch + tap % columns * block.width + c;
            }
            gather_taps(taps, rows * columns, target);
        }
        for (; c < block.channels; ++c) {
            for (int64_t y = 0; y < rows; ++y) {
                for (int64_t x = 0; x < columns; ++x) *target++ = packed[y * row_pitch + x * block.width + c];
            }
        }
    }

 private:
    // The pitch of padded rows, at least `row_floats`, at which the rows of a tile's inputs share the sets of the first
    // level cache evenly: the kernels read all of them again and again, and they fill most of it.
    int64_t spread_rows(const Tiling& tiling, int64_t row_floats, int64_t width) const {
        constexpr int64_t kLine = 16, kSets = 64;
        const int64_t rows = (tiling.height - 1) * geometry_.stride + kernel_slice_height(geometry_);
        const int64_t columns = (tiling.width - 1) * geometry_.stride + geometry_.kernel_width;
        const int64_t lines = ceil_divide(std::min(columns * width, row_floats), kLine);
        const int64_t fair = ceil_divide(rows * lines, kSets);
        for (int64_t pitch = ceil_divide(row_floats, kLine);; ++pitch) {
            int64_t uses[kSets] = {}, most = 0;
            for (int64_t i = 0; i < rows * lines; ++i) {
                most = std::max(most, ++uses[(i / lines * pitch + i % lines) % kSets]);
            }
            if (most <= fair || pitch % kSets == lines % kSets) return pitch * kLine;
        }
    }

    static void copy_pixel(const float* inner, int64_t column, int64_t width, float* target) {
        if (column < 0) {
            std::memset(target, 0, width * sizeof(float));
        } else {
            std::memcpy(target, inner + column * width, width * sizeof(float));
        }
    }

    // Output columns whose tap `x` lies inside the row without wrapping: [first, last).
    std::pair<int64_t, int64_t> inside(int64_t x) const {
        const int64_t shift = x - geometry_.column_padding, stride = geometry_.stride;
        const int64_t first = shift < 0 ? std::min(ceil_divide(-shift, stride), geometry_.output_width) : 0;
        const int64_t last = geometry_.width > shift ? ceil_divide(geometry_.width - shift, stride) : 0;
        return {first, std::max(first, std::min(last, geometry_.output_width))};
    }

    void write_out_row(const float* source, const Block& block, float* target) const {
        const int64_t plane = geometry_.height * geometry_.width, stride = geometry_.stride;
        std::memset(target, 0, block.row_pitch * sizeof(float));
        for (int64_t x = 0; x < geometry_.kernel_width; ++x) {
            const int64_t shift = x - geometry_.column_padding;
            const auto [first, last] = inside(x);
            for (int64_t c = 0; c < block.channels; ++c) {
                const float* line = source + c * plane;
                float* taps = target + x * block.width + c;
                for (int64_t o = first; o < last; ++o) taps[o * block.pixel_pitch] = line[o * stride + shift];
                if (!geometry_.wraps_columns) continue;
                for (int64_t o = 0; o < geometry_.output_width; ++o) {
                    if (o == first) o = last;
                    if (o < geometry_.output_width) taps[o * block.pixel_pitch] = line[source_column(o * stride + x)];
                }
            }
        }
    }

    void gather_row(const float* padded, const Block& block, float* target) const {
        const int64_t plane = geometry_.height * geometry_.width, stride = geometry_.stride;
        for (int64_t c = 0; c < block.channels; ++c) {
            float* line = target + c * plane;
            std::memset(line, 0, geometry_.width * sizeof(float));
            for (int64_t x = 0; x < geometry_.kernel_width; ++x) {
                const float* taps = padded + x * block.width + c;
                const int64_t shift = x - geometry_.column_padding;
                const auto [first, last] = inside(x);
                for (int64_t o = first; o < last; ++o) line[o * stride + shift] += taps[o * block.pixel_pitch];
                if (!geometry_.wraps_columns) continue;
                for (int64_t o = 0; o < geometry_.output_width; ++o) {
                    if (o == first) o = last;
                    if (o < geometry_.output_width) line[source_column(o * stride + x)] += taps[o * block.pixel_pitch];
                }
            }
        }
    }

    smoe_geometry geometry_;
    bool written_out_;
    int64_t block_channels_, packed_channels_;
    int64_t padded_rows_, padded_columns_;
    int64_t row_pitch_, last_pitch_;  // of all blocks but the last, and of the last
};

// Rectangle of a block's taps that fits the registers: kernel rows of one slice by vectors of a row.
struct Part {
    int64_t row, column;  // column: in floats
    int rows, vectors;
    int64_t padded_row;  // that `row` reads, counted from that of the first kernel row
};

// Cuts a block's taps of some rows, all of one slice, into as few parts as possible, of nearly equal size.
inline std::vector<Part> cut_taps(int64_t kernel_height, const Block& block, int64_t most_rows, int64_t most_vectors) {
    const int64_t vectors = block.row_floats / kWidth;
    const int64_t down = ceil_divide(kernel_height, most_rows), across = ceil_divide(vectors, most_vectors);
    std::vector<Part> parts;
    for (int64_t i = 0; i < down; ++i) {
        const int64_t row = kernel_height * i / down, next_row = kernel_height * (i + 1) / down;
        for (int64_t j = 0; j < across; ++j) {
            const int64_t vector = vectors * j / across, next_vector = vectors * (j + 1) / across;
            parts.push_back(
                {row, vector * kWidth, static_cast<int>(next_row - row), static_cast<int>(next_vector - vector), row});
        }
    }
    return parts;
}

// Taps of a block that a tile is multiplied with in one go: those of as many kernel slices as read inputs that fit the
// first level cache together.
struct Pass {
    int64_t block;
    std::vector<Part> parts;
};

// Cuts the taps of all blocks into passes, and each into parts.
inline std::vector<Pass> cut_passes(const smoe_geometry& geometry, const Tiling& tiling, const Layout& layout,
                                    int64_t most_rows, int64_t most_vectors) {
    constexpr int64_t kMostFloats = 6400;  // as for a plane: see Tiling
    const int64_t taps = kernel_slice_height(geometry), rows = (tiling.height - 1) * geometry.stride + taps;
    std::vector<Pass> passes;
    for (int64_t number = 0; number < layout.blocks(); ++number) {
        const Block block = layout.block(number);
        const int64_t slice_floats = rows * (tiling.width * block.pixel_pitch + block.row_floats);
        const int64_t together = std::max<int64_t>(kMostFloats / slice_floats, 1);
        for (int64_t slice = 0; slice < geometry.kernel_depth; ++slice) {
            if (slice % together == 0) passes.push_back({number, {}});
            for (Part part : cut_taps(taps, block, most_rows, most_vectors)) {
                part.row += slice * taps;
                part.padded_row += slice * padded_slice_height(geometry);
                passes.back().parts.push_back(part);
            }
        }
    }
    return passes;
}

}  // namespace expert_lists
}  // namespace smoe
