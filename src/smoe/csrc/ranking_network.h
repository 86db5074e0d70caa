// Finds the best E of many experts and sorts them, by networks of comparisons that are the same for all pixels.
//
// A score and its expert make one 64-bit key, and the better expert has the larger key: comparing two of them is a
// maximum and a minimum, and ties need no care. Groups of T keys, T being the power of two from E on, are sorted by
// Batcher's odd-even mergesort. Of two sorted groups, the larger of the i-th key of the one and the (T - 1 - i)-th of
// the other are the best T, in an order that a bitonic merge sorts. The work grows with X log^2(E).
//
// Lanes are consecutive pixels. A tile of them is copied first: rows of scores lie a whole image apart.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

namespace smoe {

// Without comparisons of 64-bit integers, counting is the faster way.
#if defined(__AVX512F__)
constexpr bool kHasNetworks = true;
constexpr int64_t kKeyLanes = 8;
#elif defined(__AVX2__)
constexpr bool kHasNetworks = true;
constexpr int64_t kKeyLanes = 4;
#else
constexpr bool kHasNetworks = false;
constexpr int64_t kKeyLanes = 2;
#endif
constexpr int64_t kMaxNetwork = 64;  // the largest T
constexpr int64_t kTile = 64;        // pixels that are copied together

typedef int64_t Keys __attribute__((vector_size(kKeyLanes * 8)));
typedef float KeyScores __attribute__((vector_size(kKeyLanes * 4)));
typedef int32_t KeyBits __attribute__((vector_size(kKeyLanes * 4)));

inline __attribute__((always_inline)) void exchange(Keys& better, Keys& worse) {
    const Keys larger = better > worse ? better : worse;
    worse = better > worse ? worse : better;
    better = larger;
}

// Compares keys FIRST, FIRST + STEP, ... below END with those DISTANCE behind them.
template <int FIRST, int END, int STEP, int DISTANCE>
inline __attribute__((always_inline)) void exchange_all(Keys* keys) {
    if constexpr (FIRST < END) {
        exchange(keys[FIRST], keys[FIRST + DISTANCE]);
        exchange_all<FIRST + STEP, END, STEP, DISTANCE>(keys);
    }
}

// Merges the even and the odd ones of COUNT keys that are DISTANCE apart.
template <int FIRST, int COUNT, int DISTANCE>
inline __attribute__((always_inline)) void merge_odd_even(Keys* keys) {
    if constexpr (2 * DISTANCE < COUNT) {
        merge_odd_even<FIRST, COUNT, 2 * DISTANCE>(keys);
        merge_odd_even<FIRST + DISTANCE, COUNT, 2 * DISTANCE>(keys);
        exchange_all<FIRST + DISTANCE, FIRST + COUNT - DISTANCE, 2 * DISTANCE, DISTANCE>(keys);
    } else {
        exchange(keys[FIRST], keys[FIRST + DISTANCE]);
    }
}

template <int FIRST, int COUNT>
inline __attribute__((always_inline)) void sort_keys(Keys* keys) {
    if constexpr (COUNT > 1) {
        sort_keys<FIRST, COUNT / 2>(keys);
        sort_keys<FIRST + COUNT / 2, COUNT / 2>(keys);
        merge_odd_even<FIRST, COUNT, 1>(keys);
    }
}

// Sorts keys that first rise and then fall, or the other way about.
template <int FIRST, int COUNT>
inline __attribute__((always_inline)) void merge_bitonic(Keys* keys) {
    if constexpr (COUNT > 1) {
        exchange_all<FIRST, FIRST + COUNT / 2, 1, COUNT / 2>(keys);
        merge_bitonic<FIRST, COUNT / 2>(keys);
        merge_bitonic<FIRST + COUNT / 2, COUNT / 2>(keys);
    }
}

// Scores of consecutive pixels as keys of an expert; `is_bad` collects lanes with a score that is not finite.
inline __attribute__((always_inline)) Keys make_keys(const float* source, int64_t expert, KeyBits& is_bad) {
    KeyScores scores;
    std::memcpy(&scores, source, sizeof(scores));
    is_bad |= (scores - scores) != KeyScores{};
    // A NaN ranks last; -0 equals +0, but has other bits.
    scores = scores != scores ? -std::numeric_limits<float>::infinity() - KeyScores{} : scores + 0.0f;
    KeyBits bits;
    std::memcpy(&bits, &scores, sizeof(bits));
    bits ^= (bits >> 31) & 0x7fffffff;  // negative numbers ascend the other way
    // Among equal scores the lower expert has the larger key.
    return (__builtin_convertvector(bits, Keys) << 32) | (0x7fffffff - expert);
}

// Keys of the experts from `first` on, sorted; experts that do not exist have the smallest key. A function of its own,
// because the instructions of a network are many.
template <int T>
__attribute__((noinline)) void read_sorted(const float* tile, int64_t first, int64_t experts, Keys* sorted,
                                           KeyBits& is_bad) {
    Keys keys[T];
    for (int64_t row = 0; row < T; ++row) {
        const int64_t expert = first + row;
        keys[row] = expert < experts ? make_keys(tile + expert * kTile, expert, is_bad)
                                     : std::numeric_limits<int64_t>::min() - Keys{};
    }
    sort_keys<0, T>(keys);
    std::memcpy(sorted, keys, sizeof(keys));
}

// The best experts of one register of pixels.
//
// tile:    scores [experts][kTile], from the first pixel on
// indices: (selected, pixels), from the first pixel on; `count` of them are written
template <int T>
void rank_lanes(const float* tile, int64_t experts, int64_t selected, int32_t* indices, int64_t pixels, int64_t count,
                KeyBits& is_bad) {
    Keys best[T], next[T];
    read_sorted<T>(tile, 0, experts, best, is_bad);
    for (int64_t first = T; first < experts; first += T) {
        read_sorted<T>(tile, first, experts, next, is_bad);
        for (int64_t row = 0; row < T; ++row) {
            best[row] = best[row] > next[T - 1 - row] ? best[row] : next[T - 1 - row];
        }
        merge_bitonic<0, T>(best);
    }
    for (int64_t row = 0; row < selected; ++row) {
        const KeyBits found = __builtin_convertvector(0x7fffffff - (best[row] & 0xffffffff), KeyBits);
        std::memcpy(indices + row * pixels, &found, count * sizeof(int32_t));
    }
}

using RankLanes = void (*)(const float*, int64_t, int64_t, int32_t*, int64_t, int64_t, KeyBits&);

inline RankLanes network_for(int64_t selected) {
    if (selected <= 2) return rank_lanes<2>;
    if (selected <= 4) return rank_lanes<4>;
    if (selected <= 8) return rank_lanes<8>;
    if (selected <= 16) return rank_lanes<16>;
    return selected <= 32 ? rank_lanes<32> : rank_lanes<64>;
}

}  // namespace smoe
