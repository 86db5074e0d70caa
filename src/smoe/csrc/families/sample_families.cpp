// Selects an expert of each family at each pixel, after noise was added to the scores.
//
// The noise is the sum of the four bytes of a hash of the seed, the expert and the pixel: nearly Gaussian, bounded, and
// the same numbers on every device and for every number of threads. Lanes are consecutive pixels.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

namespace smoe {
namespace {

#if defined(__AVX512F__)
constexpr int64_t kPixels = 16;
#elif defined(__AVX2__)
constexpr int64_t kPixels = 8;
#else
constexpr int64_t kPixels = 4;
#endif
typedef float Scores __attribute__((vector_size(kPixels * 4)));
typedef int32_t Numbers __attribute__((vector_size(kPixels * 4)));
typedef uint32_t Bits __attribute__((vector_size(kPixels * 4)));

// A bijection of 32 bits whose outputs pass as random (lowbias32).
template <typename T>
inline T scramble(T bits) {
    bits ^= bits >> 16;
    bits *= 0x7feb352du;
    bits ^= bits >> 15;
    bits *= 0x846ca68bu;
    bits ^= bits >> 16;
    return bits;
}

// The sum of the four bytes less its mean, between -510 and 510.
inline Scores sum_bytes(Bits bits) {
    bits = (bits & 0x00ff00ffu) + ((bits >> 8) & 0x00ff00ffu);
    bits = (bits & 0xffffu) + (bits >> 16);
    return __builtin_convertvector((Numbers)bits - 510, Scores);
}

// One family at one block of pixels; the last block repeats its last pixel.
inline int select(const float* scores, int64_t first, int64_t count, int64_t pixels, int64_t begin, int64_t lanes,
                  uint32_t seed, float factor, int32_t* indices) {
    Scores best = -std::numeric_limits<float>::infinity() - Scores{};
    Numbers chosen = Numbers{} + static_cast<int32_t>(first), is_bad = {};
    Bits lane_numbers;
    for (int64_t lane = 0; lane < kPixels; ++lane) lane_numbers[lane] = static_cast<uint32_t>(lane);
    for (int64_t expert = first; expert < first + count; ++expert) {
        Scores score;
        const float* source = scores + expert * pixels + begin;
        if (lanes == kPixels) {
            std::memcpy(&score, source, sizeof(score));
        } else {
            for (int64_t lane = 0; lane < kPixels; ++lane) score[lane] = source[std::min(lane, lanes - 1)];
        }
        const Bits place = lane_numbers + static_cast<uint32_t>(expert * pixels + begin);
        is_bad |= (score - score) != Scores{};
        const Scores noisy = score + factor * sum_bytes(scramble(place * 0x9e3779b9u + seed));
        // A NaN is never larger; of equal scores the lower number stays.
        const Numbers is_better = noisy > best;
        best = is_better ? noisy : best;
        chosen = is_better ? Numbers{} + static_cast<int32_t>(expert) : chosen;
    }
    std::memcpy(indices + begin, &chosen, lanes * sizeof(int32_t));
    int found = 0;
    for (int64_t lane = 0; lane < kPixels; ++lane) found |= is_bad[lane];
    return found;
}

}  // namespace
}  // namespace smoe

// scores (X, P) to indices (E, P), the best of each family after noise; the first X % E families have one expert more.
// The seed is read modulo 2^32; `factor` is what one unit of the sum of bytes adds to a score.
extern "C" int smoe_sample_families(const float* scores, int64_t experts, int64_t selected, int64_t pixels,
                                    const int64_t* seed, float factor, int32_t* indices, int64_t* is_nonfinite,
                                    int64_t threads) {
    using namespace smoe;
    const int64_t blocks = (pixels + kPixels - 1) / kPixels;
    const int64_t size = experts / selected, larger = experts % selected;
    const uint32_t bits = scramble(static_cast<uint32_t>(*seed));
    int found_bad = 0;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1) reduction(| : found_bad) collapse(2)
    for (int64_t family = 0; family < selected; ++family) {
        for (int64_t block = 0; block < blocks; ++block) {
            const int64_t begin = block * kPixels;
            found_bad |= select(scores, family * size + std::min(family, larger), size + (family < larger), pixels,
                                begin, std::min(kPixels, pixels - begin), bits, factor, indices + family * pixels);
        }
    }
    *is_nonfinite = found_bad != 0;
    return 0;
}
