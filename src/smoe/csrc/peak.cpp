// Multiply-adds of one core at their full rate, for benchmarks: what kernels could reach at most.
#include "vector.h"

// Does `rounds` times 12 multiply-adds of a register, and returns how many floating-point operations that is.
extern "C" double smoe_multiply_add_peak(int64_t rounds) {
    using smoe::Register;
    constexpr int kSums = 12;
    Register sums[kSums], factor = 0.5f - Register{};
    for (int i = 0; i < kSums; ++i) sums[i] = static_cast<float>(i) - Register{};  // equal ones would be one
    for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
        for (int i = 0; i < kSums; ++i) sums[i] = sums[i] * factor + factor;
    }
    Register total = {};
    for (const Register& sum : sums) total += sum;
    volatile float used = total[0];
    static_cast<void>(used);
    return 2.0 * kSums * smoe::kRegisterLanes * static_cast<double>(rounds);
}
