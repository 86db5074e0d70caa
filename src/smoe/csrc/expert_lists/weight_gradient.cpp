// dweight = gradient of the routed convolution by its weights, by expert lists.
//
// Registers: accumulators for 3 x 6 vectors of one expert's weight gradient (32 channels by 3 x 3 taps, with AVX-512;
// narrower registers take it in several passes) and one broadcast output gradient. The pixels of the tile that chose
// the expert stream past, each multiply-add takes its input straight from memory.
// Caches: L1 holds the tile's inputs of a channel block. The accumulators of the block (X x 288 floats) wait in L2 and
// are fetched and put back once per tile. Output gradients are first brought into the order of the lists, for all tiles
// of a band, and stream past too.
// Loops: band > (range of experts, pass) > sample > tile > expert > part of the taps > items; a pass is a channel block
// and some slices of the kernel. Threads share out pairs of a pass and a range of experts; ranges have about as many
// items each in the band. A thread adds up the gradients of its pairs over the samples and tiles of the band, in this
// order, and the bands follow each other: an expert's gradient is summed in the same order by whatever threads.
#include <new>

#include "../scratch.h"
#include "tile_inputs.h"

namespace smoe {
namespace expert_lists {
namespace {

constexpr int kRows = 3;                        // most kernel rows in registers,
constexpr int kVectors = kWidth == 16 ? 6 : 4;  // and vectors of each

// gradient += the sum over the items of output gradient times input, for a part of the taps.
template <int kR, int kV>
void accumulate_list(const Part& part, const TileInputs& inputs, const uint32_t* items, const float* output_gradients,
                     int64_t count, float* gradient, int64_t gradient_pitch) {
    float* target = gradient + part.row * gradient_pitch + part.column;
    Vector sums[kR][kV];
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < kV; ++v) sums[r][v] = load_vector(target + r * gradient_pitch + v * kWidth);
    }
    const float* first_input = inputs.corner + part.padded_row * inputs.row_pitch + part.column;
    const int64_t row_pitch = inputs.row_pitch;
    const int32_t* offsets = inputs.offsets;
    const uint32_t mask = inputs.pixel_mask;
    for (int64_t i = 0; i < count; ++i) {
        const Vector factor = broadcast_vector(output_gradients[i]);
        const float* row = first_input + offsets[items[i] & mask];
#pragma GCC unroll 8
        for (int r = 0; r < kR; ++r) {
            row = row_start(r == 0 ? row : row + row_pitch);
#pragma GCC unroll 8
            for (int v = 0; v < kV; ++v) sums[r][v] += factor * load_vector(row + v * kWidth);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < kV; ++v) store_vector(target + r * gradient_pitch + v * kWidth, sums[r][v]);
    }
}

using AccumulateList = void (*)(const Part&, const TileInputs&, const uint32_t*, const float*, int64_t, float*,
                                int64_t);

template <int... kNumber>
AccumulateList pick_kernel(const Part& part, std::integer_sequence<int, kNumber...>) {
    static constexpr AccumulateList kKernels[] = {accumulate_list<kNumber / kVectors + 1, kNumber % kVectors + 1>...};
    return kKernels[(part.rows - 1) * kVectors + part.vectors - 1];
}

// A part of a block's taps, and the kernel of its size.
struct Step {
    Part part;
    AccumulateList accumulate;
};

class WeightGradient {
 public:
    WeightGradient(const smoe_geometry& geometry, const float* x, const float* g, const int32_t* indices, float* dw)
        : geometry_(geometry),
          layout_(geometry),
          plan_(obtain_plan(geometry, indices)),
          tiling_(plan_->tiling()),
          x_(x),
          g_(g),
          dw_(dw) {
        passes_ = cut_passes(geometry, tiling_, layout_, kRows, kVectors);
        for (const Pass& pass : passes_) {
            steps_.emplace_back();
            for (const Part& part : pass.parts) {
                constexpr auto kAll = std::make_integer_sequence<int, kRows * kVectors>{};
                steps_.back().push_back({part, pick_kernel(part, kAll)});
            }
        }
        items_ = geometry.selected * geometry.output_height * geometry.output_width;
        bands_ = cut_bands(geometry, tiling_,
                           tiling_.height * sizeof(float) *
                               (geometry.stride * layout_.row_floats() + geometry.selected * geometry.output_width));
        int64_t packed_rows = 0, listed_pixels = 0;
        for (const Band& band : bands_) {
            packed_rows = std::max(packed_rows, band.samples * band.rows);
            listed_pixels = std::max(listed_pixels, band.samples * band.pixels);
            shares_.push_back(share_out_experts(band));
        }
        packed_x_ = scratch_.floats(packed_rows * layout_.row_floats());
        listed_g_ = scratch_.floats(listed_pixels * geometry.selected);
        packed_dw_ = scratch_.floats(layout_.taps_floats());
        ordered_floats_ = round_up(geometry.selected * tiling_.pixels(), 16);
        workspace_floats_ = ordered_floats_ + round_up(tiling_.pixels(), 16);
        workspace_ = scratch_.floats(geometry.threads * workspace_floats_);
    }

    void run() {
        const int64_t blocks = layout_.blocks(), passes = static_cast<int64_t>(passes_.size());
#pragma omp parallel num_threads(geometry_.threads)
        {
#pragma omp for schedule(static) nowait
            for (int64_t i = 0; i < geometry_.experts; ++i) start_expert(i);
            for (size_t b = 0; b < bands_.size(); ++b) {
                const Band& band = bands_[b];
#pragma omp for schedule(static) nowait
                for (int64_t i = 0; i < band.samples * blocks * band.rows; ++i) pack_row(band, i);
#pragma omp for schedule(static)
                for (int64_t i = 0; i < band.samples * band.tiles; ++i) {
                    list_gradients(band, i / band.tiles, i % band.tiles);
                }
#pragma omp for schedule(dynamic)
                for (int64_t i = 0; i < geometry_.threads * passes; ++i) {
                    sum_share(band, shares_[b][i / passes], shares_[b][i / passes + 1], i % passes);
                }
            }
#pragma omp for schedule(static)
            for (int64_t i = 0; i < geometry_.experts; ++i) finish_expert(i);
        }
    }

 private:
    // Cuts the experts into as many ranges as threads, by their items in a band. Returns where each begins, and the
    // last one ends.
    std::vector<int64_t> share_out_experts(const Band& band) const {
        std::vector<int64_t> counts(geometry_.experts);
        int64_t total = 0;
        for (int64_t tile = band.first_tile; tile < band.first_tile + band.tiles; ++tile) {
            const Run* runs = plan_->runs(tile);
            int64_t begin = 0;
            for (int64_t r = 0; r < plan_->run_count(tile); ++r) {
                counts[runs[r].expert] += runs[r].end - begin;
                begin = runs[r].end;
            }
            total += begin;
        }
        std::vector<int64_t> shares{0};
        int64_t expert = 0, seen = 0;
        for (int64_t share = 1; share <= geometry_.threads; ++share) {
            while (expert < geometry_.experts && seen + counts[expert] / 2 < total * share / geometry_.threads) {
                seen += counts[expert++];
            }
            shares.push_back(share == geometry_.threads ? geometry_.experts : expert);
        }
        return shares;
    }

    float* workspace() const { return workspace_ + thread_number() * workspace_floats_; }

    float* packed_sample(const Band& band, int64_t sample) const {
        return packed_x_ + sample * band.rows * layout_.row_floats();
    }
    float* listed_tile(const Band& band, int64_t sample, const Tile& tile) const {
        return listed_g_ + (sample * band.pixels + tile.first_pixel - band.first_pixel) * geometry_.selected;
    }

    // Packs the i-th (sample, channel block, padded row) of a band.
    void pack_row(const Band& band, int64_t i) {
        const int64_t sample = i / band.rows / layout_.blocks(), plane = geometry_.height * geometry_.width;
        layout_.pack_row(x_ + (band.first_sample + sample) * geometry_.channels * plane,
                         layout_.block(i / band.rows % layout_.blocks(), band.first_row, band.rows),
                         band.first_row + i % band.rows, packed_sample(band, sample));
    }

    // Output gradients of a tile, in the order of its items.
    void list_gradients(const Band& band, int64_t sample, int64_t number_in_band) {
        const Tile tile(tiling_, band.first_tile + number_in_band);
        float* ordered = workspace();
        copy_from_rows(geometry_, tiling_, tile, g_ + (band.first_sample + sample) * items_, ordered);
        gather(ordered, plan_->items(tile), plan_->item_count(tile), listed_tile(band, sample, tile));
    }

    float* expert_sums(const Block& block, int64_t expert) const {
        return packed_dw_ + block.taps_offset + expert * geometry_.kernel_height * block.row_floats;
    }

    void start_expert(int64_t expert) {
        for (int64_t i = 0; i < layout_.blocks(); ++i) {
            const Block block = layout_.block(i);
            std::memset(expert_sums(block, expert), 0, geometry_.kernel_height * block.row_floats * sizeof(float));
        }
    }

    void finish_expert(int64_t expert) {
        const int64_t weight_floats = geometry_.channels * geometry_.kernel_height * geometry_.kernel_width;
        for (int64_t i = 0; i < layout_.blocks(); ++i) {
            const Block block = layout_.block(i);
            layout_.unpack_taps(expert_sums(block, expert), block, block.row_floats, dw_ + expert * weight_floats);
        }
    }

    // Adds what a band says about the experts [first, last).
    void sum_share(const Band& band, int64_t first, int64_t last, int64_t pass) {
        if (first == last) return;
        const Block block = layout_.block(passes_[pass].block, band.first_row, band.rows);
        int32_t* offsets = reinterpret_cast<int32_t*>(workspace() + ordered_floats_);
        pixel_offsets(geometry_, tiling_, block, offsets);
        for (int64_t sample = 0; sample < band.samples; ++sample) {
            for (int64_t number = band.first_tile; number < band.first_tile + band.tiles; ++number) {
                sum_tile(band, sample, number, block, steps_[pass], offsets, first, last);
            }
        }
    }

    void sum_tile(const Band& band, int64_t sample, int64_t number, const Block& block, const std::vector<Step>& steps,
                  const int32_t* offsets, int64_t first, int64_t last) {
        const Tile tile(tiling_, number);
        const TileInputs inputs(geometry_, tiling_, tile, block, packed_sample(band, sample), offsets);
        const uint32_t* items = plan_->items(tile);
        const float* gradients = listed_tile(band, sample, tile);
        const Run* runs = plan_->runs(number);
        const Run* end = runs + plan_->run_count(number);
        const Run* run = std::lower_bound(runs, end, first, [](const Run& a, int64_t b) { return a.expert < b; });
        int64_t item = run == runs ? 0 : run[-1].end;
        for (; run != end && run->expert < last; ++run) {
            for (const Step& step : steps) {
                step.accumulate(step.part, inputs, items + item, gradients + item, run->end - item,
                                expert_sums(block, run->expert), block.row_floats);
            }
            item = run->end;
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
    std::vector<std::vector<int64_t>> shares_;  // of each band: see share_out_experts()
    const float *x_, *g_;
    float* dw_;
    float *packed_x_, *listed_g_, *packed_dw_, *workspace_;
    int64_t items_, ordered_floats_, workspace_floats_;
};

}  // namespace
}  // namespace expert_lists
}  // namespace smoe

extern "C" int smoe_list_weight_gradient(const smoe_geometry* geometry, const float* x, const float* g,
                                         const int32_t* indices, float* dw) {
    try {
        smoe::expert_lists::WeightGradient(*geometry, x, g, indices, dw).run();
    } catch (const std::bad_alloc&) {
        return 1;
    }
    return 0;
}
