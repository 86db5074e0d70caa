// Forward pass of families of two experts: family s has the experts 2 s and 2 s + 1, and each pixel selects one of
// them.
//
//   y[b, s, p] = bias[e] + sum over c, t of weight[e, c, t] * x[b, c, source(p, t)],  e = indices[s, p]
//
//   lanes      16 families; a bit of a mask for each family and pixel says which expert is selected
//   registers  sums of 7 pixels (as many as there are masks); per channel and tap both experts' weights are loaded
//   once,
//              and for each pixel blended by its mask and multiplied by its input, which is broadcast
//   L1         the weights of a block of channels, [c][tap][2][16], used by all pixels of a band
//   L2         the padded input of a band of output rows, and its sums [pixel][16]
//
// Loops: sample and band > 16 families > block of channels > 7 pixels. A unit of the first loop is made by one thread;
// each output is summed in the order of channels and taps, whatever the bands and the threads. The cost does not depend
// on the routing.
//
// A processor whose blends and multiply-adds have ports of their own (AMD since Zen 4) blends for nothing; others would
// take twice as long, and use the lists.
#include <new>

#include "../geometry.h"

#if defined(__AVX512F__)

#include <immintrin.h>

#include "../expert_lists/packing.h"
#include "../scratch.h"

namespace smoe {
namespace family_lanes {
namespace {

using expert_lists::ceil_divide;
using expert_lists::padded_row;
using expert_lists::round_up;

constexpr int kPixels = 7;                  // mask registers, but for the one that means "all"
constexpr int64_t kWeightBytes = 18 << 10;  // of a block of channels: a part of L1
constexpr int64_t kInputBytes = 512 << 10;  // of a band: a part of L2
constexpr int64_t kPair = 2 * kLanes;       // weights of one channel and tap

struct Pixels {
    const float* first[kPixels];  // padded input of the first channel and tap
    __mmask16 masks[kPixels];
};

// One channel and tap.
inline __attribute__((always_inline)) void add_tap(const Pixels& pixels, const float* weights, int64_t place,
                                                   __m512 (&sums)[kPixels]) {
    const __m512 even = _mm512_load_ps(weights), odd = _mm512_load_ps(weights + kLanes);
    __m512 chosen[kPixels];
#pragma GCC unroll 7
    for (int i = 0; i < kPixels; ++i) chosen[i] = _mm512_mask_blend_ps(pixels.masks[i], even, odd);
    // All blends before the first multiply-add: in turns, they would wait for each other (87 instead of 113 GF/s).
    __asm__(""
            : "+v"(chosen[0]), "+v"(chosen[1]), "+v"(chosen[2]), "+v"(chosen[3]), "+v"(chosen[4]), "+v"(chosen[5]),
              "+v"(chosen[6]));
#pragma GCC unroll 7
    for (int i = 0; i < kPixels; ++i) {
        sums[i] = _mm512_fmadd_ps(chosen[i], _mm512_set1_ps(pixels.first[i][place]), sums[i]);
    }
}

class Forward {
 public:
    Forward(const smoe_geometry& geometry, const float* x, const float* weight, const float* bias,
            const int32_t* indices, float* y, uint16_t* masks = nullptr, const float* scale = nullptr,
            const float* offset = nullptr)
        : g_(geometry),
          x_(x),
          weight_(weight),
          bias_(bias),
          indices_(indices),
          y_(y),
          scale_(scale),
          offset_(offset),
          plane_(g_.output_height * g_.output_width),
          blocks_(ceil_divide(g_.selected, kLanes)),
          masks_(masks),
          taps_(g_.kernel_height * g_.kernel_width),
          filter_(g_.channels * taps_),
          padded_width_((g_.output_width - 1) * g_.stride + g_.kernel_width),
          pitch_(round_up(padded_width_, kLanes)) {
        for (int64_t u = 0; u < padded_width_; ++u) {
            if (u < g_.column_padding || u >= g_.column_padding + g_.width) {
                borders_.emplace_back(u, expert_lists::padded_source_column(g_, u));
            }
        }
        for (int64_t row = 0; row < g_.kernel_height; ++row) {
            kernel_rows_.push_back((padded_row(g_, 0, row) - padded_row(g_, 0, 0)) * pitch_);
        }
    }

    // Returns false if an index is not one of its family's.
    bool find_masks() {
        bool is_pairs = true;
#pragma omp parallel for num_threads(g_.threads) schedule(static) reduction(&& : is_pairs)
        for (int64_t block = 0; block < blocks_; ++block) is_pairs = is_pairs && fill_masks(block);
        return is_pairs;
    }

    bool run() {
        static thread_local Scratch mask_scratch, weight_scratch, input_scratch;
        if (masks_ == nullptr) {
            masks_ = static_cast<uint16_t*>(mask_scratch.bytes(blocks_ * plane_ * sizeof(uint16_t)));
            if (!find_masks()) return false;
        }
        packed_weight_ = weight_scratch.floats(blocks_ * filter_ * kPair);
#pragma omp parallel for num_threads(g_.threads) schedule(static)
        for (int64_t block = 0; block < blocks_; ++block) pack_weights(block);

        const int64_t rows = rows_per_band(), bands = ceil_divide(g_.output_height, rows);
        const int64_t sum_floats = round_up(rows * g_.output_width + kPixels, kLanes) * kLanes;
        const int64_t unit_floats = round_up(most_packed_rows(rows) * g_.channels * pitch_, kLanes) + sum_floats;
        float* units = input_scratch.floats(g_.threads * unit_floats);
#pragma omp parallel for num_threads(g_.threads) schedule(dynamic) collapse(2)
        for (int64_t sample = 0; sample < g_.batch; ++sample) {
            for (int64_t band = 0; band < bands; ++band) {
                float* sums = units + expert_lists::thread_number() * unit_floats;
                make_band(sample, band * rows, std::min((band + 1) * rows, g_.output_height), sums, sums + sum_floats);
            }
        }
        return true;
    }

 private:
    bool fill_masks(int64_t block) {
        constexpr int64_t kChunk = 512;
        const int64_t first = block * kLanes, end = std::min(first + kLanes, g_.selected);
        for (int64_t begin = 0; begin < plane_; begin += kChunk) {
            const int64_t count = std::min(kChunk, plane_ - begin);
            uint32_t bits[kChunk] = {}, others = 0;
            for (int64_t s = first; s < end; ++s) {
                const int32_t* chosen = indices_ + s * plane_ + begin;
                const uint32_t even = static_cast<uint32_t>(2 * s);
                for (int64_t i = 0; i < count; ++i) {
                    const uint32_t place = static_cast<uint32_t>(chosen[i]) - even;
                    others |= place;
                    bits[i] |= place << (s - first);
                }
            }
            if (others > 1) return false;
            std::copy_n(bits, count, masks_ + block * plane_ + begin);
        }
        return true;
    }

    void pack_weights(int64_t block) {
        const int64_t families = std::min<int64_t>(kLanes, g_.selected - block * kLanes);
        float* packed = packed_weight_ + block * filter_ * kPair;
        if (families < kLanes) std::memset(packed, 0, filter_ * kPair * sizeof(float));
        for (int64_t expert = 0; expert < 2; ++expert) {
            expert_lists::transpose(weight_ + (block * kPair + expert) * filter_, 2 * filter_, families, filter_,
                                    packed + expert * kLanes, kPair);
        }
    }

    // Padded rows that the output rows [begin, end) read.
    int64_t packed_rows(int64_t begin, int64_t end) const {
        return padded_row(g_, end - 1, g_.kernel_height - 1) - padded_row(g_, begin, 0) + 1;
    }

    int64_t most_packed_rows(int64_t rows) const {
        int64_t most = 0;
        for (int64_t begin = 0; begin < g_.output_height; begin += rows) {
            most = std::max(most, packed_rows(begin, std::min(begin + rows, g_.output_height)));
        }
        return most;
    }

    int64_t rows_per_band() const {
        int64_t rows = ceil_divide(g_.output_height, ceil_divide(g_.threads, g_.batch));
        const auto bytes = [&] {
            return packed_rows(0, rows) * g_.channels * pitch_ * static_cast<int64_t>(sizeof(float));
        };
        // A slice at least: slices of a kernel overlap as wholes.
        const int64_t least = g_.depth > 1 ? std::min(rows, output_slice_height(g_)) : 1;
        while (rows > least && bytes() > kInputBytes) rows = std::max(least, rows / 2);
        return rows;
    }

    void make_band(int64_t sample, int64_t begin, int64_t end, float* sums, float* input) const {
        const int64_t first_row = padded_row(g_, begin, 0), rows = packed_rows(begin, end);
        const int64_t channel_pitch = rows * pitch_;
        pack_input(x_ + sample * g_.channels * g_.height * g_.width, first_row, rows, input);
        const int64_t first_pixel = begin * g_.output_width, pixels = (end - begin) * g_.output_width;
        const int64_t most = std::max<int64_t>(kWeightBytes / (taps_ * kPair * 4), 1);
        const int64_t parts = ceil_divide(g_.channels, most);
        std::vector<int64_t> offsets;  // of the pixels' first taps
        for (int64_t row = begin; row < end; ++row) {
            const int64_t start = (padded_row(g_, row, 0) - first_row) * pitch_;
            for (int64_t x = 0; x < g_.output_width; ++x) offsets.push_back(start + x * g_.stride);
        }
        for (int64_t block = 0; block < blocks_; ++block) {
            const uint16_t* masks = masks_ + block * plane_ + first_pixel;
            start_sums(block, masks, pixels, sums);
            for (int64_t part = 0; part < parts; ++part) {
                const int64_t c = g_.channels * part / parts, count = g_.channels * (part + 1) / parts - c;
                const float* weights = packed_weight_ + (block * g_.channels + c) * taps_ * kPair;
                const float* ahead = weights + count * taps_ * kPair;
                const int64_t lines = round_up(count * taps_ * kPair / ceil_divide(pixels, kPixels), kLanes);
                for (int64_t pixel = 0; pixel < pixels; pixel += kPixels) {
                    Pixels group;
                    for (int64_t i = 0; i < kPixels; ++i) {
                        // The last group repeats its last pixel; the sums have room for it.
                        const int64_t number = std::min(pixel + i, pixels - 1);
                        group.first[i] = input + c * channel_pitch + offsets[number];
                        group.masks[i] = masks[number];
                    }
                    // The weights of the next part are on their way while those of this one are used.
                    for (const float* end = ahead + lines; ahead < end; ahead += kLanes)
                        __builtin_prefetch(ahead, 0, 2);
                    float* place = sums + pixel * kLanes;
                    if (g_.kernel_width == 3) {
                        add_channels<3>(group, weights, count, channel_pitch, place);
                    } else if (g_.kernel_width == 1) {
                        add_channels<1>(group, weights, count, channel_pitch, place);
                    } else {
                        add_channels<0>(group, weights, count, channel_pitch, place);
                    }
                }
            }
            write(sample, block, first_pixel, pixels, sums);
        }
    }

    void pack_input(const float* x, int64_t first_row, int64_t rows, float* target) const {
        std::vector<int64_t> sources;
        for (int64_t i = 0; i < rows; ++i) sources.push_back(expert_lists::padded_source_row(g_, first_row + i));
        const int64_t left = g_.column_padding, width = std::min(g_.width, padded_width_ - left);
        for (int64_t c = 0; c < g_.channels; ++c, x += g_.height * g_.width) {
            for (int64_t i = 0; i < rows; ++i, target += pitch_) {
                if (sources[i] < 0) {
                    std::memset(target, 0, padded_width_ * sizeof(float));
                    continue;
                }
                const float* row = x + sources[i] * g_.width;
                expert_lists::copy_floats(row, width, target + left);
                for (const auto& [column, source] : borders_) target[column] = source < 0 ? 0.0f : row[source];
            }
        }
    }

    void start_sums(int64_t block, const uint16_t* masks, int64_t pixels, float* sums) const {
        alignas(64) float biases[2][kLanes] = {};
        const int64_t families = std::min<int64_t>(kLanes, g_.selected - block * kLanes);
        for (int64_t i = 0; bias_ != nullptr && i < families; ++i) {
            for (int64_t expert = 0; expert < 2; ++expert) biases[expert][i] = bias_[block * kPair + 2 * i + expert];
        }
        const __m512 even = _mm512_load_ps(biases[0]), odd = _mm512_load_ps(biases[1]);
        for (int64_t i = 0; i < pixels; ++i) {
            _mm512_store_ps(sums + i * kLanes, _mm512_mask_blend_ps(masks[i], even, odd));
        }
    }

    template <int kColumns>  // of the kernel; 0: any number
    void add_channels(const Pixels& pixels, const float* weights, int64_t channels, int64_t channel_pitch,
                      float* place) const {
        __m512 sums[kPixels];
#pragma GCC unroll 7
        for (int i = 0; i < kPixels; ++i) sums[i] = _mm512_load_ps(place + i * kLanes);
        const int64_t columns = kColumns > 0 ? kColumns : g_.kernel_width;
        const int64_t *rows = kernel_rows_.data(), *end = rows + kernel_rows_.size();
        for (int64_t c = 0; c < channels; ++c) {
            for (const int64_t* row = rows; row < end; ++row) {
                const int64_t start = c * channel_pitch + *row;
#pragma GCC unroll 3
                for (int64_t column = 0; column < columns; ++column, weights += kPair) {
                    add_tap(pixels, weights, start + column, sums);
                }
            }
        }
#pragma GCC unroll 7
        for (int i = 0; i < kPixels; ++i) _mm512_store_ps(place + i * kLanes, sums[i]);
    }

    void write(int64_t sample, int64_t block, int64_t first_pixel, int64_t pixels, const float* sums) const {
        const int64_t families = std::min<int64_t>(kLanes, g_.selected - block * kLanes);
        const int64_t first = block * kLanes * plane_ + first_pixel;
        float* y = y_ + sample * g_.selected * plane_ + first;
        for (int64_t pixel = 0; pixel < pixels; pixel += kLanes, sums += kLanes * kLanes) {
            const int64_t count = std::min<int64_t>(kLanes, pixels - pixel);
            if (families == kLanes && count == kLanes && scale_ == nullptr) {
                expert_lists::transpose_square(sums, kLanes, y + pixel, plane_);
                continue;
            }
            float turned[kLanes * kLanes];
            expert_lists::transpose_square(sums, kLanes, turned, kLanes);
            for (int64_t i = 0; i < families; ++i) {
                const float* values = turned + i * kLanes;
                const int64_t place = i * plane_ + pixel;
                if (scale_ == nullptr) {
                    std::copy_n(values, count, y + place);
                    continue;
                }
                const float *scale = scale_ + first + place, *offset = offset_ + first + place;
                for (int64_t j = 0; j < count; ++j) y[place + j] = offset[j] + scale[j] * values[j];
            }
        }
    }

    const smoe_geometry g_;
    const float *x_, *weight_, *bias_;
    const int32_t* indices_;
    float* y_;
    const float *scale_, *offset_;  // of each output and pixel, or none
    const int64_t plane_;           // output pixels
    const int64_t blocks_;          // of 16 families
    uint16_t* masks_;               // [block][pixel]
    const int64_t taps_, filter_;
    const int64_t padded_width_, pitch_;                // of a padded row, and from one to the next
    std::vector<std::pair<int64_t, int64_t>> borders_;  // padded columns beyond the input, and what they repeat, or -1
    std::vector<int64_t> kernel_rows_;
    float* packed_weight_ = nullptr;
};

}  // namespace
}  // namespace family_lanes
}  // namespace smoe

#endif

extern "C" {

// y = offset + scale * output where a scale is given. The masks may be given, or are found in the indices.
int smoe_family_infer(const smoe_geometry* geometry, const float* x, const float* weight, const float* bias,
                      const int32_t* indices, uint16_t* masks, const float* scale, const float* offset, float* y) {
#if defined(__AVX512F__)
    try {
        smoe::family_lanes::Forward work(*geometry, x, weight, bias, indices, y, masks, scale, offset);
        return work.run() ? 0 : 2;
    } catch (const std::bad_alloc&) {
        return 1;
    }
#else
    static_cast<void>(geometry), static_cast<void>(x), static_cast<void>(weight), static_cast<void>(bias);
    static_cast<void>(indices), static_cast<void>(masks), static_cast<void>(scale), static_cast<void>(offset);
    static_cast<void>(y);
    return 2;
#endif
}

// Returns 0 if this processor is known to blend beside multiply-adds, else 2.
int smoe_family_is_fast(void) {
#if defined(__AVX512F__)
    return __builtin_cpu_is("amd") ? 0 : 2;
#else
    return 2;
#endif
}

// Returns 2 if the routing does not select one of two neighbours for each family, and leaves y alone.
int smoe_family_forward(const smoe_geometry* geometry, const float* x, const float* weight, const float* bias,
                        const int32_t* indices, float* y) {
    return smoe_family_infer(geometry, x, weight, bias, indices, nullptr, nullptr, nullptr, y);
}

// The masks of a routing, `ceil(E / 16)` for each pixel, for smoe_family_infer(). Returns 2 as above.
int smoe_family_masks(const smoe_geometry* geometry, const int32_t* indices, uint16_t* masks) {
#if defined(__AVX512F__)
    smoe::family_lanes::Forward work(*geometry, nullptr, nullptr, nullptr, indices, nullptr, masks);
    return work.find_masks() ? 0 : 2;
#else
    static_cast<void>(geometry), static_cast<void>(indices), static_cast<void>(masks);
    return 2;
#endif
}

}  // extern "C"
