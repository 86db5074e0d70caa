// The quantile of each sample's errors: any floats, of any sign, in any number.
//
// quantile.h describes the selection: one pass over the values, of which a tenth or so are copied. A thread takes whole
// samples and keeps the memory of the copies between calls; where there are fewer samples than threads, the threads
// share each sample's pass instead.
#include <atomic>
#include <new>

#include "quantile.h"

namespace smoe {
namespace training {
namespace {

// Below about as many elements per thread, starting it takes longer than its work.
constexpr int64_t kElementsPerThread = 1 << 14;

bool error_quantile(const float* errors, int64_t batch, int64_t size, double quantile, float* result, int64_t threads) {
    threads = std::max<int64_t>(1, std::min(threads, batch * size / kElementsPerThread));
    const QuantileSelector selector(quantile, size);
    std::atomic<bool> has_memory{true};
    const auto select = [&](int64_t sample, int64_t parts) {
        Scratch scratch;
        const float* row = errors + sample * size;
        const std::vector<int64_t> starts = even_starts(size, parts);
        const auto value_at = [&](int64_t i) { return row[i]; };
        const auto visit_part = [&](int64_t part, auto& visit) {
            visit(row + starts[part], starts[part + 1] - starts[part]);
        };
        try {
            result[sample] = selector.select(value_at, visit_part, starts, scratch).value;
        } catch (const std::bad_alloc&) {  // may not leave the parallel region
            has_memory = false;
        }
    };
    if (batch < threads) {
        for (int64_t sample = 0; sample < batch; ++sample) select(sample, threads);
        return has_memory;
    }
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t sample = 0; sample < batch; ++sample) select(sample, 1);
    return has_memory;
}

}  // namespace
}  // namespace training
}  // namespace smoe

extern "C" int smoe_error_quantile(const float* errors, int64_t batch, int64_t size, double quantile, float* result,
                                   int64_t threads) {
    return smoe::training::error_quantile(errors, batch, size, quantile, result, threads) ? 0 : 1;
}
