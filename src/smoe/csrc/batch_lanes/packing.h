// What the batch-lane kernels share: sums in registers, blocked transposes, the cut of rows into register groups, and
// the bands in which a picture is packed, used while it is still in cache, and forgotten.
#pragma once

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "../geometry.h"
#include "../vector.h"

#define SMOE_INLINE inline __attribute__((always_inline))

namespace smoe {
namespace batch_lanes {

constexpr int64_t kLineFloats = 16;                 // of a cache line
constexpr int64_t kBandBytes = int64_t{4} << 20;    // packed rows of a band: a share of the last-level cache
constexpr int64_t kSlabBytes = int64_t{256} << 10;  // weights that all pixels of a tile use: a part of L2
constexpr int64_t kTileBytes = int64_t{512} << 10;  // sums of a tile: the rest of L2, and beyond it
constexpr int64_t kMostPixels = 64;                 // of a tile
constexpr int64_t kStreamBytes = int64_t{8} << 20;  // outputs from here on are written past the caches

// --- vectors ---------------------------------------------------------------------------------------------------------

typedef float Quad __attribute__((vector_size(16)));
typedef float Octet __attribute__((vector_size(32)));

// Registers of a micro-kernel's sums, of 32 with AVX-512 and of 16 otherwise.
constexpr int kSums = kRegisterLanes == 16 ? 24 : kRegisterLanes == 8 ? 12 : 8;

template <typename Vector>
constexpr int kWidth = sizeof(Vector) / sizeof(float);

template <typename Vector>
SMOE_INLINE Vector load_vector(const float* source) {
    typedef Vector Unaligned __attribute__((aligned(4), may_alias));
    return *reinterpret_cast<const Unaligned*>(source);
}

template <typename Vector>
SMOE_INLINE void store_vector(float* target, Vector lanes) {
    typedef Vector Unaligned __attribute__((aligned(4), may_alias));
    *reinterpret_cast<Unaligned*>(target) = lanes;
}

// The first `fold` floats, again and again.
template <typename Vector, int fold = 1>
SMOE_INLINE Vector spread(const float* source) {
    static_assert(fold == 1 || fold == 2, "a float or a pair");
    if constexpr (fold == 1) {
        return *source - Vector{};
    } else {
        typedef int64_t Pairs __attribute__((vector_size(sizeof(Vector))));
        int64_t pair;
        std::memcpy(&pair, source, sizeof(pair));
        return reinterpret_cast<Vector>(pair | Pairs{});
    }
}

// Elements of a, then b, in the given order.
template <typename Vector, int... order>
SMOE_INLINE Vector shuffle(Vector a, Vector b, std::integer_sequence<int, order...>) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, order...);
#else
    typedef int32_t Order __attribute__((vector_size(sizeof(Vector))));
    return __builtin_shuffle(a, b, Order{order...});
#endif
}

// body(0) ... body(n - 1), each argument a compile-time constant: arrays of vectors indexed by it become registers.
template <typename Body, int... i>
SMOE_INLINE void unrolled(const Body& body, std::integer_sequence<int, i...>) {
    (body(std::integral_constant<int, i>()), ...);
}

template <int n, typename Body>
SMOE_INLINE void unrolled(const Body& body) {
    unrolled(body, std::make_integer_sequence<int, n>());
}

// The sums of a micro-kernel: rows x vectors, all in registers.
template <typename Vector, int kRows, int kVectors>
class Sums {
 public:
    SMOE_INLINE void clear() {
        unrolled<kRows * kVectors>([&](auto i) { sum_[i] = Vector{}; });
    }

    template <typename Row>  // row(r): where row r lies
    SMOE_INLINE void load(const Row& row) {
        unrolled<kRows * kVectors>(
            [&](auto i) { sum_[i] = load_vector<Vector>(row(i / kVectors) + i % kVectors * kWidth<Vector>); });
    }

    template <typename Row>
    SMOE_INLINE void store(const Row& row) const {
        unrolled<kRows * kVectors>(
            [&](auto i) { store_vector(row(i / kVectors) + i % kVectors * kWidth<Vector>, sum_[i]); });
    }

    // Each row adds value(row), a vector, times the vectors at `source`.
    template <typename Value>
    SMOE_INLINE void add(const float* source, const Value& value) {
        Vector vectors[kVectors];
        unrolled<kVectors>([&](auto v) { vectors[v] = load_vector<Vector>(source + v * kWidth<Vector>); });
        unrolled<kRows>([&](auto r) {
            const Vector factor = value(r);
            unrolled<kVectors>([&](auto v) { sum_[r * kVectors + v] += factor * vectors[v]; });
        });
    }

 private:
    Vector sum_[kRows * kVectors];
};

// --- sizes -----------------------------------------------------------------------------------------------------------

inline int64_t round_up(int64_t value, int64_t step) { return ceil_divide(value, step) * step; }

// A row length of an odd number of cache lines: rows at a power-of-two distance would compete for the same cache sets.
inline int64_t odd_lines(int64_t floats) {
    const int64_t lines = ceil_divide(floats, kLineFloats);
    return (lines | 1) * kLineFloats;
}

// --- transposes ------------------------------------------------------------------------------------------------------

template <typename Vector>
SMOE_INLINE void put(float* target, Vector lanes, bool stream) {
#if defined(__AVX512F__)
    if constexpr (sizeof(Vector) == 64) {
        if (stream && reinterpret_cast<uintptr_t>(target) % sizeof(Vector) == 0) {
            _mm512_stream_ps(target, reinterpret_cast<__m512>(lanes));
            return;
        }
    }
#endif
    static_cast<void>(stream);
    store_vector(target, lanes);
}

// Before another thread may read what was written past the caches.
inline void finish_stream() {
#if defined(__AVX512F__)
    _mm_sfence();
#endif
}

// Where the lines of a matrix begin: `outer` apart, or in bunches of 2^shift lines that are `inner` apart.
template <typename Float>
struct Lines {
    Float* origin;
    int64_t outer, inner = 0;
    int shift = 0;
    int64_t start = 0;

    SMOE_INLINE Float* operator()(int64_t i) const {
        const int64_t line = start + i;
        return origin + (line >> shift) * outer + (line & ((int64_t{1} << shift) - 1)) * inner;
    }
    Lines from(int64_t line, int64_t column) const { return {origin + column, outer, inner, shift, start + line}; }
};

// n x n block, n the vector's width. Interleaving row i with row i + n / 2, log2(n) times, transposes.
template <typename Vector, int... i>
inline void transpose_block(const Lines<const float>& source, const Lines<float>& target, bool stream,
                            std::integer_sequence<int, i...>) {
    constexpr int n = sizeof...(i);
    typedef std::integer_sequence<int, (i / 2 + i % 2 * n)...> Low;
    typedef std::integer_sequence<int, (i / 2 + i % 2 * n + n / 2)...> High;
    Vector rows[n], mixed[n];
    unrolled<n>([&](auto r) { rows[r] = load_vector<Vector>(source(r)); });
    for (int step = 1; step < n; step *= 2) {
        unrolled<n / 2>([&](auto r) {
            mixed[2 * r] = shuffle(rows[r], rows[r + n / 2], Low());
            mixed[2 * r + 1] = shuffle(rows[r], rows[r + n / 2], High());
        });
        unrolled<n>([&](auto r) { rows[r] = mixed[r]; });
    }
    unrolled<n>([&](auto r) { put(target(r), rows[r], stream); });
}

// target(j)[i] = source(i)[j] for i < rows, j < columns. Blocks as large as the registers allow: pictures have strides
// of powers of two, where cache lines that are touched twice are often gone the second time.
template <typename Vector = Register>
inline void transpose(const Lines<const float>& source, int64_t rows, int64_t columns, const Lines<float>& target,
                      bool stream = false) {
    constexpr int n = kWidth<Vector>;
    const int64_t whole_rows = rows / n * n, whole_columns = columns / n * n;
    for (int64_t i = 0; i < whole_rows; i += n) {
        for (int64_t j = 0; j < whole_columns; j += n) {
            transpose_block<Vector>(source.from(i, j), target.from(j, i), stream, std::make_integer_sequence<int, n>());
        }
    }
    const auto rest = [&](int64_t i, int64_t row_count, int64_t j, int64_t column_count) {
        if constexpr (n > 4) {
            typedef std::conditional_t<(n > 8), Octet, Quad> Narrower;
            if (row_count > 0 && column_count > 0) {
                transpose<Narrower>(source.from(i, j), row_count, column_count, target.from(j, i), false);
            }
        } else {
            for (int64_t q = j; q < j + column_count; ++q) {
                for (int64_t p = i; p < i + row_count; ++p) target(q)[p] = source(p)[q];
            }
        }
    };
    rest(whole_rows, rows - whole_rows, 0, columns);
    rest(0, whole_rows, whole_columns, columns - whole_columns);
}

// Up to 16 of the `planes` planes (slots or channels) of one sample's pixels to target[pixel][plane], filled up with
// zeros to 16. The planes are far apart, and rows may be too short for the hardware to see what comes next: the next 16
// are asked for ahead.
inline void pack_planes(const float* source, int64_t plane, int64_t planes, int64_t pixels, float* target,
                        int64_t pixel) {
    for (int64_t i = kLineFloats; i < std::min(planes, 2 * kLineFloats); ++i) {
        for (int64_t j = 0; j < std::min<int64_t>(pixels, 4 * kLineFloats); j += kLineFloats) {
            __builtin_prefetch(source + i * plane + j);
        }
    }
    planes = std::min(planes, kLineFloats);
    transpose({source, plane}, planes, pixels, {target, pixel});
    if (planes == kLineFloats) return;
    for (int64_t i = 0; i < pixels; ++i) {
        std::fill(target + i * pixel + planes, target + i * pixel + kLineFloats, 0.0f);
    }
}

// --- groups of register rows -----------------------------------------------------------------------------------------

// `total` rows in near-equal groups of at most `most`: a short last group has too few sums in flight to hide the
// latency of multiply-add.
struct Groups {
    int64_t total, count;

    Groups(int64_t rows, int64_t most) : total(rows), count(ceil_divide(rows, most)) {}
    int64_t begin(int64_t group) const { return group * total / count; }
    int64_t size(int64_t group) const { return begin(group + 1) - begin(group); }
};

// --- bands -----------------------------------------------------------------------------------------------------------

// Output rows [begin, end) are made while the input rows they need lie packed in slots. A row that the band before
// already packed stays where it is.
struct Band {
    int64_t begin, end;
    std::vector<std::pair<int64_t, int64_t>> arrivals;  // (input row, slot) to pack before the band starts
    std::vector<int64_t> slot;                          // of each input row; -1: not here
};

struct Bands {
    std::vector<Band> list;
    int64_t slots = 0;
};

// `read(row, tap)` is the input row that a tap of an output row reads, or -1.
template <typename Read>
Bands cut_into_bands(int64_t output_rows, int64_t input_rows, int64_t taps, int64_t rows_per_band, const Read& read) {
    Bands bands;
    std::vector<int64_t> slot(input_rows, -1);
    std::vector<char> needed(input_rows);
    std::vector<int64_t> free_slots;
    for (int64_t begin = 0; begin < output_rows; begin += rows_per_band) {
        Band band{begin, std::min(begin + rows_per_band, output_rows), {}, {}};
        std::fill(needed.begin(), needed.end(), 0);
        for (int64_t row = band.begin; row < band.end; ++row) {
            for (int64_t tap = 0; tap < taps; ++tap) {
                if (read(row, tap) >= 0) needed[read(row, tap)] = 1;
            }
        }
        for (int64_t row = 0; row < input_rows; ++row) {
            if (slot[row] < 0 || needed[row]) continue;
            free_slots.push_back(slot[row]);
            slot[row] = -1;
        }
        for (int64_t row = 0; row < input_rows; ++row) {
            if (slot[row] >= 0 || !needed[row]) continue;
            if (free_slots.empty()) free_slots.push_back(bands.slots++);
            slot[row] = free_slots.back();
            free_slots.pop_back();
            band.arrivals.emplace_back(row, slot[row]);
        }
        band.slot = slot;
        bands.list.push_back(std::move(band));
    }
    return bands;
}

// Rows of output per band: as many as the cache share holds, but enough tiles to keep all threads busy.
inline int64_t rows_per_band(int64_t packed_row_floats, int64_t output_width, int64_t threads) {
    const int64_t fitting = kBandBytes / (packed_row_floats * static_cast<int64_t>(sizeof(float)));
    const int64_t busy = ceil_divide(4 * threads * kLineFloats, output_width);
    return std::max({int64_t{1}, fitting, busy});
}

// Pixels per tile: whole cache lines of a picture; several, if the sums of the tile stay near and all threads get
// tiles.
inline int64_t pixels_per_tile(int64_t pixel_floats, int64_t band_pixels, int64_t threads) {
    const int64_t near = kTileBytes / (pixel_floats * static_cast<int64_t>(sizeof(float)));
    const int64_t most = std::min({near, band_pixels / (4 * threads), kMostPixels}) / kLineFloats * kLineFloats;
    return std::max(most, kLineFloats);
}

// source_row() of each kernel row and output row, table[kernel row * output rows + output row]: it divides too often to
// be called for each pixel.
inline std::vector<int64_t> source_rows(const smoe_geometry& g) {
    std::vector<int64_t> table(g.kernel_height * g.output_height);
    for (int64_t tap = 0; tap < g.kernel_height; ++tap) {
        for (int64_t row = 0; row < g.output_height; ++row)
            table[tap * g.output_height + row] = source_row(g, row, tap);
    }
    return table;
}

// Which output coordinate reads input `coordinate` with `tap`: at most one does, since all outputs read different
// inputs with the same tap. table[tap * size + coordinate], -1 for none.
template <typename Source>
std::vector<int64_t> readers(int64_t outputs, int64_t taps, int64_t size, const Source& source) {
    std::vector<int64_t> table(taps * size, -1);
    for (int64_t tap = 0; tap < taps; ++tap) {
        for (int64_t output = 0; output < outputs; ++output) {
            const int64_t coordinate = source(output, tap);
            if (coordinate >= 0) table[tap * size + coordinate] = output;
        }
    }
    return table;
}

inline std::vector<int64_t> row_readers(const smoe_geometry& g) {
    return readers(g.output_height, g.kernel_height, g.height,
                   [&](int64_t row, int64_t tap) { return source_row(g, row, tap); });
}

inline std::vector<int64_t> column_readers(const smoe_geometry& g) {
    return readers(g.output_width, g.kernel_width, g.width, [&](int64_t column, int64_t tap) {
        return source_coordinate(column, tap, g.column_padding, g.stride, g.width, g.wraps_columns);
    });
}

}  // namespace batch_lanes
}  // namespace smoe
