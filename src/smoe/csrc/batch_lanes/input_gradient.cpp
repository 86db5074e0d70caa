// Input gradient with the samples of the batch in the lanes.
//
// At one input pixel, dx (C x B) = sum over the taps, and over the slots s of the output pixel that reads this one with
// the tap, of weight[expert of s, :, tap] (C) times g[s] (B). Pixels gather; nobody adds into another's pixel.
//
//   registers   sums of up to 12 channels x 32 samples or 24 x 16 (6 x 16 with 16 registers); per slot the gradient's
//               lanes are loaded once, and the weights of its expert, which lie side by side, are broadcast
//   L1          the gradient of one output pixel [E][lanes], or a part of its slots: used by all groups of channels
//   L2          the weights of the taps of one pass [tap][channel group][X][channels of the group]: used by all pixels
//               of the tile; the sums of the tile [pixel][C][lanes]
//   L3          the packed gradient [row][column][E][lanes] and indices [row][column][E] of the output rows that a band
//               of input rows needs
//
// Loops: panel of samples > band of input rows > tile of 16 to 64 input pixels > pass over some taps > pixel > part of
// the slots > group of channels > taps of the pass. A tile is made by one thread from beginning to end, and it alone
// writes these pixels of dx, in an order that depends on nothing but the geometry. Up to eight samples at the end of
// the batch are left to input_gradient_few.cpp.
#include "input_gradient.h"

#include <omp.h>

#include <array>
#include <new>

#include "../scratch.h"
#include "packing.h"

namespace smoe {
namespace batch_lanes {
namespace {

constexpr int64_t kGradientBytes = 24 << 10;  // gradients of a call: most of a small L1
constexpr int64_t kMostReaders = 16;
constexpr int64_t kAhead = 6;  // slots whose weights are called for ahead: of a large bank they are not in L1

// Samples [first, first + count) in `lanes` lanes; those beyond `count` hold zeros.
struct Panel {
    int64_t first, count, lanes;
};

// Panels, until few samples are left. 17 to 24 fill 16 + 8 better than 32.
std::vector<Panel> cut_into_panels(int64_t batch) {
    std::vector<Panel> panels;
    for (int64_t first = 0; batch - first > kFewSamples;) {
        const int64_t left = batch - first, lanes = kWidth<Register> == 16 && left > 24 ? 32 : 16;
        panels.push_back({first, std::min(left, lanes), lanes});
        first += panels.back().count;
    }
    return panels;
}

template <int lanes>
constexpr int kMostRows = kSums * kWidth<Register> / lanes;

// How the work is cut, by the geometry and the widest panel alone.
struct Plan {
    Groups channels, slots;
    int64_t pass;  // taps

    Plan(const smoe_geometry& g, int64_t lanes)
        : channels(g.channels, lanes == 32 ? kMostRows<32> : kMostRows<16>),
          slots(g.selected, kGradientBytes / (lanes * kFloat)) {
        const int64_t slab = kSlabBytes / (g.experts * g.channels * kFloat);
        const int64_t near = kGradientBytes / (g.selected * lanes * kFloat);
        pass = std::max<int64_t>(1, std::min({slab, near, kMostReaders}));
    }

    static constexpr int64_t kFloat = sizeof(float);
};

// The bank as [tap][group][X][channels of the group].
float* block(const smoe_geometry& g, const Plan& plan, float* bank, int64_t tap, int64_t group) {
    return bank + (tap * g.channels + plan.channels.begin(group)) * g.experts;
}

void pack_expert(const smoe_geometry& g, const Plan& plan, const float* weight, int64_t expert, float* bank) {
    const int64_t taps = g.kernel_height * g.kernel_width;
    const float* filter = weight + expert * g.channels * taps;
    for (int64_t tap = 0; tap < taps; ++tap) {
        for (int64_t group = 0; group < plan.channels.count; ++group) {
            const int64_t begin = plan.channels.begin(group), size = plan.channels.size(group);
            float* target = block(g, plan, bank, tap, group) + expert * size;
            for (int64_t c = 0; c < size; ++c) target[c] = filter[(begin + c) * taps + tap];
        }
    }
}

// An output pixel that reads the input pixel, with one tap.
struct Reader {
    const float* gradient;
    const int32_t* experts;
    int64_t tap;
};

// sums[channel][lane] (+)= sum over the readers' slots of weight times gradient; a tap's weights are `tap_size` apart.
template <int lanes, int kRows>
void multiply(const Reader* readers, int64_t count, int64_t begin, int64_t end, const float* block, int64_t tap_size,
              bool fresh, float* sums) {
    Sums<Register, kRows, lanes / kWidth<Register>> sum;
    if (fresh) {
        sum.clear();
    } else {
        sum.load([&](int r) { return sums + r * lanes; });
    }
    for (const Reader* reader = readers; reader < readers + count; ++reader) {
        const float* gradient = reader->gradient;
        const int32_t* experts = reader->experts;
        const float* weights = block + reader->tap * tap_size;
        for (int64_t s = begin; s < end; ++s) {
            const float* row = weights + static_cast<int64_t>(experts[s]) * kRows;
            const float* later = weights + static_cast<int64_t>(experts[std::min(s + kAhead, end - 1)]) * kRows;
            __builtin_prefetch(later);
            __builtin_prefetch(later + kRows - 1);
            sum.add(gradient + s * lanes, [&](auto r) { return spread<Register>(row + r); });
        }
    }
    sum.store([&](int r) { return sums + r * lanes; });
}

using Multiply = void (*)(const Reader*, int64_t, int64_t, int64_t, const float*, int64_t, bool, float*);

template <int lanes, int... rows>
constexpr std::array<Multiply, sizeof...(rows)> multiply_table(std::integer_sequence<int, rows...>) {
    return {multiply<lanes, rows + 1>...};
}

// One panel of samples: what all its tiles share.
struct Work {
    const smoe_geometry& g;
    const Plan& plan;
    const std::vector<int64_t>& row_readers;  // see readers()
    const std::vector<int64_t>& column_readers;
    float* bank;
    Panel panel;
    float* gradient;   // [slot of the row][output column][E][lanes]
    int32_t* experts;  // [slot of the row][output column][E]
    float* dx;
    bool stream;
};

void pack_row(const Work& work, const float* gradient, const int32_t* indices, int64_t s, int64_t row, int64_t slot) {
    const smoe_geometry& g = work.g;
    const Panel& panel = work.panel;
    const int64_t plane = g.output_height * g.output_width, from = s * plane + row * g.output_width;
    const int64_t to = slot * g.output_width * g.selected + s, pixel = g.selected * panel.lanes;
    float* target = work.gradient + to * panel.lanes;
    transpose({gradient + panel.first * g.selected * plane + from, g.selected * plane}, panel.count, g.output_width,
              {target, pixel});
    for (int64_t w = 0; w < g.output_width; ++w) {
        std::fill(target + w * pixel + panel.count, target + w * pixel + panel.lanes, 0.0f);
        work.experts[to + w * g.selected] = indices[from + w];
    }
}

template <int lanes>
class Tile {
 public:
    Tile(const Work& work, const Band& band, int64_t first, int64_t count, float* sums)
        : work_(work), g_(work.g), band_(band), first_(first), count_(count), sums_(sums) {
        std::fill(fresh_, fresh_ + kMostPixels, true);
    }

    void make() {
        const int64_t taps = g_.kernel_height * g_.kernel_width;
        for (int64_t tap = 0; tap < taps; tap += work_.plan.pass) {
            const int64_t end = std::min(tap + work_.plan.pass, taps);
            for (int64_t pixel = 0; pixel < count_; ++pixel) add_taps(tap, end, pixel);
        }
        for (int64_t pixel = 0; pixel < count_; ++pixel) {
            // With a stride some pixels may be read by nobody.
            if (fresh_[pixel]) std::fill_n(sums_ + pixel * g_.channels * lanes, g_.channels * lanes, 0.0f);
        }
        write();
    }

 private:
    static constexpr auto kMultiply = multiply_table<lanes>(std::make_integer_sequence<int, kMostRows<lanes>>());

    void add_taps(int64_t begin, int64_t end, int64_t pixel) {
        const int64_t h = (first_ + pixel) / g_.width, w = (first_ + pixel) % g_.width;
        Reader readers[kMostReaders];
        int64_t count = 0;
        for (int64_t tap = begin; tap < end; ++tap) {
            const int64_t row = work_.row_readers[tap / g_.kernel_width * g_.height + h];
            const int64_t column = work_.column_readers[tap % g_.kernel_width * g_.width + w];
            if (row < 0 || column < 0) continue;
            const int64_t place = (band_.slot[row] * g_.output_width + column) * g_.selected;
            readers[count++] = {work_.gradient + place * lanes, work_.experts + place, tap};
        }
        if (count == 0) return;
        const Plan& plan = work_.plan;
        for (int64_t part = 0; part < plan.slots.count; ++part) {
            for (int64_t group = 0; group < plan.channels.count; ++group) {
                kMultiply[plan.channels.size(group) - 1](
                    readers, count, plan.slots.begin(part), plan.slots.begin(part + 1),
                    block(g_, plan, work_.bank, 0, group), g_.channels * g_.experts, fresh_[pixel],
                    sums_ + (pixel * g_.channels + plan.channels.begin(group)) * lanes);
            }
            fresh_[pixel] = false;
        }
    }

    void write() {
        const int64_t plane = g_.height * g_.width, sample = g_.channels * plane;
        for (int64_t c = 0; c < g_.channels; ++c) {
            transpose({sums_ + c * lanes, g_.channels * lanes}, count_, work_.panel.count,
                      {work_.dx + work_.panel.first * sample + c * plane + first_, sample}, work_.stream);
        }
        if (work_.stream) finish_stream();
    }

    const Work& work_;
    const smoe_geometry& g_;
    const Band& band_;
    const int64_t first_, count_;
    float* sums_;              // [pixel][C][lanes]
    bool fresh_[kMostPixels];  // sums not begun
};

template <int lanes>
void make_tile(const Work& work, const Band& band, int64_t first, int64_t count, float* sums) {
    Tile<lanes>(work, band, first, count, sums).make();
}

void input_gradient_panels(const smoe_geometry& g, const std::vector<Panel>& panels, const float* gradient,
                           const float* weight, const int32_t* indices, float* dx) {
    const int64_t lanes = panels.front().lanes;
    const Plan plan(g, lanes);
    const std::vector<int64_t> by_rows = row_readers(g), by_columns = column_readers(g);
    const auto read = [&](int64_t row, int64_t tap) { return by_rows[tap * g.height + row]; };
    const int64_t row_slots = g.output_width * g.selected;
    const Bands bands =
        cut_into_bands(g.height, g.output_height, g.kernel_height,
                       rows_per_band(ceil_divide(row_slots * lanes, g.stride), g.width, g.threads), read);
    const int64_t tile = pixels_per_tile(g.channels * lanes, bands.list.front().end * g.width, g.threads);

    Scratch scratch;
    const int64_t tile_floats = tile * g.channels * lanes;
    float* bank = scratch.floats(g.kernel_height * g.kernel_width * g.channels * g.experts);
    float* packed = scratch.floats(bands.slots * row_slots * lanes);
    int32_t* experts = static_cast<int32_t*>(scratch.bytes(bands.slots * row_slots * sizeof(int32_t)));
    float* tiles = scratch.floats(g.threads * tile_floats);
    const int64_t size = g.batch * g.channels * g.height * g.width * sizeof(float);

#pragma omp parallel for num_threads(g.threads)
    for (int64_t expert = 0; expert < g.experts; ++expert) pack_expert(g, plan, weight, expert, bank);

    for (const Panel& panel : panels) {
        const Work work{g, plan, by_rows, by_columns, bank, panel, packed, experts, dx, size >= kStreamBytes};
        const auto make = panel.lanes == 16 ? make_tile<16> : make_tile<32>;
#pragma omp parallel num_threads(g.threads)
        for (const Band& band : bands.list) {
            const int64_t arrivals = band.arrivals.size();
#pragma omp for schedule(static) collapse(2)
            for (int64_t s = 0; s < g.selected; ++s) {
                for (int64_t i = 0; i < arrivals; ++i) {
                    pack_row(work, gradient, indices, s, band.arrivals[i].first, band.arrivals[i].second);
                }
            }
            const int64_t begin = band.begin * g.width, end = band.end * g.width;
#pragma omp for schedule(dynamic)
            for (int64_t first = begin; first < end; first += tile) {
                make(work, band, first, std::min(tile, end - first), tiles + omp_get_thread_num() * tile_floats);
            }
        }
    }
}

void input_gradient(const smoe_geometry& g, const float* gradient, const float* weight, const int32_t* indices,
                    float* dx) {
    const std::vector<Panel> panels = cut_into_panels(g.batch);
    if (!panels.empty()) input_gradient_panels(g, panels, gradient, weight, indices, dx);
    const int64_t done = panels.empty() ? 0 : panels.back().first + panels.back().count;
    if (done == g.batch) return;
    smoe_geometry rest = g;
    rest.batch = g.batch - done;
    input_gradient_few(rest, gradient + done * g.selected * g.output_height * g.output_width, weight, indices,
                       dx + done * g.channels * g.height * g.width);
}

}  // namespace
}  // namespace batch_lanes
}  // namespace smoe

extern "C" int smoe_batch_input_gradient(const smoe_geometry* geometry, const float* g, const float* weight,
                                         const int32_t* indices, float* dx) {
    try {
        smoe::batch_lanes::input_gradient(*geometry, g, weight, indices, dx);
    } catch (const std::bad_alloc&) {
        return 1;
    }
    return 0;
}
