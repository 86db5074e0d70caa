// dweight = gradient of the routed convolution by its weights, for families, by lists of joint choices.
//
// Registers: accumulators for three vectors of each of three kernel rows (16 channels, with AVX-512) of each filter of
// a group of up to three, and the output gradients of the group at a pixel. The pixels of a list stream past; an input
// that is loaded serves all filters of the group: a core loads one vector of such scattered places in a cycle, and
// multiplies and adds two.
// Caches: L1 holds the tile's inputs of a channel block, L2 the sums of its experts (X x 144 floats).
// Loops: band > (range of groups, pass) > group > sample > tile > list > part of the taps > pixels; a pass is a channel
// block and some slices of the kernel. Threads share out pairs of a pass and a range of groups. An expert's gradient is
// summed in the order of bands, samples and tiles by whatever threads.
#include <new>
#include <utility>

#include "../expert_lists/tile_inputs.h"
#include "lists.h"

namespace smoe {
namespace joint_lists {
namespace {

using namespace expert_lists;

// targets[j] += the sum over the pixels, of which there is one at least, of the gradient of slot j times the input, for
// kernel rows that lie `pitches.target` floats apart, and their inputs `pitches.input`.
struct Pitches {
    int64_t input, target;
};

template <int kSlots, int kR, int kV>
void accumulate(const float* first_input, const int32_t* offsets, const uint16_t* pixels, const float* gradients,
                int64_t count, const Pitches& pitches, float* const* targets) {
    Vector sums[kSlots][kR][kV];
#pragma GCC unroll 3
    for (int j = 0; j < kSlots; ++j) {
#pragma GCC unroll 3
        for (int r = 0; r < kR; ++r) {
            const float* target = targets[j] + r * pitches.target;
#pragma GCC unroll 3
            for (int v = 0; v < kV; ++v) sums[j][r][v] = load_vector(target + v * kWidth);
        }
    }
    const int64_t input_pitch = pitches.input;
    const uint16_t* end = pixels + count;
    do {
        const float* row = first_input + offsets[*pixels];
        Vector factors[kSlots];
#pragma GCC unroll 3
        for (int j = 0; j < kSlots; ++j) factors[j] = broadcast_vector(gradients[j]);
#pragma GCC unroll 3
        for (int r = 0; r < kR; ++r) {
            row = row_start(r == 0 ? row : row + input_pitch);
#pragma GCC unroll 3
            for (int v = 0; v < kV; ++v) {
                const Vector input = load_once(row + v * kWidth);
#pragma GCC unroll 3
                for (int j = 0; j < kSlots; ++j) sums[j][r][v] += factors[j] * input;
            }
        }
        gradients += kSlots;
    } while (++pixels != end);
#pragma GCC unroll 3
    for (int j = 0; j < kSlots; ++j) {
#pragma GCC unroll 3
        for (int r = 0; r < kR; ++r) {
            float* target = targets[j] + r * pitches.target;
#pragma GCC unroll 3
            for (int v = 0; v < kV; ++v) store_vector(target + v * kWidth, sums[j][r][v]);
        }
    }
}

using Accumulate = void (*)(const float*, const int32_t*, const uint16_t*, const float*, int64_t, const Pitches&,
                            float* const*);

template <int... kNumber>
Accumulate pick_kernel(int slots, const Part& part, std::integer_sequence<int, kNumber...>) {
    static constexpr Accumulate kKernels[] = {
        accumulate<kNumber / (kRows * kVectors) + 1, kNumber / kVectors % kRows + 1, kNumber % kVectors + 1>...};
    return kKernels[((slots - 1) * kRows + part.rows - 1) * kVectors + part.vectors - 1];
}

class WeightGradient {
 public:
    WeightGradient(const smoe_geometry& geometry, const float* x, const float* g, const int32_t* indices,
                   const uint16_t* masks, float* dw)
        : geometry_(geometry),
          tiling_(joint_tiling(geometry)),
          layout_(geometry, tiling_, kRowFloats),
          lists_(geometry, tiling_),
          passes_(cut_passes(geometry, tiling_, layout_, kRows, kVectors)),
          bands_(cut_bands(geometry, tiling_,
                           tiling_.height * sizeof(float) *
                               (geometry.stride * layout_.row_floats() + geometry.selected * geometry.output_width))),
          x_(x),
          g_(g),
          indices_(indices),
          masks_(masks),
          dw_(dw) {
        items_ = geometry.selected * geometry.output_height * geometry.output_width;
        int64_t packed_rows = 0, listed_pixels = 0;
        for (const Band& band : bands_) {
            packed_rows = std::max(packed_rows, band.samples * band.rows);
            listed_pixels = std::max(listed_pixels, band.samples * band.pixels);
        }
        packed_x_ = scratch_.floats(packed_rows * layout_.row_floats());
        listed_g_ = scratch_.floats(listed_pixels * geometry.selected);
        packed_dw_ = scratch_.floats(layout_.taps_floats());
        workspace_ = scratch_.floats(geometry.threads * kMostPixels);
    }

    bool run() {
        const int64_t blocks = layout_.blocks(), passes = static_cast<int64_t>(passes_.size());
        // Enough parts for the threads to share, each with a few groups for a tile's inputs that it brings to L1.
        const int64_t parts = std::min<int64_t>(lists_.groups(), 4 * geometry_.threads);
        if (!lists_.sort(indices_, masks_)) return false;
#pragma omp parallel num_threads(geometry_.threads)
        {
#pragma omp for schedule(static) nowait
            for (int64_t i = 0; i < geometry_.experts; ++i) start_expert(i);
            for (const Band& band : bands_) {
#pragma omp for schedule(static) nowait
                for (int64_t i = 0; i < band.samples * blocks * band.rows; ++i) pack_row(band, i);
#pragma omp for schedule(static)
                for (int64_t i = 0; i < band.samples * band.tiles; ++i) {
                    list_tile(band, i / band.tiles, i % band.tiles);
                }
#pragma omp for schedule(dynamic)
                for (int64_t i = 0; i < parts * passes; ++i) {
                    const int64_t part = i % parts;
                    sum_groups(band, lists_.groups() * part / parts, lists_.groups() * (part + 1) / parts,
                               passes_[i / parts]);
                }
            }
#pragma omp for schedule(static)
            for (int64_t i = 0; i < geometry_.experts; ++i) finish_expert(i);
        }
        return true;
    }

 private:
    float* packed_sample(const Band& band, int64_t sample) const {
        return packed_x_ + sample * band.rows * layout_.row_floats();
    }
    // Of the tile's first group; the gradients of a list are [pixel][slot].
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

    void list_tile(const Band& band, int64_t sample, int64_t number_in_band) {
        const int64_t number = band.first_tile + number_in_band;
        const int64_t width = geometry_.output_width, plane = geometry_.output_height * width;
        const Tile tile(tiling_, number);
        const float* corner = g_ + (band.first_sample + sample) * items_ + tile.row * width + tile.column;
        list_gradients(lists_, tiling_, tile, number, corner, plane, width, listed_tile(band, sample, tile));
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

    // Adds what a band says about the experts of some groups.
    void sum_groups(const Band& band, int64_t first, int64_t last, const Pass& pass) {
        const Block block = layout_.block(pass.block, band.first_row, band.rows);
        int32_t* offsets = reinterpret_cast<int32_t*>(workspace_ + thread_number() * kMostPixels);
        pixel_offsets(geometry_, tiling_, block, offsets);
        for (int64_t sample = 0; sample < band.samples; ++sample) {
            for (int64_t number = band.first_tile; number < band.first_tile + band.tiles; ++number) {
                const Tile tile(tiling_, number);
                const TileInputs inputs(geometry_, tiling_, tile, block, packed_sample(band, sample), offsets);
                for (int64_t group = first; group < last; ++group) {
                    const float* gradients = listed_tile(band, sample, tile) + lists_.first_slot(group) * tile.pixels();
                    sum_lists(block, pass.parts, inputs, number, group, gradients);
                }
            }
        }
    }

    void sum_lists(const Block& block, const std::vector<Part>& parts, const TileInputs& inputs, int64_t tile,
                   int64_t group, const float* gradients) {
        const int slots = lists_.slots(group);
        const uint16_t* pixels = lists_.items(tile, group);
        lists_.visit(tile, group, [&](const int64_t* experts, int64_t begin, int64_t count) {
            for (const Part& part : parts) {
                float* targets[kMostSlots];
                for (int j = 0; j < slots; ++j) {
                    targets[j] = expert_sums(block, experts[j]) + part.row * block.row_floats + part.column;
                }
                constexpr auto kAll = std::make_integer_sequence<int, kMostSlots * kRows * kVectors>{};
                pick_kernel(slots, part, kAll)(inputs.corner + part.padded_row * inputs.row_pitch + part.column,
                                               inputs.offsets, pixels + begin, gradients + begin * slots, count,
                                               {inputs.row_pitch, block.row_floats}, targets);
            }
        });
    }

    Scratch scratch_;
    const smoe_geometry geometry_;
    const Tiling tiling_;
    const Layout layout_;
    Lists lists_;
    const std::vector<Pass> passes_;
    const std::vector<Band> bands_;
    const float *x_, *g_;
    const int32_t* indices_;
    const uint16_t* masks_;
    float* dw_;
    float *packed_x_, *listed_g_, *packed_dw_, *workspace_;
    int64_t items_;
};

}  // namespace
}  // namespace joint_lists
}  // namespace smoe

extern "C" {

// With the masks of families of two, which are in place of the indices.
int smoe_joint_masked(const smoe_geometry* geometry, const float* x, const float* g, const int32_t* indices,
                      const uint16_t* masks, float* dw) {
    try {
        return smoe::joint_lists::WeightGradient(*geometry, x, g, indices, masks, dw).run() ? 0 : 2;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

// Returns 2 if the routing does not select one of neighbouring experts for each slot, and leaves dw alone.
int smoe_joint_weight_gradient(const smoe_geometry* geometry, const float* x, const float* g, const int32_t* indices,
                               float* dw) {
    return smoe_joint_masked(geometry, x, g, indices, nullptr, dw);
}

}  // extern "C"
