// Input gradient of at most eight samples, which would not fill the lanes: here channels lie in the lanes, and samples
// are the rows of the register tile.
//
// At one input pixel, dx (B x C) = sum over the taps, and over the slots s of the output pixel that reads this one with
// the tap, of g[:, s] (B) times weight[expert of s, :, tap] (C). The sum runs over rows of the bank that lie anywhere,
// but the channels of a row are contiguous: vectors of weights are loaded and shared by several samples. Pixels gather;
// nobody adds into another's pixel.
//
//   registers   sums of up to 8 samples x 48 channels (4 x 24 with 16 registers); per slot the channels of its expert
//               are loaded once, and each sample's gradient is broadcast
//   L1          nothing for long if the registers hold all samples; else the weights of one output pixel's experts for
//               one tap and up to 24 channels, used by the second group of samples
//   L2          the weights of the taps of one pass [tap][X][C]: used by all pixels of the tile; the sums of the tile
//               [pixel][B][C]
//   L3          the packed gradient [row][column][B][E] and indices [row][column][E] of the output rows that a band of
//               input rows needs
//
// Loops: band of input rows > tile of 16 to 64 input pixels > pass over some taps > pixel > part of the slots > group
// of channels > group of samples > taps of the pass. A tile is made by one thread from beginning to end, and it alone
// writes these pixels of dx, in an order that depends on nothing but the geometry.
#include <omp.h>

#include <array>

#include "../scratch.h"
#include "input_gradient.h"
#include "packing.h"

namespace smoe {
namespace batch_lanes {
namespace {

constexpr int64_t kRowsBytes = 24 << 10;  // weights of one pixel's experts: most of a small L1
constexpr int kMostVectors = kSums >= 12 ? 3 : 2;
constexpr int kMostSamples = kSums / kMostVectors;

// How the work is cut, by the geometry alone.
struct Plan {
    int64_t bank_stride;      // floats of an expert's row [C]
    int64_t gradient_stride;  // floats of a sample's slots [E]
    int64_t sums_stride;      // floats of a sample's channels [C]
    int64_t pass;             // taps of a pass over the tile
    Groups slots, vectors, samples;

    explicit Plan(const smoe_geometry& g)
        : bank_stride(odd_lines(g.channels)),
          gradient_stride(odd_lines(g.selected)),
          sums_stride(round_up(g.channels, kLineFloats)),
          pass(1),
          slots(g.selected, kRowsBytes / vector_bytes(g)),
          vectors(ceil_divide(g.channels, kWidth<Register>), kMostVectors),
          samples(g.batch, kMostSamples) {
        pass = kSlabBytes / (g.experts * bank_stride * static_cast<int64_t>(sizeof(float)));
        if (samples.count > 1) pass = std::min(pass, kRowsBytes / (g.selected * vector_bytes(g)));
        pass = std::min(std::max<int64_t>(pass, 1), kMostReaders);
    }

    static int64_t vector_bytes(const smoe_geometry& g) {
        const int64_t all = ceil_divide(g.channels, kWidth<Register>);
        return std::min<int64_t>(all, kMostVectors) * static_cast<int64_t>(sizeof(Register));
    }

    static constexpr int64_t kMostReaders = 16;
};

// The bank as [tap][X][C].
void pack_expert(const smoe_geometry& g, const float* weight, int64_t expert, const Plan& plan, float* bank) {
    const int64_t taps = g.kernel_height * g.kernel_width;
    const float* filter = weight + expert * g.channels * taps;
    for (int64_t tap = 0; tap < taps; ++tap) {
        float* row = bank + (tap * g.experts + expert) * plan.bank_stride;
        for (int64_t c = 0; c < g.channels; ++c) row[c] = filter[c * taps + tap];
        std::fill(row + g.channels, row + plan.sums_stride, 0.0f);
    }
}

// An output pixel that reads the input pixel, with one tap.
struct Reader {
    const float* gradient;  // of the first sample
    const int32_t* experts;
    const float* bank;  // of this tap
};

// sums[sample][channel] (+)= sum over the readers' slots of gradient times weight
template <int kSamples, int kVectors>
void multiply(const Reader* readers, int64_t count, int64_t slots, const Plan& plan, bool fresh, float* sums) {
    Sums<Register, kSamples, kVectors> sum;
    const int64_t sums_stride = plan.sums_stride, bank_stride = plan.bank_stride;
    if (fresh) {
        sum.clear();
    } else {
        sum.load([&](int r) { return sums + r * sums_stride; });
    }
    for (const Reader* reader = readers; reader < readers + count; ++reader) {
        const float* gradient[kSamples];
        unrolled<kSamples>([&](auto r) { gradient[r] = reader->gradient + r * plan.gradient_stride; });
        const int32_t* experts = reader->experts;
        const float* bank = reader->bank;
        for (int64_t s = 0; s < slots; ++s) {
            sum.add(bank + experts[s] * bank_stride, [&](auto r) { return spread<Register>(gradient[r] + s); });
        }
    }
    sum.store([&](int r) { return sums + r * sums_stride; });
}

using Multiply = void (*)(const Reader*, int64_t, int64_t, const Plan&, bool, float*);

template <int... i>
constexpr std::array<Multiply, sizeof...(i)> multiply_table(std::integer_sequence<int, i...>) {
    return {multiply<i / kMostVectors + 1, i % kMostVectors + 1>...};
}

constexpr auto kMultiply = multiply_table(std::make_integer_sequence<int, kMostSamples * kMostVectors>());

// What all tiles share.
struct Work {
    const smoe_geometry& g;
    const Plan& plan;
    const std::vector<int64_t>& row_readers;  // see readers()
    const std::vector<int64_t>& column_readers;
    const float* bank;
    float* gradient;   // [slot of the row][output column][B][E]
    int32_t* experts;  // [slot of the row][output column][E]
    float* dx;
    bool stream;
};

// Sixteen slots of one sample, or one slot of the indices: all rows that arrive with the band.
void pack_gradient(const Work& work, const float* gradient, const Band& band, int64_t sample, int64_t s) {
    const smoe_geometry& g = work.g;
    const int64_t plane = g.output_height * g.output_width, pixel = g.batch * work.plan.gradient_stride;
    for (const auto& [row, slot] : band.arrivals) {
        pack_planes(gradient + (sample * g.selected + s) * plane + row * g.output_width, plane, g.selected - s,
                    g.output_width,
                    work.gradient + slot * g.output_width * pixel + sample * work.plan.gradient_stride + s, pixel);
    }
}

void pack_experts(const Work& work, const int32_t* indices, const Band& band, int64_t s) {
    const smoe_geometry& g = work.g;
    for (const auto& [row, slot] : band.arrivals) {
        const int32_t* source = indices + (s * g.output_height + row) * g.output_width;
        int32_t* target = work.experts + slot * g.output_width * g.selected + s;
        for (int64_t w = 0; w < g.output_width; ++w) target[w * g.selected] = source[w];
    }
}

class Tile {
 public:
    Tile(const Work& work, const Band& band, int64_t first, int64_t count, float* sums)
        : work_(work), g_(work.g), plan_(work.plan), band_(band), first_(first), count_(count), sums_(sums) {
        std::fill(fresh_, fresh_ + kMostPixels, true);
    }

    void make() {
        const int64_t taps = g_.kernel_height * g_.kernel_width;
        for (int64_t tap = 0; tap < taps; tap += plan_.pass) {
            const int64_t end = std::min(tap + plan_.pass, taps);
            for (int64_t pixel = 0; pixel < count_; ++pixel) add_taps(tap, end, pixel);
        }
        for (int64_t pixel = 0; pixel < count_; ++pixel) {
            // With a stride some pixels may be read by nobody.
            if (fresh_[pixel]) std::fill_n(sums_ + pixel * pixel_size(), pixel_size(), 0.0f);
        }
        write();
    }

 private:
    int64_t pixel_size() const { return g_.batch * plan_.sums_stride; }

    void add_taps(int64_t begin, int64_t end, int64_t pixel) {
        const int64_t h = (first_ + pixel) / g_.width, w = (first_ + pixel) % g_.width;
        Reader readers[Plan::kMostReaders];
        int64_t count = 0;
        for (int64_t tap = begin; tap < end; ++tap) {
            const int64_t row = work_.row_readers[tap / g_.kernel_width * g_.height + h];
            const int64_t column = work_.column_readers[tap % g_.kernel_width * g_.width + w];
            if (row < 0 || column < 0) continue;
            const int64_t place = band_.slot[row] * g_.output_width + column;
            readers[count++] = {work_.gradient + place * g_.batch * plan_.gradient_stride,
                                work_.experts + place * g_.selected, work_.bank + tap * g_.experts * plan_.bank_stride};
        }
        if (count == 0) return;
        for (int64_t part = 0; part < plan_.slots.count; ++part) {
            add_slots(readers, count, plan_.slots.begin(part), plan_.slots.size(part), pixel);
            fresh_[pixel] = false;
        }
    }

    void add_slots(const Reader* readers, int64_t count, int64_t slot, int64_t slots, int64_t pixel) {
        for (int64_t i = 0; i < plan_.vectors.count; ++i) {
            const int64_t channel = plan_.vectors.begin(i) * kWidth<Register>;
            for (int64_t j = 0; j < plan_.samples.count; ++j) {
                const int64_t sample = plan_.samples.begin(j);
                Reader here[Plan::kMostReaders];
                for (int64_t r = 0; r < count; ++r) {
                    here[r] = {readers[r].gradient + sample * plan_.gradient_stride + slot, readers[r].experts + slot,
                               readers[r].bank + channel};
                }
                const int64_t kernel = (plan_.samples.size(j) - 1) * kMostVectors + plan_.vectors.size(i) - 1;
                kMultiply[kernel](here, count, slots, plan_, fresh_[pixel],
                                  sums_ + pixel * pixel_size() + sample * plan_.sums_stride + channel);
            }
        }
    }

    void write() {
        const int64_t plane = g_.height * g_.width;
        for (int64_t sample = 0; sample < g_.batch; ++sample) {
            for (int64_t c = 0; c < g_.channels; c += kLineFloats) {
                transpose({sums_ + sample * plan_.sums_stride + c, pixel_size()}, count_,
                          std::min(kLineFloats, g_.channels - c),
                          {work_.dx + (sample * g_.channels + c) * plane + first_, plane}, work_.stream);
            }
        }
        if (work_.stream) finish_stream();
    }

    const Work& work_;
    const smoe_geometry& g_;
    const Plan& plan_;
    const Band& band_;
    const int64_t first_, count_;
    float* sums_;              // [pixel][B][C]
    bool fresh_[kMostPixels];  // sums not begun
};

}  // namespace

void input_gradient_few(const smoe_geometry& g, const float* gradient, const float* weight, const int32_t* indices,
                        float* dx) {
    const Plan plan(g);
    const int64_t taps = g.kernel_height * g.kernel_width;
    const std::vector<int64_t> by_rows = row_readers(g), by_columns = column_readers(g);
    const auto read = [&](int64_t row, int64_t tap) { return by_rows[tap * g.height + row]; };
    const int64_t row_size = g.output_width * g.batch * plan.gradient_stride, pixel = g.batch * plan.sums_stride;
    const Bands bands = cut_into_bands(g.height, g.output_height, g.kernel_height,
                                       rows_per_band(ceil_divide(row_size, g.stride), g.width, g.threads), read);
    const int64_t tile = pixels_per_tile(pixel, bands.list.front().end * g.width, g.threads);

    Scratch scratch;
    float* bank = scratch.floats(taps * g.experts * plan.bank_stride);
    float* packed = scratch.floats(bands.slots * row_size);
    int32_t* experts =
        static_cast<int32_t*>(scratch.bytes(bands.slots * g.output_width * g.selected * sizeof(int32_t)));
    float* tiles = scratch.floats(g.threads * tile * pixel);
    const int64_t size = g.batch * g.channels * g.height * g.width * sizeof(float);
    const Work work{g, plan, by_rows, by_columns, bank, packed, experts, dx, size >= kStreamBytes};

#pragma omp parallel num_threads(g.threads)
    {
#pragma omp for schedule(static)
        for (int64_t expert = 0; expert < g.experts; ++expert) pack_expert(g, weight, expert, plan, bank);
        for (const Band& band : bands.list) {
#pragma omp for schedule(static) collapse(2) nowait
            for (int64_t sample = 0; sample < g.batch; ++sample) {
                for (int64_t s = 0; s < g.selected; s += kLineFloats) pack_gradient(work, gradient, band, sample, s);
            }
#pragma omp for schedule(static)
            for (int64_t s = 0; s < g.selected; ++s) pack_experts(work, indices, band, s);

            const int64_t begin = band.begin * g.width, end = band.end * g.width;
#pragma omp for schedule(dynamic)
            for (int64_t first = begin; first < end; first += tile) {
                Tile(work, band, first, std::min(tile, end - first), tiles + omp_get_thread_num() * tile * pixel)
                    .make();
            }
        }
    }
}

}  // namespace batch_lanes
}  // namespace smoe
