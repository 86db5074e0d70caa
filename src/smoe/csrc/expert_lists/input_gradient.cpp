// dx = gradient of the routed convolution by its input: each row of dx is gathered by one thread, without atomics. Of
// the family, this is the one that needs no lists: it takes the slots of a pixel as they come.
//
// An output pixel adds, for each kernel row, a stretch of kw x 32 floats to a padded row of dx: the sum over its slots
// of output gradient times the expert's row of taps.
// Registers: accumulators for that stretch (6 vectors with AVX-512; narrower registers take it in several passes), of
// up to four samples, which share the weights that are loaded, and broadcast output gradients: of one slot and each
// sample, or, of one or two samples, four slots for one load.
// Caches: while a segment of 64 pixels of a row goes by, one kernel row of taps of one channel block is in use. Its
// X x 96 floats lie in L1 and L2; above 64 KB, half of them are taken at a time. The segment of dx is in L1.
// Gradients and experts of the output rows that a band of rows of dx needs lie pixel by pixel in a few megabytes.
// Loops: band > row of dx > channel block > samples > segment > (kernel row, output row) that reach it > part of the
// stretch > pixels > slots. Threads share out the rows of a band. Each unpacks its rows, adding up columns that wrap to
// the same place, and writes them.
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include <new>

#include "../scratch.h"
#include "bands.h"
#include "packing.h"

namespace smoe {
namespace expert_lists {
namespace {

constexpr int kMostSamples = kWidth == 16 ? 4 : 2;
constexpr int kMostSums = kWidth == 16 ? 24 : 12;  // accumulators
constexpr int64_t kMostTaps = 64 << 10;            // bytes of taps in use at a time, for each sample
constexpr int64_t kSegment = 64;                   // pixels of a row

constexpr int most_vectors(int samples) { return kWidth == 16 ? 6 : kMostSums / samples; }

// What a row of output pixels adds to a padded row of dx.
struct RowTask {
    const float* taps;         // of one kernel row
    int64_t taps_pitch;        // between experts
    const int32_t* experts;    // [pixel][slot]
    const float* gradients;    // [pixel][sample][slot]
    int64_t pixels, selected;  // pixels of the row, and slots of each
    float* target;             // [sample][padded row]
    int64_t target_pitch;      // between pixels
    int64_t sample_pitch;
};

// factors[i] = source[i] in all lanes
template <int kCount>
inline void broadcast_each(const float* source, Vector (&factors)[kCount]) {
#if defined(__AVX512F__)
    if constexpr (kCount == 4) {  // one load, and shuffles
        const Vector quads = reinterpret_cast<Vector>(_mm512_maskz_broadcast_f32x4(0xffff, _mm_loadu_ps(source)));
        factors[0] = repeat_lane<0>(quads, kAllLanes);
        factors[1] = repeat_lane<1>(quads, kAllLanes);
        factors[2] = repeat_lane<2>(quads, kAllLanes);
        factors[3] = repeat_lane<3>(quads, kAllLanes);
        return;
    }
#endif
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) factors[i] = broadcast_vector(source[i]);
}

// Each sample's slot number `number` of those in `factors`, which stand at `row`.
template <int kSamples, int kSlots, int kV>
inline void add_slot(const float* row, const Vector (&factors)[kSamples][kSlots], int number,
                     Vector (&sums)[kSamples][kV]) {
#pragma GCC unroll 12
    for (int v = 0; v < kV; ++v) {
        const Vector tap = load_vector(row + v * kWidth);
#pragma GCC unroll 4
        for (int b = 0; b < kSamples; ++b) sums[b][v] += factors[b][number] * tap;
    }
}

template <int kSamples, int kV>
void add_row(const RowTask& task, int64_t column) {
    // Slots take turns on as many sets of accumulators as it takes to hide the latency of additions.
    constexpr int kSets = kSamples * kV < 4 ? 2 : 1;
    // Where few samples share a load of weights, loads are the limit: four gradients come with one.
    constexpr int kSlots = kWidth == 16 && kSamples <= 2 ? 4 : kSets;
    const float* taps = task.taps + column;
    const int32_t* experts = task.experts;
    const float* gradients = task.gradients;
    float* target = task.target + column;
    const int64_t selected = task.selected, taps_pitch = task.taps_pitch, sample_pitch = task.sample_pitch;
    for (int64_t pixel = 0; pixel < task.pixels; ++pixel) {
        Vector sums[kSets][kSamples][kV] = {};
        int64_t slot = 0;
        for (; slot + kSlots <= selected; slot += kSlots) {
            Vector factors[kSamples][kSlots];
#pragma GCC unroll 4
            for (int b = 0; b < kSamples; ++b) broadcast_each(gradients + b * selected + slot, factors[b]);
#pragma GCC unroll 4
            for (int i = 0; i < kSlots; ++i) {
                add_slot(taps + experts[slot + i] * taps_pitch, factors, i, sums[i % kSets]);
            }
        }
        for (; slot < selected; ++slot) {
            Vector factors[kSamples][1];
#pragma GCC unroll 4
            for (int b = 0; b < kSamples; ++b) broadcast_each(gradients + b * selected + slot, factors[b]);
            add_slot(taps + experts[slot] * taps_pitch, factors, 0, sums[0]);
        }
        // The pixel before has just written to most of these floats. So they are added last, to keep the work on one
        // pixel from waiting for the other.
#pragma GCC unroll 4
        for (int b = 0; b < kSamples; ++b) {
#pragma GCC unroll 12
            for (int v = 0; v < kV; ++v) {
                float* place = target + b * sample_pitch + v * kWidth;
                const Vector sum = kSets == 2 ? sums[0][b][v] + sums[kSets - 1][b][v] : sums[0][b][v];
                store_vector(place, load_vector(place) + sum);
            }
        }
        experts += selected;
        gradients += selected * kSamples;
        target += task.target_pitch;
    }
}

using AddRow = void (*)(const RowTask&, int64_t);

template <int kSamples, int... kNumber>
AddRow pick_kernel(int vectors, std::integer_sequence<int, kNumber...>) {
    static constexpr AddRow kKernels[] = {add_row<kSamples, kNumber + 1>...};
    return kKernels[vectors - 1];
}

AddRow pick_kernel(int64_t samples, int vectors) {
    switch (samples) {
        case 1:
            return pick_kernel<1>(vectors, std::make_integer_sequence<int, most_vectors(1)>{});
        case 2:
            return pick_kernel<2>(vectors, std::make_integer_sequence<int, most_vectors(2)>{});
#if defined(__AVX512F__)
        case 3:
            return pick_kernel<3>(vectors, std::make_integer_sequence<int, most_vectors(3)>{});
        case 4:
            return pick_kernel<4>(vectors, std::make_integer_sequence<int, most_vectors(4)>{});
#endif
        default:
            return nullptr;
    }
}

// A kernel row of an output row.
struct Reader {
    int64_t output_row, kernel_row;
    int64_t place;  // of the output row among those of the band
};

// Rows of dx, and the output rows that they are gathered from.
struct RowBand {
    int64_t first_row, last_row;
    std::vector<int64_t> output_rows;  // ascending
};

class InputGradient {
 public:
    InputGradient(const smoe_geometry& geometry, const float* g, const float* weight, const int32_t* indices, float* dx)
        : geometry_(geometry), layout_(geometry), indices_(indices), g_(g), weight_(weight), dx_(dx) {
        const Block widest = layout_.block(0);
        taps_pitch_ = widest.row_floats;
        taps_floats_ = geometry.experts * taps_pitch_;
        items_ = geometry.selected * geometry.output_height * geometry.output_width;
        groups_ = ceil_divide(geometry.batch, kMostSamples);
        for (int64_t i = 0; i < layout_.blocks(); ++i) {
            parts_.emplace_back();
            for (int samples = 1; samples <= kMostSamples; ++samples) {
                parts_.back().push_back(cut_taps(1, layout_.block(i), 1, part_vectors(samples)));
            }
        }
        find_readers();
        cut_rows();
        workspace_floats_ = kMostSamples * round_up(widest.row_pitch, 16);
        packed_weight_ = scratch_.floats(layout_.blocks() * geometry.kernel_height * taps_floats_);
        turned_g_ = scratch_.floats(geometry.batch * band_items_);
        experts_ = static_cast<int32_t*>(scratch_.bytes(band_items_ * sizeof(int32_t)));
        workspace_ = scratch_.floats(geometry.threads * workspace_floats_);
    }

    void run() {
#pragma omp parallel num_threads(geometry_.threads)
        {
#pragma omp for schedule(static) nowait
            for (int64_t expert = 0; expert < geometry_.experts; ++expert) pack_expert(expert);
            for (const RowBand& band : bands_) {
                const int64_t output_rows = static_cast<int64_t>(band.output_rows.size());
#pragma omp for schedule(static)
                for (int64_t i = 0; i < output_rows; ++i) turn_row(band.output_rows[i], i);
#pragma omp for schedule(dynamic)
                for (int64_t row = band.first_row; row < band.last_row; ++row) gather_row(row);
            }
        }
    }

 private:
    // Vectors of a kernel row to take at a time: few enough for the registers, and for the cache.
    int64_t part_vectors(int samples) const {
        const int64_t cached = kMostTaps * samples / (geometry_.experts * static_cast<int64_t>(sizeof(Vector)));
        return std::min<int64_t>(std::max<int64_t>(cached, 48 / kWidth), most_vectors(samples));
    }

    int64_t group_begin(int64_t group) const { return geometry_.batch * group / groups_; }
    float* workspace() const { return workspace_ + thread_number() * workspace_floats_; }

    // For each input row, the kernel rows that read it.
    void find_readers() {
        readers_.resize(geometry_.height);
        for (int64_t output = 0; output < geometry_.output_height; ++output) {
            for (int64_t tap = 0; tap < geometry_.kernel_height; ++tap) {
                const int64_t row = source_row(geometry_, output, tap);
                if (row >= 0) readers_[row].push_back({output, tap, 0});
            }
        }
    }

    // Cuts the rows of dx into bands, and gives the output rows of each their places.
    void cut_rows() {
        const int64_t row_items = geometry_.output_width * geometry_.selected;
        const int64_t row_bytes = std::max<int64_t>(row_items * (geometry_.batch + 1) * sizeof(float), 1);
        const int64_t most_rows = std::max<int64_t>(band_bytes(geometry_.threads) * geometry_.stride / row_bytes, 1);
        const int64_t count = ceil_divide(geometry_.height, most_rows);
        band_items_ = 0;
        for (int64_t i = 0; i < count; ++i) {
            RowBand band{geometry_.height * i / count, geometry_.height * (i + 1) / count, {}};
            std::vector<int64_t>& rows = band.output_rows;
            for (int64_t row = band.first_row; row < band.last_row; ++row) {
                for (const Reader& reader : readers_[row]) rows.push_back(reader.output_row);
            }
            std::sort(rows.begin(), rows.end());
            rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
            for (int64_t row = band.first_row; row < band.last_row; ++row) {
                for (Reader& reader : readers_[row]) {
                    reader.place = std::lower_bound(rows.begin(), rows.end(), reader.output_row) - rows.begin();
                }
            }
            band_items_ = std::max(band_items_, static_cast<int64_t>(rows.size()) * row_items);
            bands_.push_back(std::move(band));
        }
    }

    // Weights are [channel block][kernel row][expert][kernel column][channel] here.
    void pack_expert(int64_t expert) {
        const int64_t expert_floats = geometry_.channels * geometry_.kernel_height * geometry_.kernel_width;
        for (int64_t i = 0; i < layout_.blocks(); ++i) {
            layout_.pack_taps(weight_ + expert * expert_floats, layout_.block(i), taps_floats_,
                              packed_weight_ + i * geometry_.kernel_height * taps_floats_ + expert * taps_pitch_);
        }
    }

    // Experts and gradients of an output row, as [pixel][slot] and [pixel][sample][slot], to its place in the band.
    void turn_row(int64_t row, int64_t place) {
        const int64_t width = geometry_.output_width, plane = geometry_.output_height * width;
        const int64_t selected = geometry_.selected;
        transpose(indices_ + row * width, plane, selected, width, experts_ + place * width * selected, selected);
        for (int64_t group = 0; group < groups_; ++group) {
            const int64_t begin = group_begin(group), samples = group_begin(group + 1) - begin;
            for (int64_t i = 0; i < samples; ++i) {
                transpose(g_ + (begin + i) * items_ + row * width, plane, selected, width,
                          turned_g_ + begin * band_items_ + (place * width * samples + i) * selected,
                          samples * selected);
            }
        }
    }

    void gather_row(int64_t row) {
        float* padded = workspace();
        for (int64_t i = 0; i < layout_.blocks(); ++i) {
            const Block block = layout_.block(i);
            const int64_t row_pitch = round_up(block.row_pitch, 16);
            for (int64_t group = 0; group < groups_; ++group) {
                const int64_t begin = group_begin(group), samples = group_begin(group + 1) - begin;
                std::memset(padded, 0, samples * row_pitch * sizeof(float));
                for (int64_t column = 0; column < geometry_.output_width; column += kSegment) {
                    for (const Reader& reader : readers_[row]) {
                        add_segment(reader, column, i, block, begin, samples, padded, row_pitch);
                    }
                }
                for (int64_t j = 0; j < samples; ++j) {
                    const int64_t channel = (begin + j) * geometry_.channels + block.first_channel;
                    layout_.unpack_row(padded + j * row_pitch, block,
                                       dx_ + (channel * geometry_.height + row) * geometry_.width);
                }
            }
        }
    }

    void add_segment(const Reader& reader, int64_t column, int64_t block_number, const Block& block,
                     int64_t first_sample, int64_t samples, float* padded, int64_t row_pitch) {
        const int64_t first_item = (reader.place * geometry_.output_width + column) * geometry_.selected;
        RowTask task;
        task.taps = packed_weight_ + (block_number * geometry_.kernel_height + reader.kernel_row) * taps_floats_;
        task.taps_pitch = taps_pitch_;
        task.pixels = std::min(kSegment, geometry_.output_width - column);
        task.selected = geometry_.selected;
        task.experts = experts_ + first_item;
        task.gradients = turned_g_ + first_sample * band_items_ + first_item * samples;
        task.target = padded + column * block.pixel_pitch;
        task.target_pitch = block.pixel_pitch;
        task.sample_pitch = row_pitch;
        for (const Part& part : parts_[block_number][samples - 1]) {
            pick_kernel(samples, part.vectors)(task, part.column);
        }
    }

    Scratch scratch_;
    const smoe_geometry geometry_;
    const Layout layout_;
    std::vector<std::vector<Reader>> readers_;  // of each input row
    std::vector<RowBand> bands_;
    std::vector<std::vector<std::vector<Part>>> parts_;  // of a kernel row, by block and number of samples
    const int32_t* indices_;
    const float *g_, *weight_;
    float* dx_;
    float *packed_weight_, *turned_g_, *workspace_;
    int32_t* experts_;
    int64_t taps_pitch_, taps_floats_, items_, band_items_, groups_, workspace_floats_;
};

}  // namespace
}  // namespace expert_lists
}  // namespace smoe

extern "C" int smoe_list_input_gradient(const smoe_geometry* geometry, const float* g, const float* weight,
                                        const int32_t* indices, float* dx) {
    try {
        smoe::expert_lists::InputGradient(*geometry, g, weight, indices, dx).run();
    } catch (const std::bad_alloc&) {
        return 1;
    }
    return 0;
}
