// Pixels a register at a time, for loops that compare and choose: compilers, mindful of floating-point traps, leave
// them scalar.
#pragma once

#include <cstdint>
#include <cstring>

#include "../vector.h"

namespace smoe {
namespace training {

typedef uint32_t UintRegister __attribute__((vector_size(4 * kRegisterLanes)));

inline Register broadcast(float value) { return value - Register{}; }

inline Register absolute(Register x) { return (Register)((IntRegister)x & 0x7fffffff); }

// The first `count` lanes from or to memory, or all of them if there are so many. Missing ones are zero.
inline Register load(const float* source, int64_t count = kRegisterLanes) {
    Register lanes = {};
    if (count >= kRegisterLanes) {
        std::memcpy(&lanes, source, sizeof(lanes));
    } else {
        for (int64_t i = 0; i < count; ++i) lanes[i] = source[i];
    }
    return lanes;
}

inline void store(float* target, Register lanes, int64_t count = kRegisterLanes) {
    if (count >= kRegisterLanes) {
        std::memcpy(target, &lanes, sizeof(lanes));
    } else {
        for (int64_t i = 0; i < count; ++i) target[i] = lanes[i];
    }
}

// e^x for x <= 0, to about one unit in the last place; NaN for NaN. x = n ln 2 + r with |r| <= ln 2 / 2, and the series
// of e^r, whose first omitted term is below 2^-27. 2^n is multiplied in two halves, so that it may be below the normal
// floats.
inline Register exp_of_negative(Register x) {
    constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, in the lowest bits
    constexpr uint32_t kRounderBits = 0x4b400000;
    x = x < -104.0f ? broadcast(-104.0f) : x;  // e^-104 rounds to zero
    const Register shifted = x * 1.44269504f + kRounder;
    const Register n = shifted - kRounder;
    // ln 2 in two parts, the first of so few bits that its product with n is exact.
    const Register r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    Register power = r * (1.0f / 5040) + 1.0f / 720;
    power = power * r + 1.0f / 120;
    power = power * r + 1.0f / 24;
    power = power * r + 1.0f / 6;
    power = power * r + 0.5f;
    power = power * r + 1.0f;
    power = power * r + 1.0f;
    // Unsigned, since a NaN has any exponent here.
    const UintRegister exponent = (UintRegister)shifted - kRounderBits;
    const UintRegister half = (UintRegister)((IntRegister)exponent >> 1);
    return power * (Register)((half + 127) << 23) * (Register)((exponent - half + 127) << 23);
}

inline Register sigmoid(Register x) {
    const Register power = exp_of_negative(-absolute(x));
    return (x < 0.0f ? power : broadcast(1.0f)) / (1.0f + power);
}

}  // namespace training
}  // namespace smoe
