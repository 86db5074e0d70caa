// dx = gradient of the routed convolution of a plane by its input, for families, by lists of joint choices.
//
// An output pixel adds, for each kernel row, a stretch of kw x 32 floats to a padded row of dx.
// Registers: up to 6 vectors of a kernel row's taps (with AVX-512) of each filter of a group, which stay while the
// pixels of a list stream past, and the output gradients of the group at a pixel. What is loaded of dx is summed over
// the filters of the group before it is stored.
// Caches: L2 holds the padded dx of a tile and of a channel block.
// Loops: sample > row of tiles > tile > channel block > group > list > part of the taps > pixels. Threads share out
// rows of tiles; each has padded rows of dx of its own. Then they share out rows of dx, which are added up in the order
// of the rows of tiles.
#include <new>
#include <utility>

#include "../expert_lists/tile_inputs.h"
#include "lists.h"

namespace smoe {
namespace joint_lists {
namespace {

using namespace expert_lists;

// Adds the products of taps and gradients to dx, at one pixel at least.
template <int kSlots, int kV>
void scatter(float* first_target, const int32_t* offsets, const uint16_t* pixels, const float* gradients, int64_t count,
             const float* const* taps) {
    Vector weights[kSlots][kV];
#pragma GCC unroll 4
    for (int j = 0; j < kSlots; ++j) {
#pragma GCC unroll 6
        for (int v = 0; v < kV; ++v) weights[j][v] = load_vector(taps[j] + v * kWidth);
    }
    const uint16_t* end = pixels + count;
    do {
        float* row = first_target + offsets[*pixels];
        Vector factors[kSlots];
#pragma GCC unroll 4
        for (int j = 0; j < kSlots; ++j) factors[j] = broadcast_vector(gradients[j]);
#pragma GCC unroll 6
        for (int v = 0; v < kV; ++v) {
            Vector sum = load_vector(row + v * kWidth);
#pragma GCC unroll 4
            for (int j = 0; j < kSlots; ++j) sum += factors[j] * weights[j][v];
            store_vector(row + v * kWidth, sum);
        }
        gradients += kSlots;
    } while (++pixels != end);
}

using Scatter = void (*)(float*, const int32_t*, const uint16_t*, const float*, int64_t, const float* const*);

template <int... kNumber>
Scatter pick_kernel(int slots, int vectors, std::integer_sequence<int, kNumber...>) {
    static constexpr Scatter kKernels[] = {scatter<kNumber / kVectors + 1, kNumber % kVectors + 1>...};
    return kKernels[(slots - 1) * kVectors + vectors - 1];
}

class InputGradient {
 public:
    InputGradient(const smoe_geometry& geometry, const float* g, const float* weight, const int32_t* indices, float* dx)
        : geometry_(geometry),
          layout_(geometry),
          tiling_(joint_tiling(geometry)),
          lists_(geometry, tiling_),
          indices_(indices),
          g_(g),
          weight_(weight),
          dx_(dx) {
        for (int64_t i = 0; i < layout_.blocks(); ++i) {
            parts_.push_back(cut_taps(geometry.kernel_height, layout_.block(i), 1, kVectors));
        }
        most_rows_ = (tiling_.height - 1) * geometry.stride + geometry.kernel_height;
        strip_floats_ = most_rows_ * layout_.row_floats();
        find_readers();
        workspace_floats_ = tiling_.pixels() * geometry.selected + kMostPixels;
        static thread_local Scratch weights, strips, workspace, rows;
        packed_weight_ = weights.floats(layout_.taps_floats());
        strips_ = strips.floats(tiling_.rows * strip_floats_);
        workspace_ = workspace.floats(geometry.threads * workspace_floats_);
        row_floats_ = round_up(layout_.block(0).row_pitch, 16);
        rows_ = rows.floats(geometry.threads * row_floats_);
    }

    bool run() {
        if (!lists_.sort(indices_)) return false;
#pragma omp parallel num_threads(geometry_.threads)
        {
#pragma omp for schedule(static)
            for (int64_t expert = 0; expert < geometry_.experts; ++expert) pack_expert(expert);
            for (int64_t sample = 0; sample < geometry_.batch; ++sample) {
#pragma omp for schedule(dynamic)
                for (int64_t strip = 0; strip < tiling_.rows; ++strip) fill_strip(sample, strip);
#pragma omp for schedule(static)
                for (int64_t row = 0; row < geometry_.height; ++row) gather_row(sample, row);
            }
        }
        return true;
    }

 private:
    struct Reader {
        int64_t strip, row;  // of the strip
    };

    // For each row of dx, the padded rows of strips that say something about it.
    void find_readers() {
        readers_.resize(geometry_.height);
        for (int64_t strip = 0; strip < tiling_.rows; ++strip) {
            const Tile tile(tiling_, strip * tiling_.columns);
            const int64_t rows = (tile.height - 1) * geometry_.stride + geometry_.kernel_height;
            for (int64_t row = 0; row < rows; ++row) {
                const int64_t source = layout_.source_row(padded_row(geometry_, tile.row, 0) + row);
                if (source >= 0) readers_[source].push_back({strip, row});
            }
        }
    }

    void pack_expert(int64_t expert) {
        const int64_t rows = geometry_.kernel_height;
        for (int64_t i = 0; i < layout_.blocks(); ++i) {
            const Block block = layout_.block(i);
            layout_.pack_taps(weight_ + expert * geometry_.channels * rows * geometry_.kernel_width, block,
                              block.row_floats, packed_weight_ + block.taps_offset + expert * rows * block.row_floats);
        }
    }

    void fill_strip(int64_t sample, int64_t strip) {
        std::memset(strips_ + strip * strip_floats_, 0, strip_floats_ * sizeof(float));
        const int64_t width = geometry_.output_width, plane = geometry_.output_height * width;
        float* listed = workspace_ + thread_number() * workspace_floats_;
        int32_t* offsets = reinterpret_cast<int32_t*>(listed + tiling_.pixels() * geometry_.selected);
        for (int64_t number = strip * tiling_.columns; number < (strip + 1) * tiling_.columns; ++number) {
            const Tile tile(tiling_, number);
            list_gradients(lists_, tiling_, tile, number,
                           g_ + sample * geometry_.selected * plane + tile.row * width + tile.column, plane, width,
                           listed);
            for (int64_t i = 0; i < layout_.blocks(); ++i) {
                const Block block = layout_.block(i, 0, most_rows_);
                pixel_offsets(geometry_, tiling_, block, offsets);
                float* corner = strips_ + strip * strip_floats_ + block.input_offset + tile.column * block.pixel_pitch;
                for (int64_t group = 0; group < lists_.groups(); ++group) {
                    scatter_lists(block, parts_[i], number, group, offsets,
                                  listed + lists_.first_slot(group) * tile.pixels(), corner);
                }
            }
        }
    }

    void scatter_lists(const Block& block, const std::vector<Part>& parts, int64_t tile, int64_t group,
                       const int32_t* offsets, const float* gradients, float* corner) {
        const int slots = lists_.slots(group);
        const uint16_t* pixels = lists_.items(tile, group);
        lists_.visit(tile, group, [&](const int64_t* experts, int64_t begin, int64_t count) {
            for (const Part& part : parts) {
                const float* taps[kMostSlots];
                for (int j = 0; j < slots; ++j) {
                    taps[j] = packed_weight_ + block.taps_offset + part.column +
                              (experts[j] * geometry_.kernel_height + part.row) * block.row_floats;
                }
                constexpr auto kAll = std::make_integer_sequence<int, kMostSlots * kVectors>{};
                pick_kernel(slots, part.vectors, kAll)(corner + part.row * block.row_pitch + part.column, offsets,
                                                       pixels + begin, gradients + begin * slots, count, taps);
            }
        });
    }

    void gather_row(int64_t sample, int64_t row) {
        float* sum = rows_ + thread_number() * row_floats_;
        for (int64_t i = 0; i < layout_.blocks(); ++i) {
            const Block block = layout_.block(i, 0, most_rows_);
            std::fill_n(sum, block.row_pitch, 0.0f);
            for (const Reader& reader : readers_[row]) {
                const float* source =
                    strips_ + reader.strip * strip_floats_ + block.input_offset + reader.row * block.row_pitch;
                for (int64_t j = 0; j < block.row_pitch; ++j) sum[j] += source[j];
            }
            const int64_t channel = sample * geometry_.channels + block.first_channel;
            layout_.unpack_row(sum, block, dx_ + (channel * geometry_.height + row) * geometry_.width);
        }
    }

    const smoe_geometry geometry_;
    const Layout layout_;
    const Tiling tiling_;
    Lists lists_;
    std::vector<std::vector<Part>> parts_;  // of each block
    std::vector<std::vector<Reader>> readers_;
    const int32_t* indices_;
    const float *g_, *weight_;
    float* dx_;
    float *packed_weight_, *strips_, *workspace_, *rows_;
    int64_t most_rows_, strip_floats_, workspace_floats_, row_floats_;
};

}  // namespace
}  // namespace joint_lists
}  // namespace smoe

// Of a plane. Returns 2 if the routing does not select one of neighbouring experts for each slot, and leaves dx alone.
extern "C" int smoe_joint_input_gradient(const smoe_geometry* geometry, const float* g, const float* weight,
                                         const int32_t* indices, float* dx) {
    try {
        return smoe::joint_lists::InputGradient(*geometry, g, weight, indices, dx).run() ? 0 : 2;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}
