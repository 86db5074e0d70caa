// Forward pass with the samples of the batch in the lanes.
//
// At one output pixel, y (E x B) = weight rows (E x K) times patch (K x B), K = taps times channels: a small matrix
// product whose rows lie wherever the pixel's indices point. The patch of one kernel row is contiguous in a packed
// picture row, so a run over kw * C needs one pointer for the patch and one for each weight row.
//
//   lanes       32 or 16 samples; eight or fewer lie twice in 16 lanes, once for an even and once for an odd channel
//               (`fold` = 2): a weight row then gives a pair of neighbours per step, and the two sums meet at the end
//   registers   sums of up to 12 weight rows x 32 lanes (6 x 16 with 16 registers); per step of K the patch's lanes are
//               loaded once, and each row's weight is broadcast once
//   L1          the part of one patch that a call covers: used by all E rows
//   L2          the weights of all experts for this part: used by all pixels of the tile; the sums of the tile
//               [pixel][E][lanes]
//   L3          the packed picture rows of a band [row][column][C / fold][lanes]
//
// Loops: panel of samples > band of output rows > tile of 16 to 64 output pixels > part of K > pixel > group of rows >
// kernel rows that the part touches. Taps beyond a zero border are left out, so no zeros are packed; beyond a wrapping
// border the packed row goes on. A tile is made by one thread from beginning to end, and it alone writes these pixels
// of y, in an order that depends on nothing but the geometry.
#include <omp.h>

#include <array>
#include <new>

#include "../scratch.h"
#include "packing.h"

namespace smoe {
namespace batch_lanes {
namespace {

constexpr int64_t kPatchBytes = 24 << 10;  // most of a small L1: weights only stream through the rest
constexpr int kLinesAhead = 4;             // of a weight row, fetched before it is used

// Samples [first, first + count) in `width` places, of `fold` lanes each; the lanes beyond `count` hold zeros.
struct Panel {
    int64_t first, count, width, fold;

    int64_t lanes() const { return width * fold; }
};

std::vector<Panel> cut_into_panels(int64_t batch) {
    // 32 lanes share each broadcast between two registers; of 16 registers that would leave too few for rows.
    // 17 to 24 samples fill 16 + 8 better than 32.
    std::vector<Panel> panels;
    for (int64_t first = 0; first < batch;) {
        const int64_t left = batch - first;
        const int64_t width = kWidth<Register> == 16 && left > 24 ? 32 : left > 8 ? 16 : 8;
        panels.push_back({first, std::min(left, width), width, width == 8 ? 2 : 1});
        first += width;
    }
    return panels;
}

// Rows of a register tile. Every row costs a pointer: more than 12 would not leave enough for the loop itself.
template <int lanes>
constexpr int kMostRows = std::min(12, kSums* kWidth<Register> / lanes);

// The bank as [part][X][stride]: a row's kh * kw * C weights, ordered by kernel row, kernel column, channel, are cut
// into parts. If a panel folds, C is rounded up to even (`channels`), and parts begin at even places.
struct Bank {
    float* data;
    int64_t experts, channels, fold, stride;
    Groups parts;

    Bank(const smoe_geometry& g, const std::vector<Panel>& panels)
        : data(nullptr),
          experts(g.experts),
          channels(round_up(g.channels, panels.back().fold)),
          fold(panels.back().fold),
          parts(g.kernel_height * g.kernel_width * channels / fold, most_units(g, panels)) {
        stride = odd_lines(ceil_divide(parts.total, parts.count) * fold);
    }

    // Of `fold` weights each, such that the patch fits L1 and the weights fit L2.
    static int64_t most_units(const smoe_geometry& g, const std::vector<Panel>& panels) {
        const int64_t fold = panels.back().fold, unit = fold * static_cast<int64_t>(sizeof(float));
        const int64_t patch = kPatchBytes / (unit * panels.front().width);
        return std::min(patch, std::max(kSlabBytes / (unit * g.experts), kLineFloats * 4));
    }

    int64_t begin(int64_t part) const { return parts.begin(part) * fold; }
    int64_t floats() const { return parts.count * experts * stride; }
    float* slab(int64_t part) const { return data + part * experts * stride; }
};

void pack_expert(const smoe_geometry& g, const float* weight, int64_t expert, const Bank& bank) {
    const int64_t taps = g.kernel_height * g.kernel_width;
    const float* filter = weight + expert * g.channels * taps;
    int64_t tap = 0, channel = 0;
    for (int64_t part = 0; part < bank.parts.count; ++part) {
        float* row = bank.slab(part) + expert * bank.stride;
        for (int64_t k = bank.begin(part); k < bank.begin(part + 1); ++k) {
            *row++ = channel < g.channels ? filter[channel * taps + tap] : 0.0f;
            if (++channel == bank.channels) {
                channel = 0;
                ++tap;
            }
        }
    }
}

// What a part of K covers of one kernel row at one pixel.
struct Piece {
    const float* patch;
    int64_t offset;  // of its weights in the part
    int64_t steps;
};

// sums[row][lane] (+)= sum over the pieces' steps of weight times patch
template <int lanes, int fold, int kRows>
void multiply(const Piece* pieces, int64_t count, const float* const* rows, bool fresh, float* sums) {
    constexpr int kVectors = lanes / kWidth<Register>;
    Sums<Register, kRows, kVectors> sum;
    if (fresh) {
        sum.clear();
    } else {
        sum.load([&](int r) { return sums + r * lanes; });
    }
    for (const Piece* piece = pieces; piece < pieces + count; ++piece) {
        const float* row[kRows];
        unrolled<kRows>([&](auto r) { row[r] = rows[r] + piece->offset; });
        const float* patch = piece->patch;
        for (int64_t k = 0; k < piece->steps; ++k) {
            sum.add(patch + k * lanes, [&](auto r) { return spread<Register, fold>(row[r] + k * fold); });
        }
    }
    sum.store([&](int r) { return sums + r * lanes; });
}

using Multiply = void (*)(const Piece*, int64_t, const float* const*, bool, float*);

template <int lanes, int fold, int... rows>
constexpr std::array<Multiply, sizeof...(rows)> multiply_table(std::integer_sequence<int, rows...>) {
    return {multiply<lanes, fold, rows + 1>...};
}

// One panel of samples: what all its tiles share.
struct Work {
    const smoe_geometry& g;
    const Bank& bank;
    const std::vector<int64_t>& rows;  // see source_rows()
    const float* bias;                 // or none
    const int32_t* indices;
    Panel panel;
    float* picture;    // packed rows of the band, by slot
    int64_t row_size;  // floats of a packed row
    float* y;
    bool stream;
};

// Columns of a packed row, with the padding before the first.
int64_t padded_width(const smoe_geometry& g) { return (g.output_width - 1) * g.stride + g.kernel_width; }

// `fold` channels of one input row, with the columns that wrap around; those beyond a zero border are never read and
// stay unwritten.
void pack_row(const Work& work, const float* x, int64_t channel, int64_t row, int64_t slot) {
    const smoe_geometry& g = work.g;
    const Panel& panel = work.panel;
    const int64_t plane = g.height * g.width, sample = g.channels * plane, pixel = work.bank.channels * panel.width;
    const int64_t used = panel.count * panel.fold;
    const float* source = x + panel.first * sample + channel * plane + row * g.width;
    float* target = work.picture + slot * work.row_size + channel * panel.width;
    int64_t column = g.wraps_columns ? 0 : g.column_padding;
    while (column < padded_width(g)) {
        const int64_t from = source_coordinate(0, column, g.column_padding, 1, g.width, g.wraps_columns);
        if (from < 0) return;
        const int64_t count = std::min(g.width - from, padded_width(g) - column);
        float* first = target + column * pixel;
        if (channel + panel.fold <= g.channels) {
            transpose({source + from, sample, plane, panel.fold == 2}, used, count, {first, pixel});
            for (int64_t i = 0; i < count && used < panel.lanes(); ++i) {
                std::fill(first + i * pixel + used, first + i * pixel + panel.lanes(), 0.0f);
            }
        } else {  // a channel without its pair, or, in an unfolded panel, the pair of the last channel
            for (int64_t i = 0; i < count; ++i) {
                std::fill_n(first + i * pixel, panel.lanes(), 0.0f);
                for (int64_t b = 0; b < panel.count && channel < g.channels; ++b) {
                    first[i * pixel + b * panel.fold] = source[b * sample + from + i];
                }
            }
        }
        column += count;
    }
}

template <int lanes, int fold>
class Tile {
 public:
    Tile(const Work& work, const Band& band, int64_t first, int64_t count, int32_t* experts, float* sums)
        : work_(work), g_(work.g), band_(band), first_(first), count_(count), experts_(experts), sums_(sums) {}

    void make() {
        gather_experts();
        for (int64_t part = 0; part < work_.bank.parts.count; ++part) {
            for (int64_t pixel = 0; pixel < count_; ++pixel) add_part(part, pixel);
        }
        if (fold == 2) add_pairs();
        write();
    }

 private:
    static constexpr int kMost = kMostRows<lanes>;
    static constexpr auto kMultiply = multiply_table<lanes, fold>(std::make_integer_sequence<int, kMost>());

    void gather_experts() {
        const int64_t plane = g_.output_height * g_.output_width;
        for (int64_t s = 0; s < g_.selected; ++s) {
            for (int64_t pixel = 0; pixel < count_; ++pixel) {
                experts_[pixel * g_.selected + s] = work_.indices[s * plane + first_ + pixel];
            }
        }
        std::fill(fresh_, fresh_ + kMostPixels, work_.bias == nullptr);
        for (int64_t i = 0; work_.bias != nullptr && i < count_ * g_.selected; ++i) {
            std::fill_n(sums_ + i * lanes, lanes, work_.bias[experts_[i]] / fold);  // `fold` lanes meet at the end
        }
    }

    void add_part(int64_t part, int64_t pixel) {
        const int64_t row = (first_ + pixel) / g_.output_width, column = (first_ + pixel) % g_.output_width;
        const int64_t run = g_.kernel_width * work_.bank.channels;
        const int64_t begin = work_.bank.begin(part), end = work_.bank.begin(part + 1);
        // Of each kernel row without the taps beyond a zero border at the left and the right.
        int64_t left = 0, right = run;
        if (!g_.wraps_columns) {
            const int64_t origin = column * g_.stride - g_.column_padding;
            left = std::max<int64_t>(left, -origin * work_.bank.channels);
            right = std::min(right, (g_.width - origin) * work_.bank.channels);
        }
        Piece pieces[kMostPieces];
        int64_t count = 0;
        for (int64_t ky = begin / run; ky * run < end; ++ky) {
            const int64_t from = work_.rows[ky * g_.output_height + row];
            const int64_t first = std::max(begin, ky * run + left), last = std::min(end, ky * run + right);
            if (from < 0 || first >= last) continue;
            const float* patch = work_.picture + band_.slot[from] * work_.row_size +
                                 (column * g_.stride * work_.bank.channels + first - ky * run) * (lanes / fold);
            pieces[count++] = {patch, first - begin, (last - first) / fold};
            if (count == kMostPieces) {
                add_pieces(pieces, count, part, pixel);
                count = 0;
            }
        }
        if (count > 0) add_pieces(pieces, count, part, pixel);
    }

    void add_pieces(const Piece* pieces, int64_t count, int64_t part, int64_t pixel) {
        const Groups groups(g_.selected, kMost);
        const float* slab = work_.bank.slab(part);
        for (int64_t group = 0; group < groups.count; ++group) {
            const int64_t slot = groups.begin(group), size = groups.size(group);
            const int32_t* experts = experts_ + pixel * g_.selected + slot;
            const float* rows[kMost];
            for (int64_t r = 0; r < size; ++r) rows[r] = slab + experts[r] * work_.bank.stride;
            call_for_rows(slab + pieces->offset, experts + size, experts_ + count_ * g_.selected, work_.bank.stride);
            kMultiply[size - 1](pieces, count, rows, fresh_[pixel], sums_ + (pixel * g_.selected + slot) * lanes);
        }
        fresh_[pixel] = false;
    }

    // The rows of the next call begin anywhere in the slab: their first lines are fetched while this one computes.
    // Later lines follow in order, which the processor sees by itself.
    static void call_for_rows(const float* weights, const int32_t* experts, const int32_t* end, int64_t stride) {
        for (const int32_t* expert = experts; expert < std::min(experts + kMost, end); ++expert) {
            const float* row = weights + *expert * stride;
            unrolled<kLinesAhead>([&](auto line) { __builtin_prefetch(row + line * kLineFloats); });
        }
    }

    // [pixel][E][sample][2] to [pixel][E][sample], in place.
    void add_pairs() {
        constexpr int n = kWidth<Register>;
        const int64_t size = count_ * g_.selected * lanes;
        for (int64_t i = 0; i < size; i += 2 * n) {
            if (i + 2 * n > size) {
                for (int64_t j = i; j < size; j += 2) sums_[j / 2] = sums_[j] + sums_[j + 1];
                break;
            }
            Register both[2] = {load_vector<Register>(sums_ + i), load_vector<Register>(sums_ + i + n)};
            store_vector(sums_ + i / 2, sum_of_pairs(both[0], both[1], std::make_integer_sequence<int, n>()));
        }
    }

    template <int... i>
    static SMOE_INLINE Register sum_of_pairs(Register a, Register b, std::integer_sequence<int, i...>) {
        typedef std::integer_sequence<int, 2 * i...> Even;
        typedef std::integer_sequence<int, (2 * i + 1)...> Odd;
        return shuffle(a, b, Even()) + shuffle(a, b, Odd());
    }

    void write() {
        constexpr int64_t width = lanes / fold;
        const int64_t plane = g_.output_height * g_.output_width, sample = g_.selected * plane;
        const Panel& panel = work_.panel;
        float* y = work_.y + panel.first * sample + first_;
        int64_t s = 0;
        // Two slots of eight samples at once make whole cache lines.
        for (; width == 8 && panel.count == 8 && s + 2 <= g_.selected; s += 2) {
            transpose({sums_ + s * width, g_.selected * width}, count_, 2 * width, {y + s * plane, plane, sample, 3},
                      work_.stream);
        }
        for (; s < g_.selected; ++s) {
            transpose({sums_ + s * width, g_.selected * width}, count_, panel.count, {y + s * plane, sample},
                      work_.stream);
        }
        if (work_.stream) finish_stream();
    }

    static constexpr int64_t kMostPieces = 8;

    const Work& work_;
    const smoe_geometry& g_;
    const Band& band_;
    const int64_t first_, count_;
    int32_t* experts_;         // [pixel][E]
    float* sums_;              // [pixel][E][lanes]
    bool fresh_[kMostPixels];  // sums not begun; a pixel's middle tap is never beyond the border, so all get begun
};

template <int lanes, int fold>
void make_tile(const Work& work, const Band& band, int64_t first, int64_t count, int32_t* experts, float* sums) {
    Tile<lanes, fold>(work, band, first, count, experts, sums).make();
}

void forward(const smoe_geometry& g, const float* x, const float* weight, const float* bias, const int32_t* indices,
             float* y) {
    const std::vector<Panel> panels = cut_into_panels(g.batch);
    Bank bank(g, panels);
    const int64_t lanes = panels.front().lanes();
    const int64_t row_size = padded_width(g) * bank.channels * panels.front().width;
    const std::vector<int64_t> rows = source_rows(g);
    const auto read = [&](int64_t row, int64_t tap) { return rows[tap * g.output_height + row]; };
    const Bands bands = cut_into_bands(g.output_height, g.height, g.kernel_height,
                                       rows_per_band(row_size * g.stride, g.output_width, g.threads), read);
    const int64_t tile = pixels_per_tile(g.selected * lanes, bands.list.front().end * g.output_width, g.threads);

    Scratch scratch;
    const int64_t tile_floats = tile * g.selected * lanes, tile_experts = round_up(tile * g.selected, kLineFloats);
    bank.data = scratch.floats(bank.floats());
    float* picture = scratch.floats(bands.slots * row_size);
    float* tiles = scratch.floats(g.threads * tile_floats);
    int32_t* tile_indices = static_cast<int32_t*>(scratch.bytes(g.threads * tile_experts * sizeof(int32_t)));
    const int64_t size = g.batch * g.selected * g.output_height * g.output_width * sizeof(float);

#pragma omp parallel for num_threads(g.threads)
    for (int64_t expert = 0; expert < g.experts; ++expert) pack_expert(g, weight, expert, bank);

    for (const Panel& panel : panels) {
        const Work work{g, bank, rows, bias, indices, panel, picture, row_size, y, size >= kStreamBytes};
        const auto make = panel.width == 8 ? make_tile<16, 2> : panel.width == 16 ? make_tile<16, 1> : make_tile<32, 1>;
#pragma omp parallel num_threads(g.threads)
        for (const Band& band : bands.list) {
            const int64_t arrivals = band.arrivals.size();
#pragma omp for schedule(static) collapse(2)
            for (int64_t channel = 0; channel < bank.channels; channel += panel.fold) {
                for (int64_t i = 0; i < arrivals; ++i) {
                    pack_row(work, x, channel, band.arrivals[i].first, band.arrivals[i].second);
                }
            }
            const int64_t begin = band.begin * g.output_width, end = band.end * g.output_width;
#pragma omp for schedule(dynamic)
            for (int64_t first = begin; first < end; first += tile) {
                const int thread = omp_get_thread_num();
                make(work, band, first, std::min(tile, end - first), tile_indices + thread * tile_experts,
                     tiles + thread * tile_floats);
            }
        }
    }
}

}  // namespace
}  // namespace batch_lanes
}  // namespace smoe

extern "C" int smoe_batch_forward(const smoe_geometry* geometry, const float* x, const float* weight, const float* bias,
                                  const int32_t* indices, float* y) {
    try {
        smoe::batch_lanes::forward(*geometry, x, weight, bias, indices, y);
    } catch (const std::bad_alloc&) {
        return 1;
    }
    return 0;
}
