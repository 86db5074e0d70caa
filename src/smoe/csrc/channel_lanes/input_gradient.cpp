// dx = gradient of the routed convolution by its input, for families of equal size, stride 1, and filters of three
// columns: expert K s + k is candidate k of slot s.
//
//   dx[b, c, q] = sum over s, t of weight[e, c, t] * g[b, s, p],  p = target(q, t),  e = indices[s, p]
//
//   lanes      channels of the input: the output gradient of a slot and pixel, and its expert, are those of all lanes
//   registers  sums of 5 neighbouring pixels (3 with AVX2) in up to 4 vectors of channels; the gradients of a row that
//              they meet are loaded once for three taps, and each weight serves one multiply-add, from L1; of two
//              candidates, with AVX-512 on AMD, both weights serve 5 pixels, which blend them by masks, or 4 pixels of
//              two samples, which share the blends
//   L1         the weights of a block of slots and a slice of the kernel, [slot][candidate][tap][channel], used by all
//              pixels of a band
//   L2         the padded gradients and choices of a band of rows, and its sums [pixel][channel]
//
// The padded rows of a band are one long row, so that pixels come in groups without ends; what is computed between two
// rows is dropped. Loops: one or two samples and band > block of channels > slice of the kernel and block of slots >
// group of pixels. A unit of the first loop is made by one thread; each gradient is summed in the order of slices,
// slots and taps, whatever the bands and the threads.
#include <new>
#include <type_traits>

#include "../expert_lists/packing.h"
#include "../geometry.h"
#include "../scratch.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace smoe {
namespace channel_lanes {
namespace {

using expert_lists::ceil_divide;
using expert_lists::round_up;

constexpr int kPixels = kRegisterLanes == 16 ? 5 : 3;
constexpr int kColumns = 3;
constexpr int64_t kWeightBytes = 28 << 10;  // of a block of slots: a part of L1
constexpr int64_t kBandFloats = 192 << 10;  // of a band: a part of L2

inline Register load_register(const float* source) {
    Register values;
    std::memcpy(&values, source, sizeof(values));
    return values;
}

inline void store_register(float* target, Register values) { std::memcpy(target, &values, sizeof(values)); }

// What a group of pixels meets: gradients and choices [slot][row][column] of its first tap.
template <typename Choice>
struct Signal {
    const float* gradients;
    const Choice* choices;
    int64_t slot_pitch, row_pitch;
};

// Adds what some slots say, by the weights of the chosen candidate: a choice is the number of floats before them.
template <int kVectors>
void add_slots(const Signal<int32_t>& signal, const float* weights, int64_t slots, int64_t rows, int64_t candidates,
               float* place) {
    constexpr int64_t kTap = kVectors * kRegisterLanes;
    Register sums[kPixels][kVectors];
#pragma GCC unroll 8
    for (int i = 0; i < kPixels; ++i) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sums[i][v] = load_register(place + i * kTap + v * kRegisterLanes);
    }
    for (int64_t slot = 0; slot < slots; ++slot, weights += candidates * rows * kColumns * kTap) {
        for (int64_t row = 0; row < rows; ++row) {
            const float* gradients = signal.gradients + slot * signal.slot_pitch + row * signal.row_pitch;
            const int32_t* choices = signal.choices + slot * signal.slot_pitch + row * signal.row_pitch;
#pragma GCC unroll 8
            for (int i = 0; i < kPixels + kColumns - 1; ++i) {
                const Register gradient = gradients[i] - Register{};
                const float* taps = weights + row * kColumns * kTap + choices[i];
#pragma GCC unroll 3
                for (int t = 0; t < kColumns; ++t) {
                    if (i < t || i - t >= kPixels) continue;
#pragma GCC unroll 4
                    for (int v = 0; v < kVectors; ++v) {
                        sums[i - t][v] += gradient * load_register(taps + t * kTap + v * kRegisterLanes);
                    }
                }
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kPixels; ++i) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) store_register(place + i * kTap + v * kRegisterLanes, sums[i][v]);
    }
}

#if defined(__AVX512F__)
// The same for two candidates and three rows, in one, two or four vectors of channels, by blends; a choice is a mask of
// all lanes or of none. In assembly, because GCC moves masks and sums in and out of registers.
// clang-format off
#define SMOE_MEET(gradients, choices)                                                                           \
    "kmovw 0" choices ", %%k1\n\tkmovw 2" choices ", %%k2\n\tkmovw 4" choices ", %%k3\n\t"                      \
    "kmovw 6" choices ", %%k4\n\tkmovw 8" choices ", %%k5\n\tkmovw 10" choices ", %%k6\n\t"                     \
    "kmovw 12" choices ", %%k7\n\t"                                                                             \
    "vbroadcastss 0" gradients ", %%zmm10\n\tvbroadcastss 4" gradients ", %%zmm11\n\t"                          \
    "vbroadcastss 8" gradients ", %%zmm12\n\tvbroadcastss 12" gradients ", %%zmm13\n\t"                         \
    "vbroadcastss 16" gradients ", %%zmm14\n\tvbroadcastss 20" gradients ", %%zmm15\n\t"                        \
    "vbroadcastss 24" gradients ", %%zmm16\n\t"
#define SMOE_BLEND(n, even, odd, mask) "vblendmps %%zmm" #odd ", %%zmm" #even ", %%zmm" #n "%{%%k" #mask "%}\n\t"
#define SMOE_ADD(sum, n, x) "vfmadd231ps %%zmm" #x ", %%zmm" #n ", %%zmm" #sum "\n\t"
#define SMOE_TAP(tap, k0, k1, k2, k3, k4, x0, x1, x2, x3, x4)                                                   \
    "vmovaps 128*" #tap "(%[weights]), %%zmm17\n\tvmovaps 128*" #tap "+1152(%[weights]), %%zmm18\n\t"           \
    "vmovaps 128*" #tap "+64(%[weights]), %%zmm19\n\tvmovaps 128*" #tap "+1216(%[weights]), %%zmm20\n\t"        \
    SMOE_BLEND(21, 17, 18, k0) SMOE_BLEND(22, 17, 18, k1) SMOE_BLEND(23, 17, 18, k2) SMOE_BLEND(24, 17, 18, k3) \
    SMOE_BLEND(25, 17, 18, k4) SMOE_BLEND(26, 19, 20, k0) SMOE_BLEND(27, 19, 20, k1) SMOE_BLEND(28, 19, 20, k2) \
    SMOE_BLEND(29, 19, 20, k3) SMOE_BLEND(30, 19, 20, k4)                                                       \
    SMOE_ADD(0, 21, x0) SMOE_ADD(2, 22, x1) SMOE_ADD(4, 23, x2) SMOE_ADD(6, 24, x3) SMOE_ADD(8, 25, x4)         \
    SMOE_ADD(1, 26, x0) SMOE_ADD(3, 27, x1) SMOE_ADD(5, 28, x2) SMOE_ADD(7, 29, x3) SMOE_ADD(9, 30, x4)
#define SMOE_ROW(gradients, choices, tap0, tap1, tap2) SMOE_MEET(gradients, choices)                            \
    SMOE_TAP(tap0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14) SMOE_TAP(tap1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15)         \
    SMOE_TAP(tap2, 3, 4, 5, 6, 7, 12, 13, 14, 15, 16)
#define SMOE_LOAD(n) "vmovaps 64*" #n "(%[sums]), %%zmm" #n "\n\t"
#define SMOE_STORE(n) "vmovaps %%zmm" #n ", 64*" #n "(%[sums])\n\t"
#define SMOE_ALL(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9)

// In one vector: taps add to two sums by turns.
#define SMOE_THIN_TAP(tap, s0, s1, s2, s3, s4, k0, k1, k2, k3, k4, x0, x1, x2, x3, x4)                          \
    "vmovaps 64*" #tap "(%[weights]), %%zmm17\n\tvmovaps 64*" #tap "+576(%[weights]), %%zmm18\n\t"              \
    SMOE_BLEND(21, 17, 18, k0) SMOE_BLEND(22, 17, 18, k1) SMOE_BLEND(23, 17, 18, k2) SMOE_BLEND(24, 17, 18, k3) \
    SMOE_BLEND(25, 17, 18, k4)                                                                                  \
    SMOE_ADD(s0, 21, x0) SMOE_ADD(s1, 22, x1) SMOE_ADD(s2, 23, x2) SMOE_ADD(s3, 24, x3) SMOE_ADD(s4, 25, x4)
#define SMOE_THIN_EVEN(tap, ...) SMOE_THIN_TAP(tap, 0, 1, 2, 3, 4, __VA_ARGS__)
#define SMOE_THIN_ODD(tap, ...) SMOE_THIN_TAP(tap, 5, 6, 7, 8, 9, __VA_ARGS__)
#define SMOE_THIN_ROW(FIRST, SECOND, gradients, choices, tap0, tap1, tap2) SMOE_MEET(gradients, choices)        \
    FIRST(tap0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14) SECOND(tap1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15)              \
    FIRST(tap2, 3, 4, 5, 6, 7, 12, 13, 14, 15, 16)
#define SMOE_NO_SUM(n) "vpxor %%xmm" #n ", %%xmm" #n ", %%xmm" #n "\n\t"
#define SMOE_LAST_SUM(n, other) \
    "vaddps %%zmm" #other ", %%zmm" #n ", %%zmm" #n "\n\tvmovaps %%zmm" #n ", 64*" #n "(%[sums])\n\t"

// Of 4 pixels in two samples, in two vectors.
#define SMOE_MEET_TWO(gradients, others, choices)                                                               \
    "kmovw 0" choices ", %%k1\n\tkmovw 2" choices ", %%k2\n\tkmovw 4" choices ", %%k3\n\t"                      \
    "kmovw 6" choices ", %%k4\n\tkmovw 8" choices ", %%k5\n\tkmovw 10" choices ", %%k6\n\t"                     \
    "vbroadcastss 0" gradients ", %%zmm16\n\tvbroadcastss 4" gradients ", %%zmm17\n\t"                          \
    "vbroadcastss 8" gradients ", %%zmm18\n\tvbroadcastss 12" gradients ", %%zmm19\n\t"                         \
    "vbroadcastss 16" gradients ", %%zmm20\n\tvbroadcastss 20" gradients ", %%zmm21\n\t"                        \
    "vbroadcastss 0" others ", %%zmm22\n\tvbroadcastss 4" others ", %%zmm23\n\t"                                \
    "vbroadcastss 8" others ", %%zmm24\n\tvbroadcastss 12" others ", %%zmm25\n\t"                               \
    "vbroadcastss 16" others ", %%zmm26\n\tvbroadcastss 20" others ", %%zmm27\n\t"
#define SMOE_VECTOR_TWO(s0, s1, s2, s3, s4, s5, s6, s7, k0, k1, k2, k3, x0, x1, x2, x3, y0, y1, y2, y3)         \
    SMOE_BLEND(30, 28, 29, k0) SMOE_BLEND(31, 28, 29, k1)                                                       \
    SMOE_ADD(s0, 30, x0) SMOE_ADD(s4, 30, y0) SMOE_ADD(s1, 31, x1) SMOE_ADD(s5, 31, y1)                         \
    SMOE_BLEND(30, 28, 29, k2) SMOE_BLEND(31, 28, 29, k3)                                                       \
    SMOE_ADD(s2, 30, x2) SMOE_ADD(s6, 30, y2) SMOE_ADD(s3, 31, x3) SMOE_ADD(s7, 31, y3)
#define SMOE_TAP_TWO(tap, ...)                                                                                  \
    "vmovaps 128*" #tap "(%[weights]), %%zmm28\n\tvmovaps 128*" #tap "+1152(%[weights]), %%zmm29\n\t"           \
    SMOE_VECTOR_TWO(0, 2, 4, 6, 8, 10, 12, 14, __VA_ARGS__)                                                     \
    "vmovaps 128*" #tap "+64(%[weights]), %%zmm28\n\tvmovaps 128*" #tap "+1216(%[weights]), %%zmm29\n\t"        \
    SMOE_VECTOR_TWO(1, 3, 5, 7, 9, 11, 13, 15, __VA_ARGS__)
#define SMOE_ROW_TWO(gradients, others, choices, tap0, tap1, tap2) SMOE_MEET_TWO(gradients, others, choices)    \
    SMOE_TAP_TWO(tap0, 1, 2, 3, 4, 16, 17, 18, 19, 22, 23, 24, 25)                                              \
    SMOE_TAP_TWO(tap1, 2, 3, 4, 5, 17, 18, 19, 20, 23, 24, 25, 26)                                              \
    SMOE_TAP_TWO(tap2, 3, 4, 5, 6, 18, 19, 20, 21, 24, 25, 26, 27)
#define SMOE_SUMS_TWO(DO)                                                                                       \
    DO(0, 0, sums) DO(1, 1, sums) DO(2, 2, sums) DO(3, 3, sums) DO(4, 4, sums) DO(5, 5, sums) DO(6, 6, sums)    \
    DO(7, 7, sums) DO(8, 0, more) DO(9, 1, more) DO(10, 2, more) DO(11, 3, more) DO(12, 4, more)                \
    DO(13, 5, more) DO(14, 6, more) DO(15, 7, more)
#define SMOE_LOAD_TWO(n, place, of) "vmovaps 64*" #place "(%[" #of "]), %%zmm" #n "\n\t"
#define SMOE_STORE_TWO(n, place, of) "vmovaps %%zmm" #n ", 64*" #place "(%[" #of "])\n\t"
#define SMOE_REGISTERS                                                                                          \
    "cc", "memory", "k1", "k2", "k3", "k4", "k5", "k6", "k7", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5",   \
    "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17",     \
    "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", \
    "xmm30", "xmm31"

// In four vectors: a mask serves twice as many blends.
#define SMOE_MEET_WIDE(gradients, choices)                                                                      \
    "kmovw 0" choices ", %%k1\n\tkmovw 2" choices ", %%k2\n\tkmovw 4" choices ", %%k3\n\t"                      \
    "kmovw 6" choices ", %%k4\n\tkmovw 8" choices ", %%k5\n\tkmovw 10" choices ", %%k6\n\t"                     \
    "kmovw 12" choices ", %%k7\n\t"                                                                             \
    "vbroadcastss 0" gradients ", %%zmm20\n\tvbroadcastss 4" gradients ", %%zmm21\n\t"                          \
    "vbroadcastss 8" gradients ", %%zmm22\n\tvbroadcastss 12" gradients ", %%zmm23\n\t"                         \
    "vbroadcastss 16" gradients ", %%zmm24\n\tvbroadcastss 20" gradients ", %%zmm25\n\t"                        \
    "vbroadcastss 24" gradients ", %%zmm26\n\t"
#define SMOE_WIDE_VECTOR(tap, place, s0, s1, s2, s3, s4, k0, k1, k2, k3, k4, x0, x1, x2, x3, x4)                \
    "vmovaps 256*" #tap "+" #place "(%[weights]), %%zmm27\n\t"                                                  \
    "vmovaps 256*" #tap "+" #place "+2304(%[weights]), %%zmm28\n\t"                                             \
    SMOE_BLEND(29, 27, 28, k0) SMOE_BLEND(30, 27, 28, k1) SMOE_BLEND(31, 27, 28, k2)                            \
    SMOE_ADD(s0, 29, x0) SMOE_ADD(s1, 30, x1) SMOE_ADD(s2, 31, x2)                                              \
    SMOE_BLEND(29, 27, 28, k3) SMOE_BLEND(30, 27, 28, k4) SMOE_ADD(s3, 29, x3) SMOE_ADD(s4, 30, x4)
#define SMOE_WIDE_TAP(tap, ...)                                                                                 \
    SMOE_WIDE_VECTOR(tap, 0, 0, 4, 8, 12, 16, __VA_ARGS__) SMOE_WIDE_VECTOR(tap, 64, 1, 5, 9, 13, 17, __VA_ARGS__) \
    SMOE_WIDE_VECTOR(tap, 128, 2, 6, 10, 14, 18, __VA_ARGS__) SMOE_WIDE_VECTOR(tap, 192, 3, 7, 11, 15, 19, __VA_ARGS__)
#define SMOE_WIDE_ROW(gradients, choices, tap0, tap1, tap2) SMOE_MEET_WIDE(gradients, choices)                  \
    SMOE_WIDE_TAP(tap0, 1, 2, 3, 4, 5, 20, 21, 22, 23, 24) SMOE_WIDE_TAP(tap1, 2, 3, 4, 5, 6, 21, 22, 23, 24, 25) \
    SMOE_WIDE_TAP(tap2, 3, 4, 5, 6, 7, 22, 23, 24, 25, 26)
#define SMOE_WIDE_ALL(DO) SMOE_ALL(DO) DO(10) DO(11) DO(12) DO(13) DO(14) DO(15) DO(16) DO(17) DO(18) DO(19)

void add_slots_wide(const Signal<uint16_t>& signal, const float* weights, int64_t slots, float* sums) {
    const float* gradients = signal.gradients;
    const uint16_t* choices = signal.choices;
    __asm__ volatile(
        SMOE_WIDE_ALL(SMOE_LOAD)
        ".p2align 6\n1:\n\t"
        SMOE_WIDE_ROW("(%[gradients])", "(%[choices])", 0, 1, 2)
        SMOE_WIDE_ROW("(%[gradients],%[row],4)", "(%[choices],%[row],2)", 3, 4, 5)
        SMOE_WIDE_ROW("(%[gradients],%[row],8)", "(%[choices],%[row],4)", 6, 7, 8)
        "lea (%[gradients],%[slot],4), %[gradients]\n\tlea (%[choices],%[slot],2), %[choices]\n\t"
        "add $256*18, %[weights]\n\tdec %[slots]\n\tjnz 1b\n\t"
        SMOE_WIDE_ALL(SMOE_STORE)
        : [gradients] "+r"(gradients), [choices] "+r"(choices), [weights] "+r"(weights), [slots] "+r"(slots)
        : [row] "r"(signal.row_pitch), [slot] "r"(signal.slot_pitch), [sums] "r"(sums)
        : SMOE_REGISTERS);
}

void add_slots_thin(const Signal<uint16_t>& signal, const float* weights, int64_t slots, float* sums) {
    const float* gradients = signal.gradients;
    const uint16_t* choices = signal.choices;
    __asm__ volatile(
        SMOE_LOAD(0) SMOE_LOAD(1) SMOE_LOAD(2) SMOE_LOAD(3) SMOE_LOAD(4)
        SMOE_NO_SUM(5) SMOE_NO_SUM(6) SMOE_NO_SUM(7) SMOE_NO_SUM(8) SMOE_NO_SUM(9)
        ".p2align 6\n1:\n\t"
        SMOE_THIN_ROW(SMOE_THIN_EVEN, SMOE_THIN_ODD, "(%[gradients])", "(%[choices])", 0, 1, 2)
        SMOE_THIN_ROW(SMOE_THIN_ODD, SMOE_THIN_EVEN, "(%[gradients],%[row],4)", "(%[choices],%[row],2)", 3, 4, 5)
        SMOE_THIN_ROW(SMOE_THIN_EVEN, SMOE_THIN_ODD, "(%[gradients],%[row],8)", "(%[choices],%[row],4)", 6, 7, 8)
        "lea (%[gradients],%[slot],4), %[gradients]\n\tlea (%[choices],%[slot],2), %[choices]\n\t"
        "add $64*18, %[weights]\n\tdec %[slots]\n\tjnz 1b\n\t"
        SMOE_LAST_SUM(0, 5) SMOE_LAST_SUM(1, 6) SMOE_LAST_SUM(2, 7) SMOE_LAST_SUM(3, 8) SMOE_LAST_SUM(4, 9)
        : [gradients] "+r"(gradients), [choices] "+r"(choices), [weights] "+r"(weights), [slots] "+r"(slots)
        : [row] "r"(signal.row_pitch), [slot] "r"(signal.slot_pitch), [sums] "r"(sums)
        : SMOE_REGISTERS);
}

// The gradients and sums of the other sample lie `next_gradients` and `next_sums` floats after those of the first.
void add_slots_of_two(const Signal<uint16_t>& signal, const float* weights, int64_t slots, int64_t next_gradients,
                      float* sums, int64_t next_sums) {
    const float *gradients = signal.gradients, *others = gradients + next_gradients;
    const uint16_t* choices = signal.choices;
    __asm__ volatile(
        SMOE_SUMS_TWO(SMOE_LOAD_TWO)
        ".p2align 6\n1:\n\t"
        SMOE_ROW_TWO("(%[gradients])", "(%[others])", "(%[choices])", 0, 1, 2)
        SMOE_ROW_TWO("(%[gradients],%[row],4)", "(%[others],%[row],4)", "(%[choices],%[row],2)", 3, 4, 5)
        SMOE_ROW_TWO("(%[gradients],%[row],8)", "(%[others],%[row],8)", "(%[choices],%[row],4)", 6, 7, 8)
        "lea (%[gradients],%[slot],4), %[gradients]\n\tlea (%[others],%[slot],4), %[others]\n\t"
        "lea (%[choices],%[slot],2), %[choices]\n\t"
        "add $128*18, %[weights]\n\tdec %[slots]\n\tjnz 1b\n\t"
        SMOE_SUMS_TWO(SMOE_STORE_TWO)
        : [gradients] "+r"(gradients), [others] "+r"(others), [choices] "+r"(choices), [weights] "+r"(weights),
          [slots] "+r"(slots)
        : [row] "r"(signal.row_pitch), [slot] "r"(signal.slot_pitch), [sums] "r"(sums), [more] "r"(sums + next_sums)
        : SMOE_REGISTERS);
}

void add_slots_3x3(const Signal<uint16_t>& signal, const float* weights, int64_t slots, float* sums) {
    const float* gradients = signal.gradients;
    const uint16_t* choices = signal.choices;
    __asm__ volatile(
        SMOE_ALL(SMOE_LOAD)
        ".p2align 6\n1:\n\t"
        SMOE_ROW("(%[gradients])", "(%[choices])", 0, 1, 2)
        SMOE_ROW("(%[gradients],%[row],4)", "(%[choices],%[row],2)", 3, 4, 5)
        SMOE_ROW("(%[gradients],%[row],8)", "(%[choices],%[row],4)", 6, 7, 8)
        "lea (%[gradients],%[slot],4), %[gradients]\n\tlea (%[choices],%[slot],2), %[choices]\n\t"
        "add $128*18, %[weights]\n\tdec %[slots]\n\tjnz 1b\n\t"
        SMOE_ALL(SMOE_STORE)
        : [gradients] "+r"(gradients), [choices] "+r"(choices), [weights] "+r"(weights), [slots] "+r"(slots)
        : [row] "r"(signal.row_pitch), [slot] "r"(signal.slot_pitch), [sums] "r"(sums)
        : SMOE_REGISTERS);
}
// clang-format on

template <int kVectors>
void add_slots(const Signal<uint16_t>& signal, const float* weights, int64_t slots, int64_t, int64_t, float* sums) {
    if (kVectors == 1) add_slots_thin(signal, weights, slots, sums);
    if (kVectors == 2) add_slots_3x3(signal, weights, slots, sums);
    if (kVectors == 4) add_slots_wide(signal, weights, slots, sums);
}
#endif

// Choice: of the two forms of add_slots().
template <typename Choice>
class InputGradient {
    static constexpr bool kIsBlended = std::is_same<Choice, uint16_t>::value;

 public:
    InputGradient(const smoe_geometry& geometry, const float* g, const float* weight, const int32_t* indices,
                  const uint16_t* masks, float* dx)
        : g_(geometry),
          gradient_(g),
          weight_(weight),
          indices_(indices),
          masks_(masks),
          dx_(dx),
          candidates_(g_.experts / g_.selected),
          rows_(kernel_slice_height(g_)),
          taps_(rows_ * kColumns),
          pitch_(g_.width + kColumns - 1),
          left_(kColumns - 1 - g_.column_padding) {
        const int64_t vectors = ceil_divide(g_.channels, kRegisterLanes);
        // Two vectors leave registers for a pair of samples.
        const int64_t blended = g_.batch == 1 && vectors % 4 == 0 ? 4 : std::min<int64_t>(vectors, 2);
        vectors_ = kIsBlended ? blended : ceil_divide(vectors, ceil_divide(vectors, 4));
        together_ = kIsBlended && vectors_ == 2 ? std::min<int64_t>(g_.batch, 2) : 1;
        tap_ = vectors_ * kRegisterLanes;
        blocks_ = ceil_divide(g_.channels, tap_);
        for (int64_t u = 0; u < pitch_; ++u) {
            if (u < left_ || u >= left_ + g_.output_width) {
                borders_.emplace_back(u, source(u, kColumns, g_.column_padding, g_.output_width, g_.wraps_columns));
            }
        }
    }

    // Returns false if an index is not one of its family's.
    bool run() {
        Scratch scratch;
        packed_weight_ = scratch.floats(blocks_ * g_.kernel_depth * g_.experts * taps_ * tap_);
#pragma omp parallel for num_threads(g_.threads) schedule(static)
        for (int64_t expert = 0; expert < g_.experts; ++expert) pack_expert(expert);

        const int64_t height = slice_height(g_), rows = rows_per_band(), parts = ceil_divide(height, rows);
        const int64_t bands = g_.depth * parts;
        sum_floats_ = round_up((rows * pitch_ + kPixels + kLanes) * tap_, kLanes);
        signal_floats_ = round_up(g_.selected * slot_pitch(rows), kLanes);
        const int64_t choice_floats =
            round_up(g_.selected * slot_pitch(rows) * sizeof(Choice) / sizeof(float) + 1, kLanes);
        const int64_t unit_floats = together_ * (sum_floats_ + signal_floats_) + choice_floats;
        float* units = scratch.floats(g_.threads * unit_floats);
        bool is_family = true;
#pragma omp parallel for num_threads(g_.threads) schedule(dynamic) collapse(2) reduction(&& : is_family)
        for (int64_t sample = 0; sample < g_.batch; sample += together_) {
            for (int64_t band = 0; band < bands; ++band) {
                float* sums = units + expert_lists::thread_number() * unit_floats;
                float* gradients = sums + together_ * sum_floats_;
                Choice* choices = reinterpret_cast<Choice*>(gradients + together_ * signal_floats_);
                const int64_t begin = band % parts * rows;
                const Band here{sample, std::min(g_.batch - sample, together_), band / parts, begin,
                                std::min(begin + rows, height)};
                is_family = pack_signal(here, gradients, choices) && is_family;
                make_band(here, sums, gradients, choices);
            }
        }
        return is_family;
    }

 private:
    // Rows of a slice in some samples.
    struct Band {
        int64_t sample, samples, slice, begin, end;
    };

    // The output slice, row or column at a padded one, or -1 - the nearest one where there is none.
    static int64_t source(int64_t padded, int64_t taps, int64_t padding, int64_t size, int64_t wraps) {
        int64_t place = padded - (taps - 1) + padding;
        if (wraps) return place %= size, place < 0 ? place + size : place;
        return place < 0 ? -1 : place >= size ? -size : place;
    }

    // Padded gradients of one slot in a band, and what the last group reads behind them.
    int64_t slot_pitch(int64_t rows) const {
        return round_up(g_.kernel_depth * (rows + rows_ - 1) * pitch_ + kPixels + kColumns, kLanes);
    }

    int64_t rows_per_band() const {
        const int64_t height = slice_height(g_), units = ceil_divide(g_.batch, together_) * g_.depth;
        const int64_t most = ceil_divide(height, std::min(height, ceil_divide(g_.threads, units)));
        int64_t rows = most;
        const auto floats = [&](int64_t count) {
            return slot_pitch(count) * g_.selected * (together_ + 1) + together_ * count * pitch_ * tap_;
        };
        while (rows > 1 && floats(rows) > kBandFloats) --rows;
        return ceil_divide(most, ceil_divide(most, rows));
    }

    // Weights [block][slice][slot][candidate][tap][channel], the last tap first: it reads the first padded gradient.
    void pack_expert(int64_t expert) {
        const int64_t all = g_.kernel_depth * taps_;
        for (int64_t block = 0; block < blocks_; ++block) {
            const int64_t first = block * tap_, count = std::min(tap_, g_.channels - first);
            const float* filter = weight_ + (expert * g_.channels + first) * all;
            const auto lanes = [&](int64_t tap) {
                const int64_t slice = block * g_.kernel_depth + tap / taps_;
                return packed_weight_ + ((slice * g_.experts + expert) * taps_ + tap % taps_) * tap_;
            };
            int64_t first_lane = 0;
            for (; all <= kRegisterLanes && first_lane + kRegisterLanes <= count; first_lane += kRegisterLanes) {
                float* rows[kRegisterLanes];
                for (int64_t tap = 0; tap < all; ++tap) rows[tap] = lanes(all - 1 - tap) + first_lane;
                expert_lists::spread_taps(filter + first_lane * all, all, rows);
            }
            for (int64_t tap = 0; tap < all; ++tap) {
                float* target = lanes(all - 1 - tap);
                for (int64_t c = first_lane; c < count; ++c) target[c] = filter[c * all + tap];
                std::fill(target + count, target + tap_, 0.0f);
            }
        }
    }

    Choice choice(uint32_t candidate) const {
        if (kIsBlended) return static_cast<Choice>(candidate == 1 ? 0xffff : 0);
        return static_cast<Choice>(candidate * taps_ * tap_);
    }

    // Gradients and choices [slot][slice of the kernel][row][column]. Beyond the border gradients are zero, and the
    // choice is the nearest one: the zeros meet no other weight.
    bool pack_signal(const Band& band, float* gradients, Choice* choices) const {
        const int64_t plane = g_.output_height * g_.output_width, width = g_.output_width;
        const int64_t rows = band.end - band.begin + rows_ - 1, pitch = slot_pitch(band.end - band.begin);
        const int64_t height = output_slice_height(g_), all = g_.kernel_depth * rows;
        bool is_family = true;
        for (int64_t slot = 0; slot < g_.selected; ++slot, gradients += pitch, choices += pitch) {
            const uint32_t first = static_cast<uint32_t>(slot * candidates_),
                           count = static_cast<uint32_t>(candidates_);
            for (int64_t i = 0; i < all; ++i) {
                const int64_t slice =
                    source(band.slice + i / rows, g_.kernel_depth, g_.depth_padding, g_.output_depth, g_.wraps_depth);
                const int64_t row = source(band.begin + i % rows, rows_, g_.row_padding, height, g_.wraps_rows);
                const bool is_beyond = slice < 0 || row < 0;
                const int64_t place = (nearest(slice) * height + nearest(row)) * width;
                const float* signal = gradient_ + (band.sample * g_.selected + slot) * plane + place;
                const int32_t* chosen = indices_ + slot * plane + place;
                float* target = gradients + i * pitch_;
                Choice* mask = choices + i * pitch_;
                uint32_t others = 0;
                if (kIsBlended && masks_ != nullptr) {
                    const uint16_t *bits = masks_ + slot / 16 * plane + place, bit = 1 << slot % 16;
                    for (int64_t x = 0; x < width; ++x) mask[left_ + x] = (bits[x] & bit) != 0 ? choice(1) : Choice{};
                }
                for (int64_t x = 0; x < width && masks_ == nullptr; ++x) {
                    const uint32_t candidate = static_cast<uint32_t>(chosen[x]) - first;
                    others |= candidate >= count;
                    mask[left_ + x] = choice(candidate < count ? candidate : 0);
                }
                is_family = is_family && others == 0;
                for (const auto& [u, column] : borders_) mask[u] = mask[left_ + nearest(column)];
                for (int64_t b = 0; b < band.samples; ++b) {
                    pack_row(is_beyond ? nullptr : signal + b * g_.selected * plane, target + b * signal_floats_);
                }
            }
            for (int64_t b = 0; b < band.samples; ++b) {
                std::fill(gradients + b * signal_floats_ + all * pitch_, gradients + b * signal_floats_ + pitch, 0.0f);
            }
            std::fill(choices + all * pitch_, choices + pitch, Choice{});
        }
        return is_family;
    }

    static int64_t nearest(int64_t source) { return source < 0 ? -1 - source : source; }

    void pack_row(const float* signal, float* target) const {
        if (signal == nullptr) {
            std::memset(target, 0, pitch_ * sizeof(float));
            return;
        }
        // On its way: the row of the next slot, which lies so far apart that no processor foresees it.
        const float* next = signal + g_.output_height * g_.output_width;
        for (int64_t x = 0; x < g_.output_width; x += kLanes) __builtin_prefetch(next + x);
        expert_lists::copy_floats(signal, g_.output_width, target + left_);
        for (const auto& [u, column] : borders_) target[u] = column < 0 ? 0.0f : signal[column];
    }

    void make_band(const Band& band, float* sums, const float* gradients, const Choice* choices) const {
        const int64_t together = band.samples == 2 ? 4 : kPixels;  // pixels of a group
        const int64_t rows = band.end - band.begin, slice_floats = (rows + rows_ - 1) * pitch_;
        const int64_t pixels = (rows - 1) * pitch_ + g_.width, groups = ceil_divide(pixels, together);
        const int64_t pitch = slot_pitch(rows), slot_floats = candidates_ * taps_ * tap_;
        const int64_t most = std::max<int64_t>(kWeightBytes / (slot_floats * sizeof(float)), 1);
        const int64_t blocks = ceil_divide(g_.selected, most), parts = g_.kernel_depth * blocks;
        for (int64_t block = 0; block < blocks_; ++block) {
            for (int64_t b = 0; b < band.samples; ++b) {
                std::memset(sums + b * sum_floats_, 0, groups * together * tap_ * sizeof(float));
            }
            for (int64_t part = 0; part < parts; ++part) {
                const int64_t slice = part / blocks, slot = g_.selected * (part % blocks) / blocks;
                const int64_t count = g_.selected * (part % blocks + 1) / blocks - slot;
                const float* weights =
                    packed_weight_ + ((block * g_.kernel_depth + slice) * g_.selected + slot) * slot_floats;
                const float* ahead = weights + count * slot_floats;
                const int64_t lines = round_up(ceil_divide(count * slot_floats, groups), kLanes);
                for (int64_t group = 0; group < groups; ++group) {
                    // On their way while this group is made: the weights of the next part, and the outputs.
                    if (part + 1 == parts) prefetch_outputs(band, block, group, groups);
                    for (const float* stop = ahead + lines; ahead < stop; ahead += kLanes) {
                        __builtin_prefetch(ahead, 0, 2);
                    }
                    const int64_t place = slot * pitch + slice * slice_floats + group * together;
                    const Signal<Choice> signal{gradients + place, choices + place, pitch, pitch_};
                    add(band.samples, signal, weights, count, sums + group * together * tap_);
                }
            }
            for (int64_t b = 0; b < band.samples; ++b) {
                for (int64_t row = 0; row < rows; ++row) {
                    write(band.sample + b, block, band.slice * slice_height(g_) + band.begin + row,
                          sums + b * sum_floats_ + row * pitch_ * tap_);
                }
            }
        }
    }

    // A share of what write() writes of a band.
    void prefetch_outputs(const Band& band, int64_t block, int64_t group, int64_t groups) const {
        const int64_t plane = g_.height * g_.width, channels = std::min(tap_, g_.channels - block * tap_);
        const int64_t rows = band.samples * channels;
        const int64_t lines = ceil_divide((band.end - band.begin) * g_.width, kLanes) * rows;
        const float* first = dx_ + (band.sample * g_.channels + block * tap_) * plane +
                             (band.slice * slice_height(g_) + band.begin) * g_.width;
        for (int64_t line = lines * group / groups; line < lines * (group + 1) / groups; ++line) {
            const int64_t row = line % rows / channels * g_.channels + line % rows % channels;
            __builtin_prefetch(first + row * plane + line / rows * kLanes, 1, 2);
        }
    }

    void add(int64_t samples, const Signal<Choice>& signal, const float* weights, int64_t slots, float* sums) const {
#if defined(__AVX512F__)
        if constexpr (kIsBlended) {
            if (samples == 2) {
                return add_slots_of_two(signal, weights, slots, signal_floats_, sums, sum_floats_);
            }
        }
#endif
        constexpr void (*kAdd[])(const Signal<Choice>&, const float*, int64_t, int64_t, int64_t, float*) = {
            add_slots<1>, add_slots<2>, add_slots<3>, add_slots<4>};
        kAdd[vectors_ - 1](signal, weights, slots, rows_, candidates_, sums);
    }

    void write(int64_t sample, int64_t block, int64_t row, const float* sums) const {
        constexpr int64_t kSide = kRegisterLanes;
        const int64_t plane = g_.height * g_.width;
        for (int64_t v = 0; v < vectors_; ++v) {
            const int64_t first = block * tap_ + v * kSide, channels = std::min(kSide, g_.channels - first);
            if (channels <= 0) return;
            float* target = dx_ + (sample * g_.channels + first) * plane + row * g_.width;
            for (int64_t x = 0; x < g_.width; x += kSide) {
                const float* values = sums + x * tap_ + v * kSide;
                const int64_t count = std::min(kSide, g_.width - x);
                if (channels == kSide && count == kSide) {
                    expert_lists::transpose_square(values, tap_, target + x, plane);
                    continue;
                }
                alignas(64) float turned[kSide * kSide];
                expert_lists::transpose_square(values, tap_, turned, kSide);
                for (int64_t c = 0; c < channels; ++c) {
                    std::memcpy(target + c * plane + x, turned + c * kSide, count * sizeof(float));
                }
            }
        }
    }

    const smoe_geometry g_;
    const float *gradient_, *weight_;
    const int32_t* indices_;
    const uint16_t* masks_;  // of families of two, in place of the indices, or none
    float* dx_;
    const int64_t candidates_, rows_, taps_;            // of a slice of the kernel
    const int64_t pitch_, left_;                        // floats of a padded row, and before its first pixel
    int64_t vectors_, tap_, blocks_;                    // vectors and floats of a tap in a block of channels
    int64_t together_;                                  // samples that share the blends
    int64_t sum_floats_ = 0, signal_floats_ = 0;        // of a sample's band
    std::vector<std::pair<int64_t, int64_t>> borders_;  // padded columns beyond the output, and their source()
    float* packed_weight_ = nullptr;
};

}  // namespace
}  // namespace channel_lanes
}  // namespace smoe

extern "C" {

int smoe_family_is_fast(void);

// With the masks of families of two, which are in place of the indices; or with none.
int smoe_channel_masked(const smoe_geometry* geometry, const float* g, const float* weight, const int32_t* indices,
                        const uint16_t* masks, float* dx) {
    using namespace smoe::channel_lanes;
    const smoe_geometry& shape = *geometry;
    if (shape.stride != 1 || shape.kernel_width != kColumns) return 2;
    if (shape.experts % shape.selected != 0) return 2;
    try {
#if defined(__AVX512F__)
        if (shape.experts == 2 * shape.selected && kernel_slice_height(shape) == 3 && smoe_family_is_fast() == 0) {
            return InputGradient<uint16_t>(shape, g, weight, indices, masks, dx).run() ? 0 : 2;
        }
#endif
        return InputGradient<int32_t>(shape, g, weight, indices, nullptr, dx).run() ? 0 : 2;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

// Returns 2 if the geometry or the routing is another than the first comment says; dx then holds nothing of use.
int smoe_channel_input_gradient(const smoe_geometry* geometry, const float* g, const float* weight,
                                const int32_t* indices, float* dx) {
    return smoe_channel_masked(geometry, g, weight, indices, nullptr, dx);
}

}  // extern "C"
