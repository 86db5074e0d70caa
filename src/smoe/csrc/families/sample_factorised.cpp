// Selects an expert of each family at each pixel from keys and embeddings, whose products are the scores.
//
// The scores of a bank take X numbers for each pixel; here they live in registers and are never stored. The numbers of
// a block of pixels stay in the first cache while the experts stream by.

#include "family.h"
#include "noise.h"

namespace smoe {
namespace {

constexpr int64_t kUsualRank = 8;

// The numbers of the pixels `[rank][lanes]`, in registers if the rank is the usual one.
template <int64_t kRank>
inline Register score_of(const float* key, const Register* values, int64_t rank) {
    const int64_t count = kRank > 0 ? kRank : rank;
    Register score = key[0] * values[0];
    for (int64_t number = 1; number < count; ++number) score += key[number] * values[number];
    return score;
}

template <int64_t kRank>
int select_block(const float* keys, const Register* values, int64_t rank, int64_t experts, int64_t selected,
                 int64_t pixels, int64_t begin, uint32_t seed, float factor, int32_t* indices) {
    int found_bad = 0;
    for (int64_t number = 0; number < selected; ++number) {
        const Family family(number, experts, selected);
        NoisyMaximum best(family.first, pixels, begin, seed, factor);
        for (int64_t expert = family.first; expert < family.first + family.count; ++expert) {
            best.compare(expert, score_of<kRank>(keys + expert * rank, values, rank));
        }
        store_pixels(indices + number * pixels + begin, best.chosen(), pixels - begin);
        found_bad |= best.found_bad();
    }
    return found_bad;
}

}  // namespace
}  // namespace smoe

// keys (X, R) and embeddings (R, P) to indices (E, P), the best of each family after noise. R is at most 64.
extern "C" int smoe_sample_factorised(const float* keys, const float* embeddings, int64_t rank, int64_t experts,
                                      int64_t selected, int64_t pixels, const int64_t* seed, float factor,
                                      int32_t* indices, int64_t* is_nonfinite, int64_t threads) {
    using namespace smoe;
    const int64_t blocks = ceil_divide(pixels, kRegisterLanes);
    const uint32_t bits = scramble(static_cast<uint32_t>(*seed));
    int found_bad = 0;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1) reduction(| : found_bad)
    for (int64_t block = 0; block < blocks; ++block) {
        const int64_t begin = block * kRegisterLanes;
        Register values[64];
        for (int64_t number = 0; number < rank; ++number) {
            values[number] = load_pixels(embeddings + number * pixels + begin, pixels - begin);
        }
        const auto select = rank == kUsualRank ? select_block<kUsualRank> : select_block<0>;
        found_bad |= select(keys, values, rank, experts, selected, pixels, begin, bits, factor, indices);
    }
    *is_nonfinite = found_bad != 0;
    return 0;
}
