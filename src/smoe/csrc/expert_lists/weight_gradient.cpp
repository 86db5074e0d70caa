// dweight = gradient of the routed convolution by its weights, by expert lists.
//
// Registers: accumulators for 3 x 6 vectors of one expert's weight gradient (32 channels by 3 x 3 taps, with AVX-512;
// narrower registers take it in several passes) and one broadcast output gradient. The pixels of the tile that chose
// the expert stream past, each multiply-add takes its input straight from memory.
// Caches: L1 holds the tile's inputs of a channel block. The accumulators of the block (X x 288 floats) wait in L2 and
// are fetched and put back once per tile. Output gradients are first brought into the order of the lists, for all tiles
// and samples, and stream past too.
// Loops: (range of experts, channel block) > sample > tile > expert > part of the taps > items.
// Threads share out pairs of a channel block and a range of experts; ranges have about as many items each. A thread
// adds up the gradients of its pairs over all samples and tiles, in this order, and writes them: nothing is summed
// across threads.
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
    const float* first_input = inputs.corner + part.row * inputs.row_pitch + part.column;
    const int64_t row_pitch = inputs.row_pitch;
    const int32_t* offsets = inputs.offsets;
    const uint32_t mask = inputs.pixel_mask;
    for (int64_t i = 0; i < count; ++i) {
        const Vector factor = broadcast_vector(output_gradients[i]);
        const float* pixel = first_input + offsets[items[i] & mask];
#pragma GCC unroll 8
        for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 8
            for (int v = 0; v < kV; ++v) sums[r][v] += factor * load_vector(pixel + r * row_pitch + v * kWidth);
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
        for (int64_t i = 0; i < layout_.blocks(); ++i) {
            steps_.emplace_back();
            for (const Part& part : cut_taps(geometry.kernel_height, layout_.block(i), kRows, kVectors)) {
                constexpr auto kAll = std::make_integer_sequence<int, kRows * kVectors>{};
                steps_.back().push_back({part, pick_kernel(part, kAll)});
            }
        }
        share_out_experts();
        static thread_local Scratch inputs, gradients, sums, workspace;
        items_ = geometry.selected * geometry.output_height * geometry.output_width;
        packed_x_ = inputs.floats(geometry.batch * layout_.sample_floats());
        listed_g_ = gradients.floats(geometry.batch * items_);
        packed_dw_ = sums.floats(layout_.taps_floats());
        ordered_floats_ = round_up(geometry.selected * tiling_.pixels(), 16);
        workspace_floats_ = ordered_floats_ + round_up(tiling_.pixels(), 16);
        workspace_ = workspace.floats(geometry.threads * workspace_floats_);
    }

    void run() {
        const int64_t rows = layout_.padded_rows(), blocks = layout_.blocks(), tiles = tiling_.count();
#pragma omp parallel num_threads(geometry_.threads)
        {
#pragma omp for schedule(static) nowait
            for (int64_t i = 0; i < geometry_.batch * blocks * rows; ++i) {
                const int64_t sample = i / rows / blocks;
                layout_.pack_row(x_ + sample * geometry_.channels * geometry_.height * geometry_.width,
                                 layout_.block(i / rows % blocks), i % rows,
                                 packed_x_ + sample * layout_.sample_floats());
            }
#pragma omp for schedule(static)
            for (int64_t i = 0; i < geometry_.batch * tiles; ++i) list_gradients(i / tiles, i % tiles);
#pragma omp for schedule(dynamic)
            for (int64_t i = 0; i < geometry_.threads * blocks; ++i) sum_share(i / blocks, i % blocks);
        }
    }

 private:
    // Cuts the experts into as many ranges as threads, by their items.
    void share_out_experts() {
        std::vector<int64_t> counts(geometry_.experts);
        int64_t total = 0;
        for (int64_t tile = 0; tile < tiling_.count(); ++tile) {
            const Run* runs = plan_->runs(tile);
            int64_t begin = 0;
            for (int64_t r = 0; r < plan_->run_count(tile); ++r) {
                counts[runs[r].expert] += runs[r].end - begin;
                begin = runs[r].end;
            }
            total += begin;
        }
        shares_.push_back(0);
        int64_t expert = 0, seen = 0;
        for (int64_t share = 1; share <= geometry_.threads; ++share) {
            while (expert < geometry_.experts && seen + counts[expert] / 2 < total * share / geometry_.threads) {
                seen += counts[expert++];
            }
            shares_.push_back(share == geometry_.threads ? geometry_.experts : expert);
        }
    }

    float* workspace() const { return workspace_ + thread_number() * workspace_floats_; }

    // Output gradients of a tile, in the order of its items.
    void list_gradients(int64_t sample, int64_t number) {
        const Tile tile(tiling_, number);
        float* ordered = workspace();
        copy_from_rows(geometry_, tiling_, tile, g_ + sample * items_, ordered);
        gather(ordered, plan_->items(tile), plan_->item_count(tile),
               listed_g_ + sample * items_ + tile.first_pixel * geometry_.selected);
    }

    void sum_share(int64_t share, int64_t block_number) {
        const int64_t first = shares_[share], last = shares_[share + 1];
        if (first == last) return;
        const Block block = layout_.block(block_number);
        const int64_t expert_floats = geometry_.kernel_height * block.row_floats;
        float* sums = packed_dw_ + block.taps_offset;
        std::memset(sums + first * expert_floats, 0, (last - first) * expert_floats * sizeof(float));
        int32_t* offsets = reinterpret_cast<int32_t*>(workspace() + ordered_floats_);
        pixel_offsets(geometry_, tiling_, block, offsets);
        for (int64_t sample = 0; sample < geometry_.batch; ++sample) {
            for (int64_t number = 0; number < tiling_.count(); ++number) {
                sum_tile(sample, number, block, steps_[block_number], offsets, first, last, sums);
            }
        }
        const int64_t weight_floats = geometry_.channels * geometry_.kernel_height * geometry_.kernel_width;
        for (int64_t expert = first; expert < last; ++expert) {
            layout_.unpack_taps(sums + expert * expert_floats, block, block.row_floats, dw_ + expert * weight_floats);
        }
    }

    void sum_tile(int64_t sample, int64_t number, const Block& block, const std::vector<Step>& steps,
                  const int32_t* offsets, int64_t first, int64_t last, float* sums) {
        const Tile tile(tiling_, number);
        const TileInputs inputs(geometry_, tiling_, tile, block, packed_x_ + sample * layout_.sample_floats(), offsets);
        const uint32_t* items = plan_->items(tile);
        const float* gradients = listed_g_ + sample * items_ + tile.first_pixel * geometry_.selected;
        const Run* runs = plan_->runs(number);
        const Run* end = runs + plan_->run_count(number);
        const Run* run = std::lower_bound(runs, end, first, [](const Run& a, int64_t b) { return a.expert < b; });
        int64_t item = run == runs ? 0 : run[-1].end;
        for (; run != end && run->expert < last; ++run) {
            for (const Step& step : steps) {
                step.accumulate(step.part, inputs, items + item, gradients + item, run->end - item,
                                sums + run->expert * geometry_.kernel_height * block.row_floats, block.row_floats);
            }
            item = run->end;
        }
    }

    const smoe_geometry geometry_;
    const Layout layout_;
    const std::shared_ptr<const Plan> plan_;
    const Tiling tiling_;
    std::vector<std::vector<Step>> steps_;  // of each block
    std::vector<int64_t> shares_;           // first expert of each range
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
