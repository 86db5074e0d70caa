// Forward pass of families of two experts: family s has the experts 2 s and 2 s + 1, and each pixel selects one of
// them.
//
//   y[b, s, p] = bias[e] + sum over c, t of weight[e, c, t] * x[b, c, source(p, t)],  e = indices[s, p]
//
//   lanes      16 families; a bit of a mask for each family and pixel says which expert is selected
//   registers  sums of 6 pixels; per channel and tap both experts' weights are loaded once, and for each pixel blended
//              by its mask and multiplied by its input, which is broadcast; with 3 x 3 taps, sums of the same 6 pixels
//              of two samples, which share the blends
//   L1         the weights of a slice of the kernel and a block of channels, [c][tap][2][16], used by all pixels of a
//   band L2         the padded input of a band of output rows, and its sums [pixel][16]
//
// Loops: one or two samples and band > 16 families > slice of the kernel > block of channels > 6 pixels. A unit of the
// first loop is made by one thread; each output is summed in the order of slices, channels and taps, whatever the bands
// and the threads. The cost does not depend on the routing.
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

constexpr int kPixels = 6;                  // with 7, as many as there are masks, an odd number of blends waits
constexpr int64_t kWeightBytes = 18 << 10;  // of a block of channels: a part of L1
constexpr int64_t kBandFloats = 192 << 10;  // of a band: a part of L2
constexpr int64_t kPair = 2 * kLanes;       // weights of one channel and tap

// A group of pixels: the places of their first taps, from the first float of a channel on, and their masks.
struct Pixels {
    const int64_t* places;
    const uint16_t* masks;
};

// One channel and tap.
inline __attribute__((always_inline)) void add_tap(const Pixels& pixels, const float* weights, const float* input,
                                                   __m512 (&sums)[kPixels]) {
    const __m512 even = _mm512_load_ps(weights), odd = _mm512_load_ps(weights + kLanes);
    for (int i = 0; i < kPixels; ++i) {
        const __m512 chosen = _mm512_mask_blend_ps(pixels.masks[i], even, odd);
        sums[i] = _mm512_fmadd_ps(chosen, _mm512_set1_ps(input[pixels.places[i]]), sums[i]);
    }
}

// The channels of a 3 x 3 kernel, whose second and third rows of the input lie `second` and `third` floats after the
// first. In assembly, because the blends of a tap must all stand before its multiply-adds (in turns, they wait for each
// other on Zen 4: 91 instead of 113 GF/s), and because GCC moves addresses and masks in and out of registers. Taps add
// to two sums by turns: six would wait for their own last multiply-add where two of them begin in a cycle. If the
// pixels are neighbours (kRun), the 8 inputs of a kernel's row are loaded once for its 3 taps. The order of a sum is
// the same either way.
// clang-format off
#define SMOE_BLEND(n, mask) "vblendmps %%zmm21, %%zmm20, %%zmm" #n "%{%%k" #mask "%}\n\t"
#define SMOE_WEIGHTS(tap)                               \
    "vmovaps 128*" #tap "(%[weights]), %%zmm20\n\t"     \
    "vmovaps 128*" #tap "+64(%[weights]), %%zmm21\n\t"  \
    SMOE_BLEND(22, 1) SMOE_BLEND(23, 2) SMOE_BLEND(24, 3) SMOE_BLEND(25, 4) SMOE_BLEND(26, 5) SMOE_BLEND(27, 6)
#define SMOE_ADD(sum, n, x) "vfmadd231ps %%zmm" #x ", %%zmm" #n ", %%zmm" #sum "\n\t"
#define SMOE_EVEN(tap, x0, x1, x2, x3, x4, x5) SMOE_WEIGHTS(tap)                                              \
    SMOE_ADD(0, 22, x0) SMOE_ADD(1, 23, x1) SMOE_ADD(2, 24, x2)                                               \
    SMOE_ADD(3, 25, x3) SMOE_ADD(4, 26, x4) SMOE_ADD(5, 27, x5)
#define SMOE_ODD(tap, x0, x1, x2, x3, x4, x5) SMOE_WEIGHTS(tap)                                               \
    SMOE_ADD(6, 22, x0) SMOE_ADD(7, 23, x1) SMOE_ADD(8, 24, x2)                                               \
    SMOE_ADD(9, 25, x3) SMOE_ADD(10, 26, x4) SMOE_ADD(11, 27, x5)
#define SMOE_INPUT(n, row, column) "vbroadcastss 4*" #column "(%[" #row "]), %%zmm" #n "\n\t"
#define SMOE_RUN_ROW(FIRST, SECOND, tap0, tap1, tap2, row)                                                    \
    SMOE_INPUT(12, row, 0) SMOE_INPUT(13, row, 1) SMOE_INPUT(14, row, 2) SMOE_INPUT(15, row, 3)               \
    SMOE_INPUT(16, row, 4) SMOE_INPUT(17, row, 5) SMOE_INPUT(18, row, 6) SMOE_INPUT(19, row, 7)               \
    FIRST(tap0, 12, 13, 14, 15, 16, 17) SECOND(tap1, 13, 14, 15, 16, 17, 18) FIRST(tap2, 14, 15, 16, 17, 18, 19)
#define SMOE_FAR(sum, n, i, row, column) \
    "vfmadd231ps 4*" #column "(%[" #row "],%[place" #i "],4)%{1to16%}, %%zmm" #n ", %%zmm" #sum "\n\t"
#define SMOE_FAR_EVEN(tap, row, column) SMOE_WEIGHTS(tap)                                                     \
    SMOE_FAR(0, 22, 0, row, column) SMOE_FAR(1, 23, 1, row, column) SMOE_FAR(2, 24, 2, row, column)           \
    SMOE_FAR(3, 25, 3, row, column) SMOE_FAR(4, 26, 4, row, column) SMOE_FAR(5, 27, 5, row, column)
#define SMOE_FAR_ODD(tap, row, column) SMOE_WEIGHTS(tap)                                                      \
    SMOE_FAR(6, 22, 0, row, column) SMOE_FAR(7, 23, 1, row, column) SMOE_FAR(8, 24, 2, row, column)           \
    SMOE_FAR(9, 25, 3, row, column) SMOE_FAR(10, 26, 4, row, column) SMOE_FAR(11, 27, 5, row, column)
#define SMOE_FIRST_SUM(n) "vmovaps 64*" #n "(%[sums]), %%zmm" #n "\n\t"
#define SMOE_LAST_SUM(n, other) \
    "vaddps %%zmm" #other ", %%zmm" #n ", %%zmm" #n "\n\tvmovaps %%zmm" #n ", 64*" #n "(%[sums])\n\t"
#define SMOE_NO_SUM(n) "vpxor %%xmm" #n ", %%xmm" #n ", %%xmm" #n "\n\t"
#define SMOE_BEGIN                                                                                            \
    "kmovw (%[masks]), %%k1\n\tkmovw 2(%[masks]), %%k2\n\tkmovw 4(%[masks]), %%k3\n\t"                        \
    "kmovw 6(%[masks]), %%k4\n\tkmovw 8(%[masks]), %%k5\n\tkmovw 10(%[masks]), %%k6\n\t"                      \
    SMOE_FIRST_SUM(0) SMOE_FIRST_SUM(1) SMOE_FIRST_SUM(2) SMOE_FIRST_SUM(3) SMOE_FIRST_SUM(4) SMOE_FIRST_SUM(5) \
    SMOE_NO_SUM(6) SMOE_NO_SUM(7) SMOE_NO_SUM(8) SMOE_NO_SUM(9) SMOE_NO_SUM(10) SMOE_NO_SUM(11)               \
    ".p2align 6\n1:\n\t"
#define SMOE_END                                                                                              \
    "add %[pitch], %[row0]\n\tadd %[pitch], %[row1]\n\tadd %[pitch], %[row2]\n\t"                             \
    "add $128*9, %[weights]\n\tdec %[channels]\n\tjnz 1b\n\t"                                                 \
    SMOE_LAST_SUM(0, 6) SMOE_LAST_SUM(1, 7) SMOE_LAST_SUM(2, 8)                                               \
    SMOE_LAST_SUM(3, 9) SMOE_LAST_SUM(4, 10) SMOE_LAST_SUM(5, 11)
#define SMOE_REGISTERS                                                                                        \
    "cc", "memory", "k1", "k2", "k3", "k4", "k5", "k6", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5",       \
    "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17",   \
    "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27"

// The inputs of 6 neighbours in two samples: a tap needs one more of each, in place of one that is not needed again.
#define SMOE_ADD_TWO(x0, x1, x2, x3, x4, x5, y0, y1, y2, y3, y4, y5)                                          \
    SMOE_ADD(0, 26, x0) SMOE_ADD(1, 27, x1) SMOE_ADD(2, 28, x2)                                               \
    SMOE_ADD(3, 29, x3) SMOE_ADD(4, 30, x4) SMOE_ADD(5, 31, x5)                                               \
    SMOE_ADD(6, 26, y0) SMOE_ADD(7, 27, y1) SMOE_ADD(8, 28, y2)                                               \
    SMOE_ADD(9, 29, y3) SMOE_ADD(10, 30, y4) SMOE_ADD(11, 31, y5)
#define SMOE_BLEND_TWO(n, mask) "vblendmps %%zmm25, %%zmm24, %%zmm" #n "%{%%k" #mask "%}\n\t"
#define SMOE_WEIGHTS_TWO(tap)                           \
    "vmovaps 128*" #tap "(%[weights]), %%zmm24\n\t"     \
    "vmovaps 128*" #tap "+64(%[weights]), %%zmm25\n\t"  \
    SMOE_BLEND_TWO(26, 1) SMOE_BLEND_TWO(27, 2) SMOE_BLEND_TWO(28, 3)                                         \
    SMOE_BLEND_TWO(29, 4) SMOE_BLEND_TWO(30, 5) SMOE_BLEND_TWO(31, 6)
#define SMOE_ROW_TWO(tap0, tap1, tap2, row, other)                                                            \
    SMOE_INPUT(12, row, 0) SMOE_INPUT(13, row, 1) SMOE_INPUT(14, row, 2)                                      \
    SMOE_INPUT(15, row, 3) SMOE_INPUT(16, row, 4) SMOE_INPUT(17, row, 5)                                      \
    SMOE_INPUT(18, other, 0) SMOE_INPUT(19, other, 1) SMOE_INPUT(20, other, 2)                                \
    SMOE_INPUT(21, other, 3) SMOE_INPUT(22, other, 4) SMOE_INPUT(23, other, 5)                                \
    SMOE_WEIGHTS_TWO(tap0) SMOE_ADD_TWO(12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23)                       \
    SMOE_INPUT(12, row, 6) SMOE_INPUT(18, other, 6)                                                           \
    SMOE_WEIGHTS_TWO(tap1) SMOE_ADD_TWO(13, 14, 15, 16, 17, 12, 19, 20, 21, 22, 23, 18)                       \
    SMOE_INPUT(13, row, 7) SMOE_INPUT(19, other, 7)                                                           \
    SMOE_WEIGHTS_TWO(tap2) SMOE_ADD_TWO(14, 15, 16, 17, 12, 13, 20, 21, 22, 23, 18, 19)
#define SMOE_SUMS_TWO(DO)                                                                                     \
    DO(0, 0, sums) DO(1, 1, sums) DO(2, 2, sums) DO(3, 3, sums) DO(4, 4, sums) DO(5, 5, sums)                 \
    DO(6, 0, others) DO(7, 1, others) DO(8, 2, others) DO(9, 3, others) DO(10, 4, others) DO(11, 5, others)
#define SMOE_LOAD_SUM(n, place, of) "vmovaps 64*" #place "(%[" #of "]), %%zmm" #n "\n\t"
#define SMOE_STORE_SUM(n, place, of) "vmovaps %%zmm" #n ", 64*" #place "(%[" #of "])\n\t"

// Of neighbouring pixels in two samples, which lie `next_input` and `next_sums` floats apart.
inline void add_channels_of_two(const Pixels& pixels, const float* weights, int64_t channels, int64_t channel_pitch,
                                const float* input, int64_t second, int64_t third, int64_t next_input, float* sums,
                                int64_t next_sums) {
    const int64_t pitch = channel_pitch * static_cast<int64_t>(sizeof(float));
    const float *row0 = input + pixels.places[0], *row1 = row0 + second, *row2 = row0 + third;
    const float *other0 = row0 + next_input, *other1 = row1 + next_input, *other2 = row2 + next_input;
    __asm__ volatile(
        "kmovw (%[masks]), %%k1\n\tkmovw 2(%[masks]), %%k2\n\tkmovw 4(%[masks]), %%k3\n\t"
        "kmovw 6(%[masks]), %%k4\n\tkmovw 8(%[masks]), %%k5\n\tkmovw 10(%[masks]), %%k6\n\t"
        SMOE_SUMS_TWO(SMOE_LOAD_SUM)
        ".p2align 6\n1:\n\t"
        SMOE_ROW_TWO(0, 1, 2, row0, other0) SMOE_ROW_TWO(3, 4, 5, row1, other1) SMOE_ROW_TWO(6, 7, 8, row2, other2)
        "add %[pitch], %[row0]\n\tadd %[pitch], %[row1]\n\tadd %[pitch], %[row2]\n\t"
        "add %[pitch], %[other0]\n\tadd %[pitch], %[other1]\n\tadd %[pitch], %[other2]\n\t"
        "add $128*9, %[weights]\n\tdec %[channels]\n\tjnz 1b\n\t"
        SMOE_SUMS_TWO(SMOE_STORE_SUM)
        : [row0] "+r"(row0), [row1] "+r"(row1), [row2] "+r"(row2), [other0] "+r"(other0), [other1] "+r"(other1),
          [other2] "+r"(other2), [weights] "+r"(weights), [channels] "+r"(channels)
        : [pitch] "r"(pitch), [masks] "r"(pixels.masks), [sums] "r"(sums), [others] "r"(sums + next_sums)
        : SMOE_REGISTERS, "xmm28", "xmm29", "xmm30", "xmm31");
}

// The pixels are neighbours, or lie anywhere; then taps add to two sums by turns as well, or to one, as in pairs.
enum class Order { kRun, kTurns, kOne };

template <Order kOrder>
inline void add_channels_3x3(const Pixels& pixels, const float* weights, int64_t channels, int64_t channel_pitch,
                             const float* input, int64_t second, int64_t third, float* sums) {
    const int64_t pitch = channel_pitch * static_cast<int64_t>(sizeof(float)), *places = pixels.places;
    if (kOrder == Order::kRun) input += places[0];
    const float *row0 = input, *row1 = input + second, *row2 = input + third;
    if (kOrder == Order::kRun) {
        __asm__ volatile(
            SMOE_BEGIN
            SMOE_RUN_ROW(SMOE_EVEN, SMOE_ODD, 0, 1, 2, row0)
            SMOE_RUN_ROW(SMOE_ODD, SMOE_EVEN, 3, 4, 5, row1)
            SMOE_RUN_ROW(SMOE_EVEN, SMOE_ODD, 6, 7, 8, row2)
            SMOE_END
            : [row0] "+r"(row0), [row1] "+r"(row1), [row2] "+r"(row2), [weights] "+r"(weights),
              [channels] "+r"(channels)
            : [pitch] "r"(pitch), [masks] "r"(pixels.masks), [sums] "r"(sums)
            : SMOE_REGISTERS);
    } else if (kOrder == Order::kTurns) {
        __asm__ volatile(
            SMOE_BEGIN
            SMOE_FAR_EVEN(0, row0, 0) SMOE_FAR_ODD(1, row0, 1) SMOE_FAR_EVEN(2, row0, 2)
            SMOE_FAR_ODD(3, row1, 0) SMOE_FAR_EVEN(4, row1, 1) SMOE_FAR_ODD(5, row1, 2)
            SMOE_FAR_EVEN(6, row2, 0) SMOE_FAR_ODD(7, row2, 1) SMOE_FAR_EVEN(8, row2, 2)
            SMOE_END
            : [row0] "+r"(row0), [row1] "+r"(row1), [row2] "+r"(row2), [weights] "+r"(weights),
              [channels] "+r"(channels)
            : [place0] "r"(places[0]), [place1] "r"(places[1]), [place2] "r"(places[2]), [place3] "r"(places[3]),
              [place4] "r"(places[4]), [place5] "r"(places[5]), [pitch] "m"(pitch), [masks] "r"(pixels.masks),
              [sums] "r"(sums)
            : SMOE_REGISTERS);
    } else {
        __asm__ volatile(
            SMOE_BEGIN
            SMOE_FAR_EVEN(0, row0, 0) SMOE_FAR_EVEN(1, row0, 1) SMOE_FAR_EVEN(2, row0, 2)
            SMOE_FAR_EVEN(3, row1, 0) SMOE_FAR_EVEN(4, row1, 1) SMOE_FAR_EVEN(5, row1, 2)
            SMOE_FAR_EVEN(6, row2, 0) SMOE_FAR_EVEN(7, row2, 1) SMOE_FAR_EVEN(8, row2, 2)
            SMOE_END
            : [row0] "+r"(row0), [row1] "+r"(row1), [row2] "+r"(row2), [weights] "+r"(weights),
              [channels] "+r"(channels)
            : [place0] "r"(places[0]), [place1] "r"(places[1]), [place2] "r"(places[2]), [place3] "r"(places[3]),
              [place4] "r"(places[4]), [place5] "r"(places[5]), [pitch] "m"(pitch), [masks] "r"(pixels.masks),
              [sums] "r"(sums)
            : SMOE_REGISTERS);
    }
}
// clang-format on

class Forward {
 public:
    Forward(const smoe_geometry& geometry, const float* x, const float* weight, const float* bias,
            const int32_t* indices, float* y, uint16_t* masks = nullptr, const float* scale = nullptr,
            const float* offset = nullptr, float* z = nullptr)
        : g_(geometry),
          x_(x),
          weight_(weight),
          bias_(bias),
          indices_(indices),
          y_(y),
          scale_(scale),
          offset_(offset),
          z_(z == nullptr ? y : z),
          plane_(g_.output_height * g_.output_width),
          blocks_(ceil_divide(g_.selected, kLanes)),
          masks_(masks),
          taps_(g_.kernel_height * g_.kernel_width),
          filter_(g_.channels * taps_),
          slice_taps_(taps_ / g_.kernel_depth),
          is_3x3_(g_.kernel_width == 3 && kernel_slice_height(g_) == 3),
          together_(is_3x3_ ? std::min<int64_t>(g_.batch, 2) : 1),
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
        Scratch scratch;
        if (masks_ == nullptr) {
            masks_ = static_cast<uint16_t*>(scratch.bytes(blocks_ * plane_ * sizeof(uint16_t)));
            if (!find_masks()) return false;
        }
        packed_weight_ = scratch.floats(blocks_ * filter_ * kPair);
#pragma omp parallel for num_threads(g_.threads) schedule(static)
        for (int64_t block = 0; block < blocks_; ++block) pack_weights(block);

        const int64_t rows = rows_per_band(), bands = ceil_divide(g_.output_height, rows);
        sum_floats_ = round_up(rows * g_.output_width + kPixels, kLanes) * kLanes;
        input_floats_ = round_up(most_packed_rows(rows) * g_.channels * pitch_, kLanes);
        const int64_t unit_floats = together_ * (sum_floats_ + input_floats_);
        float* units = scratch.floats(g_.threads * unit_floats);
#pragma omp parallel for num_threads(g_.threads) schedule(dynamic) collapse(2)
        for (int64_t sample = 0; sample < g_.batch; sample += together_) {
            for (int64_t band = 0; band < bands; ++band) {
                float* sums = units + expert_lists::thread_number() * unit_floats;
                make_band(sample, std::min(g_.batch - sample, together_), band * rows,
                          std::min((band + 1) * rows, g_.output_height), sums, sums + together_ * sum_floats_);
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
            const float* filters = weight_ + (block * kPair + expert) * filter_;
            // The taps of a slice of the kernel are together.
            const int64_t rows = g_.kernel_depth == 1 ? 1 : g_.channels, count = filter_ / (rows * g_.kernel_depth);
            for (int64_t i = 0; i < g_.kernel_depth * rows; ++i) {
                expert_lists::transpose(filters + (i % rows * g_.kernel_depth + i / rows) * count, 2 * filter_,
                                        families, count, packed + i * count * kPair + expert * kLanes, kPair);
            }
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
        const int64_t units = ceil_divide(g_.batch, together_);
        const int64_t most = ceil_divide(g_.output_height, ceil_divide(g_.threads, units));
        // A slice at least: slices of a kernel overlap as wholes.
        const int64_t least = g_.depth > 1 ? std::min(most, output_slice_height(g_)) : 1;
        // Input, sums of 16 families, and the outputs.
        const auto floats = [&](int64_t rows) {
            return together_ *
                   (packed_rows(0, rows) * g_.channels * pitch_ + rows * g_.output_width * (kLanes + g_.selected));
        };
        int64_t rows = most;
        while (rows > least && floats(rows) > kBandFloats) --rows;
        return ceil_divide(most, ceil_divide(most, rows));
    }

    void make_band(int64_t first_sample, int64_t samples, int64_t begin, int64_t end, float* sums, float* input) const {
        const int64_t first_row = padded_row(g_, begin, 0), rows = packed_rows(begin, end);
        const int64_t channel_pitch = rows * pitch_;
        for (int64_t i = 0; i < samples; ++i) {
            const float* x = x_ + (first_sample + i) * g_.channels * g_.height * g_.width;
            pack_input(x, first_row, rows, input + i * input_floats_);
        }
        const int64_t first_pixel = begin * g_.output_width, pixels = (end - begin) * g_.output_width;
        const int64_t most = std::max<int64_t>(kWeightBytes / (slice_taps_ * kPair * 4), 1);
        const int64_t channel_blocks = ceil_divide(g_.channels, most), groups = ceil_divide(pixels, kPixels);
        const int64_t parts = g_.kernel_depth * channel_blocks;
        std::vector<int64_t> places;
        for (int64_t row = begin; row < end; ++row) {
            const int64_t start = (padded_row(g_, row, 0) - first_row) * pitch_;
            for (int64_t x = 0; x < g_.output_width; ++x) places.push_back(start + x * g_.stride);
        }
        // The last group repeats its last pixel, and the sums have room for it; its masks are those of no pixel.
        places.resize(groups * kPixels, places.back());
        for (int64_t block = 0; block < blocks_; ++block) {
            const uint16_t* masks = masks_ + block * plane_ + first_pixel;
            uint16_t last_masks[kPixels] = {};
            std::copy(masks + (groups - 1) * kPixels, masks + pixels, last_masks);
            for (int64_t i = 0; i < samples; ++i) start_sums(block, masks, pixels, sums + i * sum_floats_);
            for (int64_t part = 0; part < parts; ++part) {
                const int64_t slice = part / channel_blocks, place = part % channel_blocks;
                const int64_t c = g_.channels * place / channel_blocks;
                const int64_t count = g_.channels * (place + 1) / channel_blocks - c;
                const float* weights =
                    packed_weight_ + ((block * g_.kernel_depth + slice) * g_.channels + c) * slice_taps_ * kPair;
                const float* ahead = weights + count * slice_taps_ * kPair;
                const int64_t lines = round_up(count * slice_taps_ * kPair / groups, kLanes);
                const float* part_input = input + c * channel_pitch + kernel_rows_[slice * kernel_slice_height(g_)];
                for (int64_t group = 0; group < groups; ++group) {
                    const int64_t pixel = group * kPixels;
                    const Pixels them{places.data() + pixel, group + 1 < groups ? masks + pixel : last_masks};
                    // On their way while this group is made: the weights of the next part, and the outputs.
                    for (const float* end = ahead + lines; ahead < end; ahead += kLanes)
                        __builtin_prefetch(ahead, 0, 2);
                    for (int64_t i = 0; part + 1 == parts && i < samples; ++i) {
                        prefetch_outputs(first_sample + i, block, first_pixel, pixels, group, groups);
                    }
                    float* places_sums = sums + pixel * kLanes;
                    if (samples == 2 && is_run(them)) {
                        add_channels_of_two(them, weights, count, channel_pitch, part_input, kernel_rows_[1],
                                            kernel_rows_[2], input_floats_, places_sums, sum_floats_);
                        continue;
                    }
                    for (int64_t i = 0; i < samples; ++i) {
                        add_channels(them, samples, weights, count, channel_pitch, part_input + i * input_floats_,
                                     places_sums + i * sum_floats_);
                    }
                }
            }
            for (int64_t i = 0; i < samples; ++i) {
                write(first_sample + i, block, first_pixel, pixels, sums + i * sum_floats_);
            }
        }
        for (int64_t i = 0; scale_ != nullptr && i < samples; ++i) scale_band(first_sample + i, first_pixel, pixels);
    }

    // A share of what write() writes of a band, in its order. Channels lie apart, so that no processor foresees it.
    void prefetch_outputs(int64_t sample, int64_t block, int64_t first_pixel, int64_t pixels, int64_t group,
                          int64_t groups) const {
        const int64_t families = std::min<int64_t>(kLanes, g_.selected - block * kLanes);
        const int64_t lines = ceil_divide(pixels, kLanes) * families;
        const float* first = z_ + (sample * g_.selected + block * kLanes) * plane_ + first_pixel;
        for (int64_t line = lines * group / groups; line < lines * (group + 1) / groups; ++line) {
            __builtin_prefetch(first + line % families * plane_ + line / families * kLanes, 1, 2);
        }
    }

    // The local affine map of a band, while its outputs are in L2.
    void scale_band(int64_t sample, int64_t first_pixel, int64_t pixels) const {
        for (int64_t s = 0; s < g_.selected; ++s) {
            const int64_t first = s * plane_ + first_pixel;
            const float *scale = scale_ + first, *offset = offset_ + first;
            const float* source = z_ + sample * g_.selected * plane_ + first;
            float* target = y_ + sample * g_.selected * plane_ + first;
#pragma omp simd
            for (int64_t i = 0; i < pixels; ++i) target[i] = offset[i] + scale[i] * source[i];
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
                // On its way: the row of the next channel, which lies so far apart that no processor foresees it.
                const float* next = row + g_.height * g_.width;
                for (int64_t u = 0; u < width; u += kLanes) __builtin_prefetch(next + u);
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

    // Whether pixels are neighbours: places ascend, but where the last pixel is repeated.
    static bool is_run(const Pixels& pixels) {
        const int64_t *first = pixels.places, *last = first + kPixels - 1;
        return *last - *first == kPixels - 1 && *last != last[-1];
    }

    // Of one sample of those that are together.
    void add_channels(const Pixels& pixels, int64_t samples, const float* weights, int64_t channels,
                      int64_t channel_pitch, const float* input, float* place) const {
        if (is_3x3_) {
            // Not by turns in pairs: the order of a sum must not follow from where a band, and so a group, begins.
            const auto add = samples == 2     ? add_channels_3x3<Order::kOne>
                             : is_run(pixels) ? add_channels_3x3<Order::kRun>
                                              : add_channels_3x3<Order::kTurns>;
            add(pixels, weights, channels, channel_pitch, input, kernel_rows_[1], kernel_rows_[2], place);
            return;
        }
        __m512 sums[kPixels];
        for (int i = 0; i < kPixels; ++i) sums[i] = _mm512_load_ps(place + i * kLanes);
        for (int64_t c = 0; c < channels; ++c, input += channel_pitch) {
            for (int64_t row = 0; row < kernel_slice_height(g_); ++row) {
                for (int64_t column = 0; column < g_.kernel_width; ++column, weights += kPair) {
                    add_tap(pixels, weights, input + kernel_rows_[row] + column, sums);
                }
            }
        }
        for (int i = 0; i < kPixels; ++i) _mm512_store_ps(place + i * kLanes, sums[i]);
    }

    void write(int64_t sample, int64_t block, int64_t first_pixel, int64_t pixels, const float* sums) const {
        const int64_t families = std::min<int64_t>(kLanes, g_.selected - block * kLanes);
        float* z = z_ + (sample * g_.selected + block * kLanes) * plane_ + first_pixel;
        for (int64_t pixel = 0; pixel < pixels; pixel += kLanes, sums += kLanes * kLanes) {
            const int64_t count = std::min<int64_t>(kLanes, pixels - pixel);
            if (families == kLanes && count == kLanes) {
                expert_lists::transpose_square(sums, kLanes, z + pixel, plane_);
                continue;
            }
            alignas(64) float turned[kLanes * kLanes];
            expert_lists::transpose_square(sums, kLanes, turned, kLanes);
            for (int64_t i = 0; i < families; ++i) {
                std::memcpy(z + i * plane_ + pixel, turned + i * kLanes, count * sizeof(float));
            }
        }
    }

    const smoe_geometry g_;
    const float *x_, *weight_, *bias_;
    const int32_t* indices_;
    float* y_;
    const float *scale_, *offset_;                      // of each output and pixel, or none
    float* z_;                                          // what is scaled; y itself if it is not kept
    const int64_t plane_;                               // output pixels
    const int64_t blocks_;                              // of 16 families
    uint16_t* masks_;                                   // [block][pixel]
    const int64_t taps_, filter_, slice_taps_;          // taps_ of all slices of the kernel
    const bool is_3x3_;                                 // each slice of the kernel
    const int64_t together_;                            // samples that share the blends
    int64_t sum_floats_ = 0, input_floats_ = 0;         // of a sample's band
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

// y = offset + scale * z where a scale is given, and then the output z is stored too unless it is null. The masks may
// be given, or are found in the indices.
int smoe_family_layer(const smoe_geometry* geometry, const float* x, const float* weight, const float* bias,
                      const int32_t* indices, uint16_t* masks, const float* scale, const float* offset, float* z,
                      float* y) {
#if defined(__AVX512F__)
    try {
        smoe::family_lanes::Forward work(*geometry, x, weight, bias, indices, y, masks, scale, offset, z);
        return work.run() ? 0 : 2;
    } catch (const std::bad_alloc&) {
        return 1;
    }
#else
    static_cast<void>(geometry), static_cast<void>(x), static_cast<void>(weight), static_cast<void>(bias);
    static_cast<void>(indices), static_cast<void>(masks), static_cast<void>(scale), static_cast<void>(offset);
    static_cast<void>(z), static_cast<void>(y);
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
    return smoe_family_layer(geometry, x, weight, bias, indices, nullptr, nullptr, nullptr, nullptr, y);
}

// The masks of a routing, `ceil(E / 16)` for each pixel, for smoe_family_layer(). Returns 2 as above.
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
