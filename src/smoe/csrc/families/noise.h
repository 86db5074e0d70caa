// Noise of a selection: the sum of the four bytes of a hash of the seed, the expert and the pixel. It is nearly
// Gaussian, bounded, and the same on every device and for every number of threads. Lanes are consecutive pixels.
#pragma once

#include <cstdint>
#include <limits>

#include "../vector.h"

namespace smoe {

typedef uint32_t BitRegister __attribute__((vector_size(4 * kRegisterLanes)));

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
inline Register sum_bytes(BitRegister bits) {
    bits = (bits & 0x00ff00ffu) + ((bits >> 8) & 0x00ff00ffu);
    bits = (bits & 0xffffu) + (bits >> 16);
    return __builtin_convertvector((IntRegister)bits - 510, Register);
}

// The best expert of one family so far, at a register of pixels, after noise was added to the scores.
class NoisyMaximum {
 public:
    // The place of an expert and pixel is `expert * pixels + pixel`; `factor` is what one unit of the bytes adds.
    NoisyMaximum(int64_t first_expert, int64_t pixels, int64_t first_pixel, uint32_t seed, float factor)
        : best_(-std::numeric_limits<float>::infinity() - Register{}),
          chosen_(IntRegister{} + static_cast<int32_t>(first_expert)),
          pixels_(pixels),
          seed_(seed),
          factor_(factor) {
        for (int lane = 0; lane < kRegisterLanes; ++lane) pixel_[lane] = static_cast<uint32_t>(first_pixel + lane);
    }

    void compare(int64_t expert, Register score) {
        is_bad_ |= (score - score) != Register{};
        const BitRegister place = pixel_ + static_cast<uint32_t>(expert * pixels_);
        const Register noisy = score + factor_ * sum_bytes(scramble(place * 0x9e3779b9u + seed_));
        // A NaN is never larger; of equal scores the lower number stays.
        const IntRegister is_better = noisy > best_;
        best_ = is_better ? noisy : best_;
        chosen_ = is_better ? IntRegister{} + static_cast<int32_t>(expert) : chosen_;
    }

    IntRegister chosen() const { return chosen_; }

    // Whether a score was not finite.
    int found_bad() const {
        int found = 0;
        for (int lane = 0; lane < kRegisterLanes; ++lane) found |= is_bad_[lane];
        return found;
    }

 private:
    Register best_;
    IntRegister chosen_, is_bad_ = {};
    BitRegister pixel_ = {};
    int64_t pixels_;
    uint32_t seed_;
    float factor_;
};

}  // namespace smoe
