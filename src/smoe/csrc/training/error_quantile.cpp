// The quantile of each sample's errors: any floats, of any sign, in any number.
//
// A thread takes whole samples and keeps its own counters and candidates between calls (quantile.h describes the
// selection). Memory is read twice: once to count, once to collect the few values near the rank. Nothing is written but
// these.
#include <atomic>
#include <new>

#include "quantile.h"

namespace smoe {
namespace training {
namespace {

// Below about as many elements per thread, starting it takes longer than its work.
constexpr int64_t kElementsPerThread = 1 << 14;

bool error_quantile(const float* errors, int64_t batch, int64_t size, double quantile, float* result, int64_t threads) {
    threads = std::max<int64_t>(1, std::min({threads, batch, batch * size / kElementsPerThread}));
    std::atomic<bool> has_memory{true};
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t sample = 0; sample < batch; ++sample) {
        const float* row = errors + sample * size;
        try {
            static thread_local QuantileSelector selector;
            result[sample] = selector.select([&](auto visit) { visit(row, size); }, size, quantile);
        } catch (const std::bad_alloc&) {  // may not leave the parallel region
            has_memory = false;
        }
    }
    return has_memory;
}

}  // namespace
}  // namespace training
}  // namespace smoe

extern "C" int smoe_error_quantile(const float* errors, int64_t batch, int64_t size, double quantile, float* result,
                                   int64_t threads) {
    return smoe::training::error_quantile(errors, batch, size, quantile, result, threads) ? 0 : 1;
}
