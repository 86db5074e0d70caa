// Ranks the experts of each pixel by their scores and keeps the best E, the lower number first among equals.
//
// Up to 64 of them are found by sorting networks (ranking_network.h), with the instruction sets that compare 64-bit
// integers. Otherwise experts are counted: the rank of an expert is the number of experts that beat it: those with a
// higher score, and those with the same score and a lower number. Counting them compares each expert with all others,
// up to 16 pixels at a time and without a branch, which beats sorting up to several hundred experts (measured: 256 of
// them 4 times). Only the E best need a rank: if a score can be found that just E experts reach, by halving the
// interval it lies in, these are drawn together and counted among themselves, E * E comparisons in place of X * X.
// Scores tied about the E-th place have none; then all are counted. For larger banks a score and its expert make one
// 64-bit key, and the keys of a pixel are selected and sorted.
//
// The best one alone needs no ranks: it is the running maximum, whose number is kept beside it.
//
// Lanes are consecutive pixels. A block copies its scores to [X][lanes], 16 KB for 256 experts, which stay in the first
// cache. Eight experts' scores and counts are held in registers while the others stream by. Each pixel is ranked by one
// thread: nothing depends on their number.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "ranking_network.h"

namespace smoe {
namespace {

// As many pixels as one register holds: comparisons of wider vectors are taken apart lane by lane.
#if defined(__AVX512F__)
constexpr int64_t kPixels = 16;
#elif defined(__AVX2__)
constexpr int64_t kPixels = 8;
#else
constexpr int64_t kPixels = 4;
#endif
typedef float Scores __attribute__((vector_size(kPixels * 4)));
typedef int32_t Counts __attribute__((vector_size(kPixels * 4)));

inline Scores load(const float* source) {
    Scores scores;
    std::memcpy(&scores, source, sizeof(scores));
    return scores;
}

constexpr int64_t kRows = 8;          // experts ranked at once
constexpr int64_t kMaxCounted = 512;  // experts up to which counting is the faster way
constexpr int64_t kMinDrawn = 32;     // experts from which drawing the best together pays
constexpr int kMaxHalvings = 24;      // an interval of floats has hardly any values left

// A NaN ranks last, so that every rank is written; `is_bad` collects lanes with a score that is not finite.
inline Scores without_nan(Scores scores, Counts& is_bad) {
    is_bad |= (scores - scores) != Scores{};  // infinities and NaN
    return scores != scores ? -std::numeric_limits<float>::infinity() - Scores{} : scores;
}

struct Ranking {
    const float* scores;  // (X, P)
    int64_t experts, selected, pixels;
    int32_t* indices;  // (E, P), best first

    // Expert `expert` has `rank` better ones at a pixel.
    void place(int64_t expert, int64_t rank, int64_t pixel) const {
        if (rank < selected) indices[rank * pixels + pixel] = static_cast<int32_t>(expert);
    }
};

// The experts of a block of pixels that are to be ranked, in the order of their numbers.
struct Candidates {
    const float* scores;     // [count][lanes]
    const int32_t* experts;  // [count][lanes]; null: the row is the expert
    int64_t count;
};

// Ranks candidates [first, first + kRows) of a block; rows beyond the last repeat it and are not placed.
void count_rows(const Ranking& ranking, const Candidates& all, int64_t first, int64_t begin, int64_t pixels) {
    Scores scores[kRows];
    Counts better[kRows];
#pragma GCC unroll 8
    for (int64_t row = 0; row < kRows; ++row) {
        scores[row] = load(all.scores + std::min(first + row, all.count - 1) * kPixels);
        better[row] = Counts{};
    }
    // A comparison is -1 where it holds.
    for (int64_t other = 0; other < first; ++other) {
        const Scores score = load(all.scores + other * kPixels);
#pragma GCC unroll 8
        for (int64_t row = 0; row < kRows; ++row) better[row] -= score >= scores[row];
    }
    const int64_t end = std::min(first + kRows, all.count);
    for (int64_t other = first; other < end; ++other) {
        const Scores score = load(all.scores + other * kPixels);
        for (int64_t row = 0; row < kRows; ++row) {
            if (other < first + row) better[row] -= score >= scores[row];
            if (other > first + row) better[row] -= score > scores[row];
        }
    }
    for (int64_t other = end; other < all.count; ++other) {
        const Scores score = load(all.scores + other * kPixels);
#pragma GCC unroll 8
        for (int64_t row = 0; row < kRows; ++row) better[row] -= score > scores[row];
    }
    for (int64_t row = first; row < end; ++row) {
        for (int64_t pixel = 0; pixel < pixels; ++pixel) {
            const int64_t expert = all.experts ? all.experts[row * kPixels + pixel] : row;
            ranking.place(expert, better[row - first][pixel], begin + pixel);
        }
    }
}

// Finds for each lane a score that exactly `selected` of its experts reach; false if a lane has none or is not done.
bool find_bounds(const float* block, int64_t experts, int64_t selected, Scores& bound) {
    Scores low = load(block), high = low;
    for (int64_t expert = 1; expert < experts; ++expert) {
        const Scores score = load(block + expert * kPixels);
        low = score < low ? score : low;
        high = score > high ? score : high;
    }
    // All experts reach `low`, fewer than `selected` are above `high`.
    bound = low;
    const Counts wanted = static_cast<int32_t>(selected) - Counts{};
    for (int halving = 0; halving < kMaxHalvings; ++halving) {
        const Scores middle = 0.5f * low + 0.5f * high;
        Counts reached[4] = {};
        int64_t expert = 0;
        for (; expert + 4 <= experts; expert += 4) {
#pragma GCC unroll 4
            for (int64_t part = 0; part < 4; ++part) {
                reached[part] -= load(block + (expert + part) * kPixels) >= middle;
            }
        }
        for (; expert < experts; ++expert) reached[0] -= load(block + expert * kPixels) >= middle;
        const Counts count = reached[0] + reached[1] + reached[2] + reached[3];
        bound = middle;
        // A lane that is done keeps its interval, so that its middle stays the bound.
        low = count > wanted ? middle : low;
        high = count < wanted ? middle : high;
        const Counts is_open = count != wanted;
        int32_t num_open = 0;
        for (int64_t lane = 0; lane < kPixels; ++lane) num_open |= is_open[lane];
        if (!num_open) return true;
    }
    return false;
}

// Scratch of one thread: [X][lanes] scores, then [X][lanes] scores and experts of those drawn together.
struct Scratch {
    float* block;
    float* drawn;
    int32_t* experts;
};

// Draws the experts that reach the bound together, [E][lanes], in the order of their numbers.
void draw_best(const Scratch& scratch, int64_t experts, const Scores& bound) {
    int32_t count[kPixels] = {};
    for (int64_t expert = 0; expert < experts; ++expert) {
        const float* scores = scratch.block + expert * kPixels;
        const Counts is_best = load(scores) >= bound;
        // Every expert is written behind those drawn so far, and stays if it is one: no branch.
        for (int64_t lane = 0; lane < kPixels; ++lane) {
            const int64_t place = count[lane] * kPixels + lane;
            scratch.drawn[place] = scores[lane];
            scratch.experts[place] = static_cast<int32_t>(expert);
            count[lane] -= is_best[lane];
        }
    }
}

// The best expert of each pixel of a block; a later one must beat it, not equal it. The last block may not fill its
// lanes: it is copied where what lies behind it may be read.
void find_best(const Ranking& ranking, int64_t begin, int64_t pixels, Counts& is_bad) {
    const auto scores_of = [&](int64_t expert) {
        const float* scores = ranking.scores + expert * ranking.pixels + begin;
        if (pixels == kPixels) return without_nan(load(scores), is_bad);
        float lanes[kPixels] = {};
        std::memcpy(lanes, scores, pixels * sizeof(float));
        return without_nan(load(lanes), is_bad);
    };
    Scores best = scores_of(0);
    Counts expert_of_best = {};
    for (int64_t expert = 1; expert < ranking.experts; ++expert) {
        const Scores score = scores_of(expert);
        const Counts is_better = score > best;
        best = is_better ? score : best;
        expert_of_best = is_better ? static_cast<int32_t>(expert) - Counts{} : expert_of_best;
    }
    std::memcpy(ranking.indices + begin, &expert_of_best, pixels * sizeof(int32_t));
}

void rank_by_counting(const Ranking& ranking, const Scratch& scratch, int64_t begin, int64_t pixels, Counts& is_bad) {
    for (int64_t expert = 0; expert < ranking.experts; ++expert) {
        float* lanes = scratch.block + expert * kPixels;
        std::memcpy(lanes, ranking.scores + expert * ranking.pixels + begin, pixels * sizeof(float));
        const Scores scores = without_nan(load(lanes), is_bad);
        std::memcpy(lanes, &scores, sizeof(scores));
    }
    Candidates all = {scratch.block, nullptr, ranking.experts};
    Scores bound;
    // With a full block: lanes that hold no pixel could have no bound.
    if (ranking.experts >= kMinDrawn && ranking.selected < ranking.experts && pixels == kPixels &&
        find_bounds(scratch.block, ranking.experts, ranking.selected, bound)) {
        draw_best(scratch, ranking.experts, bound);
        all = {scratch.drawn, scratch.experts, ranking.selected};
    }
    for (int64_t first = 0; first < all.count; first += kRows) count_rows(ranking, all, first, begin, pixels);
}

// Larger scores have smaller keys; among equal scores the lower expert has.
uint64_t make_key(float score, int64_t expert) {
    score += 0.0f;  // -0 equals +0, but has other bits
    uint32_t bits;
    std::memcpy(&bits, &score, sizeof(bits));
    const uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return static_cast<uint64_t>(~ascending) << 32 | static_cast<uint64_t>(expert);
}

void rank_by_sorting(const Ranking& ranking, std::vector<uint64_t>& keys, int64_t begin, int64_t count,
                     Counts& is_bad) {
    keys.resize(ranking.experts);
    for (int64_t pixel = begin; pixel < begin + count; ++pixel) {
        for (int64_t expert = 0; expert < ranking.experts; ++expert) {
            const float score = ranking.scores[expert * ranking.pixels + pixel];
            is_bad[0] |= score - score != 0.0f;
            const bool is_nan = score != score;
            keys[expert] = make_key(is_nan ? -std::numeric_limits<float>::infinity() : score, expert);
        }
        std::nth_element(keys.begin(), keys.begin() + ranking.selected - 1, keys.end());
        std::sort(keys.begin(), keys.begin() + ranking.selected);
        for (int64_t rank = 0; rank < ranking.selected; ++rank) ranking.place(keys[rank] & 0xffffffffu, rank, pixel);
    }
}

// Returns whether a score is not finite.
bool rank_by_networks(const Ranking& ranking, int64_t threads) {
    const int64_t tiles = (ranking.pixels + kTile - 1) / kTile;
    const RankLanes rank = network_for(ranking.selected);
    // Zeros, because the last tile may not be full.
    std::vector<float> scratch(threads * ranking.experts * kTile, 0.0f);
    int found_bad = 0;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1) reduction(| : found_bad)
    for (int64_t number = 0; number < tiles; ++number) {
        int64_t thread = 0;
#ifdef _OPENMP
        thread = omp_get_thread_num();
#endif
        float* tile = scratch.data() + thread * ranking.experts * kTile;
        const int64_t begin = number * kTile;
        const int64_t count = std::min(kTile, ranking.pixels - begin);
        for (int64_t expert = 0; expert < ranking.experts; ++expert) {
            std::memcpy(tile + expert * kTile, ranking.scores + expert * ranking.pixels + begin, count * sizeof(float));
            if (count < kTile) std::fill(tile + expert * kTile + count, tile + (expert + 1) * kTile, 0.0f);
        }
        KeyBits is_bad = {};
        for (int64_t first = 0; first < count; first += kKeyLanes) {
            rank(tile + first, ranking.experts, ranking.selected, ranking.indices + begin + first, ranking.pixels,
                 std::min(kKeyLanes, count - first), is_bad);
        }
        for (int64_t lane = 0; lane < kKeyLanes; ++lane) found_bad |= is_bad[lane];
    }
    return found_bad != 0;
}

// Returns whether a score is not finite.
bool rank_all(const Ranking& ranking, int64_t threads) {
    if (kHasNetworks && ranking.selected > 1 && ranking.selected <= kMaxNetwork) {
        return rank_by_networks(ranking, threads);
    }
    const int64_t blocks = (ranking.pixels + kPixels - 1) / kPixels;
    const bool counts = ranking.experts <= kMaxCounted;
    // Zeros, because the last block may not fill its lanes. One row more: the last expert is written behind the drawn.
    const int64_t size = counts ? (ranking.experts + 1) * kPixels : 0;
    std::vector<float> scores(2 * threads * size, 0.0f);
    std::vector<int32_t> experts(threads * size, 0);
    std::vector<std::vector<uint64_t>> keys(threads);
    int found_bad = 0;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1) reduction(| : found_bad)
    for (int64_t block = 0; block < blocks; ++block) {
        int64_t thread = 0;
        Counts is_bad = {};
#ifdef _OPENMP
        thread = omp_get_thread_num();
#endif
        const int64_t begin = block * kPixels;
        const int64_t count = std::min<int64_t>(kPixels, ranking.pixels - begin);
        if (ranking.selected == 1) {
            find_best(ranking, begin, count, is_bad);
        } else if (counts) {
            float* own = scores.data() + 2 * thread * size;
            rank_by_counting(ranking, {own, own + size, experts.data() + thread * size}, begin, count, is_bad);
        } else {
            rank_by_sorting(ranking, keys[thread], begin, count, is_bad);
        }
        for (int64_t lane = 0; lane < kPixels; ++lane) found_bad |= is_bad[lane];
    }
    return found_bad != 0;
}

}  // namespace
}  // namespace smoe

// scores (X, P) to indices (E, P), best first; is_nonfinite is set to whether a score is not finite.
extern "C" int smoe_top_experts(const float* scores, int64_t experts, int64_t selected, int64_t pixels,
                                int32_t* indices, int64_t* is_nonfinite, int64_t threads) {
    try {
        *is_nonfinite = smoe::rank_all({scores, experts, selected, pixels, indices}, threads);
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}
