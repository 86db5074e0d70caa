#pragma once

#include <cstring>

#include "../vector.h"

namespace smoe {

// exp(x) for x <= 0 to two units in the last place; 0 below -87.
inline Register exponential(Register x) {
    const Register lowest = -87.0f - Register{};
    const IntRegister is_small = x < lowest;
    x = is_small ? lowest : x;
    // x = n log 2 + r with |r| <= log(2) / 2; adding and subtracting 1.5 * 2^23 rounds to an integer.
    const Register rounder = 12582912.0f - Register{};
    const Register n = (x * 1.44269504f + rounder) - rounder;
    const Register r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    Register power = 1.9875691e-4f * r + 1.3981999e-3f;
    power = power * r + 8.3334519e-3f;
    power = power * r + 4.1665796e-2f;
    power = power * r + 1.6666665e-1f;
    power = power * r + 5.0000001e-1f;
    power = power * r * r + r + 1.0f;
    const IntRegister exponent = (__builtin_convertvector(n, IntRegister) + 127) << 23;
    Register scale;
    std::memcpy(&scale, &exponent, sizeof(scale));
    return is_small ? Register{} : power * scale;
}

}  // namespace smoe
