// Sixteen floats at once, by the compiler's vector extension: one register with AVX-512, two with AVX2, four with SSE2.
// The same source is built once for each instruction set (see setup.py); no intrinsics where this type will do.
#pragma once

#include <cstdint>
#include <cstring>

// Lanes are passed by value between inlined functions only, so how a register-less machine would pass them is no
// matter.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace smoe {

constexpr int kLanes = 16;

typedef float Lanes __attribute__((vector_size(64)));

inline Lanes load(const float* source) {  // any alignment
    Lanes lanes;
    std::memcpy(&lanes, source, sizeof(lanes));
    return lanes;
}

inline void store(float* target, Lanes lanes) { std::memcpy(target, &lanes, sizeof(lanes)); }

inline Lanes broadcast(float value) { return value - Lanes{}; }

// One register of floats. Sums and factors that must stay in registers are written as these: compilers keep vectors
// wider than a register in memory.
#if defined(__AVX512F__)
constexpr int kRegisterLanes = 16;
#elif defined(__AVX2__)
constexpr int kRegisterLanes = 8;
#else
constexpr int kRegisterLanes = 4;
#endif

typedef float Register __attribute__((vector_size(4 * kRegisterLanes)));
typedef int32_t IntRegister __attribute__((vector_size(4 * kRegisterLanes)));  // and masks: all bits or none

inline int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

#if defined(__AVX512F__)
constexpr int kAccumulators = 24;  // of 32 registers of 16 lanes
#elif defined(__AVX2__)
constexpr int kAccumulators = 6;  // 12 of 16 registers of 8 lanes
#else
constexpr int kAccumulators = 2;  // 8 of 16 registers of 4 lanes
#endif

}  // namespace smoe
