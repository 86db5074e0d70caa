// Selects an expert of each family at each pixel, after noise was added to the scores; without noise, the best.

#include "family.h"
#include "noise.h"

// scores (X, P) to indices (E, P), the best of each family after noise; the first X % E families have one expert more.
// The seed is read modulo 2^32; `factor` is what one unit of the sum of bytes adds to a score.
extern "C" int smoe_sample_families(const float* scores, int64_t experts, int64_t selected, int64_t pixels,
                                    const int64_t* seed, float factor, int32_t* indices, int64_t* is_nonfinite,
                                    int64_t threads) {
    using namespace smoe;
    const int64_t blocks = ceil_divide(pixels, kRegisterLanes);
    const uint32_t bits = scramble(static_cast<uint32_t>(*seed));
    int found_bad = 0;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1) reduction(| : found_bad) collapse(2)
    for (int64_t number = 0; number < selected; ++number) {
        for (int64_t block = 0; block < blocks; ++block) {
            const Family family(number, experts, selected);
            const int64_t begin = block * kRegisterLanes, lanes = pixels - begin;
            NoisyMaximum best(family.first, pixels, begin, bits, factor);
            for (int64_t expert = family.first; expert < family.first + family.count; ++expert) {
                best.compare(expert, load_pixels(scores + expert * pixels + begin, lanes));
            }
            store_pixels(indices + number * pixels + begin, best.chosen(), lanes);
            found_bad |= best.found_bad();
        }
    }
    *is_nonfinite = found_bad != 0;
    return 0;
}
