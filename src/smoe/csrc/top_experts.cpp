// Ranks the experts of each pixel by their scores and keeps the best E, the lower number first among equals.
//
// The rank of an expert is the number of experts that beat it: those with a higher score, and those with the same score
// and a lower number. Counting them compares each expert with all others, X * X comparisons a pixel, but up to 16
// pixels at a time and without a branch, which beats sorting up to several hundred experts (measured: 256 of them 4
// times). For larger banks a score and its expert make one 64-bit key, and the keys of a pixel are selected and sorted.
//
// Lanes are consecutive pixels. A block copies its scores to [X][lanes], 16 KB for 256 experts, which stay in the first
// cache. Eight experts' scores and counts are held in registers while the others stream by. Each pixel is ranked by one
// thread: nothing depends on their number.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

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

struct Ranking {
    const float* scores;  // (X, P), finite
    int64_t experts, selected, pixels;
    int32_t* indices;  // (E, P), best first

    // Expert `expert` has `rank` better ones at a pixel.
    void place(int64_t expert, int64_t rank, int64_t pixel) const {
        if (rank < selected) indices[rank * pixels + pixel] = static_cast<int32_t>(expert);
    }
};

// Ranks experts [first, first + kRows) of a block; rows beyond the bank repeat the last and are not placed.
void count_rows(const Ranking& ranking, const float* block, int64_t first, int64_t begin, int64_t count) {
    Scores scores[kRows];
    Counts better[kRows];
#pragma GCC unroll 8
    for (int64_t row = 0; row < kRows; ++row) {
        scores[row] = load(block + std::min(first + row, ranking.experts - 1) * kPixels);
        better[row] = Counts{};
    }
    // A comparison is -1 where it holds.
    for (int64_t other = 0; other < first; ++other) {
        const Scores score = load(block + other * kPixels);
#pragma GCC unroll 8
        for (int64_t row = 0; row < kRows; ++row) better[row] -= score >= scores[row];
    }
    const int64_t end = std::min(first + kRows, ranking.experts);
    for (int64_t other = first; other < end; ++other) {
        const Scores score = load(block + other * kPixels);
        for (int64_t row = 0; row < kRows; ++row) {
            if (other < first + row) better[row] -= score >= scores[row];
            if (other > first + row) better[row] -= score > scores[row];
        }
    }
    for (int64_t other = end; other < ranking.experts; ++other) {
        const Scores score = load(block + other * kPixels);
#pragma GCC unroll 8
        for (int64_t row = 0; row < kRows; ++row) better[row] -= score > scores[row];
    }
    for (int64_t expert = first; expert < end; ++expert) {
        for (int64_t pixel = 0; pixel < count; ++pixel) {
            ranking.place(expert, better[expert - first][pixel], begin + pixel);
        }
    }
}

void rank_by_counting(const Ranking& ranking, float* block, int64_t begin, int64_t count) {
    for (int64_t expert = 0; expert < ranking.experts; ++expert) {
        std::memcpy(block + expert * kPixels, ranking.scores + expert * ranking.pixels + begin, count * sizeof(float));
    }
    for (int64_t first = 0; first < ranking.experts; first += kRows) count_rows(ranking, block, first, begin, count);
}

// Larger scores have smaller keys; among equal scores the lower expert has.
uint64_t make_key(float score, int64_t expert) {
    score += 0.0f;  // -0 equals +0, but has other bits
    uint32_t bits;
    std::memcpy(&bits, &score, sizeof(bits));
    const uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return static_cast<uint64_t>(~ascending) << 32 | static_cast<uint64_t>(expert);
}

void rank_by_sorting(const Ranking& ranking, std::vector<uint64_t>& keys, int64_t begin, int64_t count) {
    keys.resize(ranking.experts);
    for (int64_t pixel = begin; pixel < begin + count; ++pixel) {
        for (int64_t expert = 0; expert < ranking.experts; ++expert) {
            keys[expert] = make_key(ranking.scores[expert * ranking.pixels + pixel], expert);
        }
        std::nth_element(keys.begin(), keys.begin() + ranking.selected - 1, keys.end());
        std::sort(keys.begin(), keys.begin() + ranking.selected);
        for (int64_t rank = 0; rank < ranking.selected; ++rank) ranking.place(keys[rank] & 0xffffffffu, rank, pixel);
    }
}

void rank_all(const Ranking& ranking, int64_t threads) {
    const int64_t blocks = (ranking.pixels + kPixels - 1) / kPixels;
    const bool counts = ranking.experts <= kMaxCounted;
    // Zeros, because the last block may not fill its lanes.
    std::vector<float> scores(counts ? threads * ranking.experts * kPixels : 0, 0.0f);
    std::vector<std::vector<uint64_t>> keys(threads);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t block = 0; block < blocks; ++block) {
        int64_t thread = 0;
#ifdef _OPENMP
        thread = omp_get_thread_num();
#endif
        const int64_t begin = block * kPixels;
        const int64_t count = std::min<int64_t>(kPixels, ranking.pixels - begin);
        if (counts) {
            rank_by_counting(ranking, scores.data() + thread * ranking.experts * kPixels, begin, count);
        } else {
            rank_by_sorting(ranking, keys[thread], begin, count);
        }
    }
}

}  // namespace
}  // namespace smoe

// scores (X, P), finite, to indices (E, P), best first.
extern "C" int smoe_top_experts(const float* scores, int64_t experts, int64_t selected, int64_t pixels,
                                int32_t* indices, int64_t threads) {
    try {
        smoe::rank_all({scores, experts, selected, pixels, indices}, threads);
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}
