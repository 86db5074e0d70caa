// y = routed convolution, by expert lists.
//
// Registers: up to 3 x 6 vectors of one expert's weights (a block of 32 channels by 3 x 3 taps, with AVX-512; narrower
// registers take it in several passes), and the accumulators of eight pixels. The weights stay while the pixels that
// chose the expert stream past: each multiply-add takes its input straight from memory, and nothing else is loaded.
// Lanes are channels, so an item ends as one vector of partial sums; these wait in a small buffer until there are
// enough of them to add up their lanes all together. An expert's items are not parted for that: each part would fetch
// the weights again, and end in a group of items too small to hide the latency.
// Caches: L1 holds the tile's inputs of a channel block (23 KB), which are read again for each expert. The weights of
// the block (X x 288 floats) stay in L2, and each is read once per tile.
// Loops: band > (sample, tile) > channel block > some slices of the kernel > expert > part of the taps > items.
// Threads share out (sample, tile) pairs of a band. Each writes the outputs of its pairs.
#include <new>

#include "../scratch.h"
#include "tile_inputs.h"

namespace smoe {
namespace expert_lists {
namespace {

constexpr int kRows = 3;                         // most kernel rows in registers,
constexpr int kVectors = kWidth == 16 ? 6 : 3;   // and vectors of each
constexpr int kTogether = kWidth == 16 ? 8 : 6;  // items at a time: enough to hide the latency of additions
constexpr int64_t kEnough = 32;                  // items whose lanes wait to be added up
constexpr int64_t kPending = 192;                // most of them, to have a run of a tile's pixels as a whole

// partial[i] = or += the products of a part of the taps with the inputs of items[i], lane by lane, for kItems items.
template <int kR, int kV, bool kFirst, int kItems>
inline void multiply_items(const Vector (&taps)[kR][kV], const float* first_input, const TileInputs& inputs,
                           const uint32_t* items, float* partial) {
    Vector sums[kItems];
    const float* rows[kItems];
#pragma GCC unroll 8
    for (int i = 0; i < kItems; ++i) {
        rows[i] = row_start(first_input + inputs.offsets[items[i] & inputs.pixel_mask]);
        sums[i] = kFirst ? Vector{} : load_vector(partial + i * kWidth);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
        if (r > 0) {
#pragma GCC unroll 8
            for (int i = 0; i < kItems; ++i) rows[i] = row_start(rows[i] + inputs.row_pitch);
        }
#pragma GCC unroll 8
        for (int v = 0; v < kV; ++v) {
#pragma GCC unroll 8
            for (int i = 0; i < kItems; ++i) {
                const Vector input = load_vector(rows[i] + v * kWidth);
                sums[i] = kFirst && r == 0 && v == 0 ? taps[r][v] * input : sums[i] + taps[r][v] * input;
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kItems; ++i) store_vector(partial + i * kWidth, sums[i]);
}

// The same for `count` items, kMost at most.
template <int kR, int kV, bool kFirst, int kMost>
inline void multiply_rest(const Vector (&taps)[kR][kV], const float* first_input, const TileInputs& inputs,
                          const uint32_t* items, int64_t count, float* partial) {
    if (count == kMost) {
        multiply_items<kR, kV, kFirst, kMost>(taps, first_input, inputs, items, partial);
    } else if constexpr (kMost > 1) {
        multiply_rest<kR, kV, kFirst, kMost - 1>(taps, first_input, inputs, items, count, partial);
    }
}

template <int kR, int kV, bool kFirst>
void multiply_list(const float* weights, int64_t weight_pitch, const Part& part, const TileInputs& inputs,
                   const uint32_t* items, int64_t count, float* partial) {
    Vector taps[kR][kV];
    const float* first_weight = weights + part.row * weight_pitch + part.column;
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < kV; ++v) taps[r][v] = load_vector(first_weight + r * weight_pitch + v * kWidth);
    }
    const float* first_input = inputs.corner + part.padded_row * inputs.row_pitch + part.column;
    while (count >= 2 * kTogether || count == kTogether) {
        multiply_items<kR, kV, kFirst, kTogether>(taps, first_input, inputs, items, partial);
        items += kTogether;
        partial += kTogether * kWidth;
        count -= kTogether;
    }
    // Two halves rather than a few items alone, too few to hide the latency.
    if (count > kTogether) {
        const int64_t half = (count + 1) / 2;
        multiply_rest<kR, kV, kFirst, kTogether>(taps, first_input, inputs, items, half, partial);
        items += half;
        partial += half * kWidth;
        count -= half;
    }
    multiply_rest<kR, kV, kFirst, kTogether - 1>(taps, first_input, inputs, items, count, partial);
}

using MultiplyList = void (*)(const float*, int64_t, const Part&, const TileInputs&, const uint32_t*, int64_t, float*);

template <bool kFirst, int... kNumber>
MultiplyList pick_kernel(const Part& part, std::integer_sequence<int, kNumber...>) {
    static constexpr MultiplyList kKernels[] = {
        multiply_list<kNumber / kVectors + 1, kNumber % kVectors + 1, kFirst>...};
    return kKernels[(part.rows - 1) * kVectors + part.vectors - 1];
}

MultiplyList pick_kernel(const Part& part, bool is_first) {
    constexpr auto kAll = std::make_integer_sequence<int, kRows * kVectors>{};
    return is_first ? pick_kernel<true>(part, kAll) : pick_kernel<false>(part, kAll);
}

// A part of a block's taps, and the kernel of its size.
struct Step {
    Part part;
    MultiplyList multiply;
};

class Forward {
 public:
    Forward(const smoe_geometry& geometry, const float* x, const float* weight, const float* bias,
            const int32_t* indices, float* y)
        : geometry_(geometry),
          layout_(geometry),
          plan_(obtain_plan(geometry, indices)),
          tiling_(plan_->tiling()),
          x_(x),
          weight_(weight),
          bias_(bias),
          y_(y) {
        passes_ = cut_passes(geometry, plan_->tiling(), layout_, kRows, kVectors);
        for (const Pass& pass : passes_) {
            steps_.emplace_back();
            for (const Part& part : pass.parts) {
                steps_.back().push_back({part, pick_kernel(part, steps_.back().empty())});
            }
        }
        bands_ = cut_bands(geometry, tiling_, tiling_.height * geometry.stride * layout_.row_floats() * sizeof(float));
        int64_t packed_rows = 0;
        for (const Band& band : bands_) packed_rows = std::max(packed_rows, band.samples * band.rows);
        packed_x_ = scratch_.floats(packed_rows * layout_.row_floats());
        packed_weight_ = scratch_.floats(layout_.taps_floats());
        sums_floats_ = round_up(geometry.selected * tiling_.pixels(), 16);
        workspace_floats_ = kPending * kWidth + 2 * sums_floats_ + round_up(tiling_.pixels(), 16);
        workspace_ = scratch_.floats(geometry.threads * workspace_floats_);
    }

    void run() {
#pragma omp parallel num_threads(geometry_.threads)
        {
#pragma omp for schedule(static) nowait
            for (int64_t i = 0; i < geometry_.experts; ++i) pack_expert(i);
            for (const Band& band : bands_) {
                const int64_t blocks = layout_.blocks();
#pragma omp for schedule(static)
                for (int64_t i = 0; i < band.samples * blocks * band.rows; ++i) pack_row(band, i);
                // Neighbouring tiles to one thread, as far as there are enough for all: see copy_to_rows().
                const int64_t tiles = band.samples * band.tiles;
                const int64_t together = std::min<int64_t>(std::max<int64_t>(tiles / geometry_.threads / 8, 1), 8);
#pragma omp for schedule(dynamic, together)
                for (int64_t i = 0; i < tiles; ++i) convolve_tile(band, i / band.tiles, i % band.tiles);
            }
        }
    }

 private:
    void pack_expert(int64_t expert) {
        const int64_t rows = geometry_.kernel_height;
        for (int64_t i = 0; i < layout_.blocks(); ++i) {
            const Block block = layout_.block(i);
            layout_.pack_taps(weight_ + expert * geometry_.channels * rows * geometry_.kernel_width, block,
                              block.row_floats, packed_weight_ + block.taps_offset + expert * rows * block.row_floats);
        }
    }

    float* packed_sample(const Band& band, int64_t sample) const {
        return packed_x_ + sample * band.rows * layout_.row_floats();
    }

    // Packs the i-th (sample, channel block, padded row) of a band.
    void pack_row(const Band& band, int64_t i) {
        const int64_t sample = i / band.rows / layout_.blocks(), plane = geometry_.height * geometry_.width;
        layout_.pack_row(x_ + (band.first_sample + sample) * geometry_.channels * plane,
                         layout_.block(i / band.rows % layout_.blocks(), band.first_row, band.rows),
                         band.first_row + i % band.rows, packed_sample(band, sample));
    }

    void convolve_tile(const Band& band, int64_t sample, int64_t number_in_band) {
        const int64_t number = band.first_tile + number_in_band;
        const Tile tile(tiling_, number);
        float* partial = workspace_ + thread_number() * workspace_floats_;
        float* sums = partial + kPending * kWidth;
        float* ordered = sums + sums_floats_;
        int32_t* offsets = reinterpret_cast<int32_t*>(ordered + sums_floats_);
        for (size_t i = 0; i < passes_.size(); ++i) {
            const Block block = layout_.block(passes_[i].block, band.first_row, band.rows);
            pixel_offsets(geometry_, tiling_, block, offsets);
            const TileInputs inputs(geometry_, tiling_, tile, block, packed_sample(band, sample), offsets);
            convolve_block(tile, number, block, steps_[i], inputs, i == 0, partial, sums);
        }
        if (bias_ != nullptr) add_bias(number, sums);
        scatter(sums, plan_->items(tile), plan_->item_count(tile), ordered);
        const int64_t plane = geometry_.output_height * geometry_.output_width;
        copy_to_rows(geometry_, tiling_, tile, ordered, y_ + (band.first_sample + sample) * geometry_.selected * plane);
    }

    void add_bias(int64_t number, float* sums) const {
        const Run* runs = plan_->runs(number);
        int64_t item = 0;
        for (int64_t r = 0; r < plan_->run_count(number); ++r) {
            const float bias = bias_[runs[r].expert];
            for (; item < runs[r].end; ++item) sums[item] += bias;
        }
    }

    // sums[i] = or += what a pass adds to item i of the tile.
    void convolve_block(const Tile& tile, int64_t number, const Block& block, const std::vector<Step>& steps,
                        const TileInputs& inputs, bool first, float* partial, float* sums) {
        const uint32_t* items = plan_->items(tile);
        const Run* runs = plan_->runs(number);
        const int64_t run_count = plan_->run_count(number), item_count = plan_->item_count(tile);
        int64_t item = 0, added = 0;  // items multiplied, and of these, those whose lanes are added up
        for (int64_t r = 0; r < run_count; ++r) {
            const float* weights =
                packed_weight_ + block.taps_offset + runs[r].expert * geometry_.kernel_height * block.row_floats;
            while (item < runs[r].end) {
                const int64_t count = std::min<int64_t>(runs[r].end, added + kPending) - item;
                for (const Step& step : steps) {
                    step.multiply(weights, block.row_floats, step.part, inputs, items + item, count,
                                  partial + (item - added) * kWidth);
                }
                item += count;
                const int64_t pending = item - added;
                if (item == item_count) {
                    add_up(partial, pending, first, sums + added);
                } else if (pending >= kEnough) {
                    const int64_t whole = pending / kWidth * kWidth;
                    add_up(partial, whole, first, sums + added);
                    added += whole;
                    for (int64_t i = 0; i < pending - whole; ++i) {
                        store_vector(partial + i * kWidth, load_vector(partial + (whole + i) * kWidth));
                    }
                }
            }
        }
    }

    // Where shuffles of a whole register take twice the time of half a one (AVX-512 in two steps), the halves of each
    // vector are added first, straight from memory. The last vector may reach beyond `count`: both buffers have room,
    // and what it writes there is not used.
    static void add_up(const float* partial, int64_t count, bool first, float* sums) {
        constexpr int kHalf = kWidth == 16 ? 8 : kWidth;
        typedef float Half __attribute__((vector_size(kHalf * sizeof(float)), aligned(4), may_alias));
        typedef float Sum __attribute__((vector_size(kHalf * sizeof(float))));
        for (int64_t i = 0; i < count; i += kHalf) {
            Sum vectors[kHalf];
#pragma GCC unroll 8
            for (int j = 0; j < kHalf; ++j) {
                const float* lanes = partial + (i + j) * kWidth;
                vectors[j] = *reinterpret_cast<const Half*>(lanes);
                if (kHalf < kWidth) vectors[j] += *reinterpret_cast<const Half*>(lanes + kHalf);
            }
            const Sum sum = add_lanes(vectors);
            Half* place = reinterpret_cast<Half*>(sums + i);
            *place = first ? sum : *place + sum;
        }
    }

    Scratch scratch_;
    const smoe_geometry geometry_;
    const Layout layout_;
    const std::shared_ptr<const Plan> plan_;
    const Tiling tiling_;
    std::vector<Pass> passes_;
    std::vector<std::vector<Step>> steps_;  // of each pass
    std::vector<Band> bands_;
    const float *x_, *weight_, *bias_;
    float* y_;
    float *packed_x_, *packed_weight_, *workspace_;
    int64_t sums_floats_, workspace_floats_;
};

}  // namespace
}  // namespace expert_lists
}  // namespace smoe

extern "C" int smoe_list_forward(const smoe_geometry* geometry, const float* x, const float* weight, const float* bias,
                                 const int32_t* indices, float* y) {
    try {
        smoe::expert_lists::Forward(*geometry, x, weight, bias, indices, y).run();
    } catch (const std::bad_alloc&) {
        return 1;
    }
    return 0;
}
