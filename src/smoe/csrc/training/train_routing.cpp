// What a routed layer does in its backward pass besides its convolution (paper sections 2.2 and 2.3): how far off each
// choice was, which choices were wrong, the damped error, and the gate's gradient.
//
//   e[b, s, p] = scale * mean over f of |error[b, s, f, p]|,  wrong where e > quantile of e[b] + tolerance
//
// smoe_train_routing makes two sweeps, neither of which stores e:
//   1. by samples: the quantile of e (quantile.h: two passes, which compute e chunk by chunk into L1). A sample that
//      fits L2 or L3 is read once from memory.
//   2. by chunks of pixels, over all samples: e is computed again, compared, and the error copied or damped. The counts
//      of wrong choices of a chunk stay in L1 and are written once, at its end. Reads the error, writes the damped one.
// Threads own samples in the first sweep and chunks in the second, and a chunk adds its samples in ascending order: no
// result depends on the number of threads. No product is ever added to anything, so fused multiply-adds cannot change
// a bit either. Sums of more than sixteen terms are taken in blocks of sixteen, as PyTorch does.
//
// smoe_routing_gradient goes over chunks of pixels: sigmoid(scores) minus the unselected experts' label everywhere, and
// then once more at the selected experts (the scores and gradients of a chunk are still in L2).
//
// All inner loops are over contiguous pixels, a register at a time where they compare (registers.h) and otherwise
// vectorised by the compiler.
#include <atomic>
#include <new>
#include <vector>

#include "quantile.h"
#include "registers.h"

namespace smoe {
namespace training {
namespace {

constexpr int64_t kChunk = 2048;  // pixels: 8 KiB, several of which fit L1
// Below about as many elements per thread, starting it takes longer than its work.
constexpr int64_t kElementsPerThread = 1 << 14;

int64_t useful_threads(int64_t threads, int64_t parts, int64_t elements) {
    return std::max<int64_t>(1, std::min({threads, parts, elements / kElementsPerThread}));
}

// A sum of rows of pixels, in blocks of sixteen rows.
class BlockedSum {
 public:
    static constexpr int64_t kRows = 16;

    // memory: of 2 * kChunk floats.
    explicit BlockedSum(float* memory) : block_(memory), total_(memory + kChunk) {}

    void start(int64_t count) {
        count_ = count;
        num_rows_ = 0;
        std::fill(block_, block_ + count, 0.0f);
        std::fill(total_, total_ + count, 0.0f);
    }

    template <class Term>
    void add(Term term) {
        float* __restrict__ block = block_;
        for (int64_t i = 0; i < count_; ++i) block[i] += term(i);
        if (++num_rows_ % kRows != 0) return;
        float* __restrict__ total = total_;
        for (int64_t i = 0; i < count_; ++i) total[i] += block[i];
        std::fill(block, block + count_, 0.0f);
    }

    float operator[](int64_t i) const { return block_[i] + total_[i]; }

 private:
    float* block_;
    float* total_;
    int64_t count_ = 0, num_rows_ = 0;
};

struct Routing {
    const float* error;
    int64_t batch, selected, expert_channels, pixels, experts;
    float scale;

    int64_t sample_size() const { return selected * pixels; }

    const float* error_of(int64_t sample, int64_t slot) const {
        return error + (sample * selected + slot) * expert_channels * pixels;
    }

    // e of `count` pixels from `first` on.
    void choice_errors(int64_t sample, int64_t slot, int64_t first, int64_t count, BlockedSum& sum,
                       float* __restrict__ result) const {
        const float* slot_error = error_of(sample, slot) + first;
        const float factor = scale;
        if (expert_channels == 1) {
            for (int64_t i = 0; i < count; ++i) result[i] = std::fabs(slot_error[i]) * factor;
            return;
        }
        sum.start(count);
        for (int64_t channel = 0; channel < expert_channels; ++channel) {
            const float* row = slot_error + channel * pixels;
            sum.add([row](int64_t i) { return std::fabs(row[i]); });
        }
        const float divisor = static_cast<float>(expert_channels);
        for (int64_t i = 0; i < count; ++i) result[i] = sum[i] / divisor * factor;
    }

    // Calls visit(e of a chunk, number of its pixels) for all chunks of a sample.
    template <class Visit>
    void for_each_chunk(int64_t sample, Visit visit) const {
        alignas(64) float chunk[kChunk], sum_memory[2 * kChunk];
        BlockedSum sum(sum_memory);
        for (int64_t slot = 0; slot < selected; ++slot) {
            for (int64_t first = 0; first < pixels; first += kChunk) {
                const int64_t count = std::min(kChunk, pixels - first);
                choice_errors(sample, slot, first, count, sum, chunk);
                visit(chunk, count);
            }
        }
    }
};

struct Threshold {
    float wrong, damped;  // e beyond which a choice is wrong, and its error damped
};

bool find_thresholds(const Routing& routing, double quantile, double tolerance, double damping_tolerance,
                     int64_t threads, std::vector<Threshold>& thresholds, std::atomic<bool>& is_nonfinite) {
    std::atomic<bool> has_memory{true};
    threads = useful_threads(threads, routing.batch, routing.batch * routing.sample_size());
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t sample = 0; sample < routing.batch; ++sample) {
        const auto chunks = [&](auto visit) { routing.for_each_chunk(sample, visit); };
        try {
            static thread_local QuantileSelector selector;
            const float threshold = selector.select(chunks, routing.sample_size(), quantile);
            thresholds[sample] = {threshold + static_cast<float>(tolerance),
                                  threshold + static_cast<float>(damping_tolerance)};
            if (selector.has_nonfinite()) is_nonfinite = true;
        } catch (const std::bad_alloc&) {  // may not leave the parallel region
            has_memory = false;
        }
    }
    return has_memory;
}

// By integers, which compilers vectorise.
inline int is_nonfinite_float(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return (bits & 0x7fffffffu) >= 0x7f800000u;
}

void find_nonfinite(const Routing& routing, int64_t threads, std::atomic<bool>& is_nonfinite) {
    threads = useful_threads(threads, routing.batch, routing.batch * routing.sample_size());
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t sample = 0; sample < routing.batch; ++sample) {
        int found = 0;
        routing.for_each_chunk(sample, [&](const float* chunk, int64_t count) {
            for (int64_t i = 0; i < count; ++i) found |= is_nonfinite_float(chunk[i]);
        });
        if (found) is_nonfinite = true;
    }
}

// One chunk of pixels, over all samples.
class ChunkSweep {
 public:
    static size_t memory_size(const Routing& routing) { return (7 + routing.selected) * kChunk; }

    ChunkSweep(const Routing& routing, const std::vector<Threshold>& thresholds, float* memory)
        : routing_(routing),
          thresholds_(thresholds),
          errors_(memory),
          num_wrong_(memory + kChunk),
          sum_(memory + 2 * kChunk),
          labels_(memory + 4 * kChunk),
          counts_(memory + 6 * kChunk) {}

    // damped: nullptr if not wanted. wrong_share, unselected_label: likewise.
    void run(int64_t first, int64_t count, float damping, float* damped, float* wrong_share, float* unselected_label) {
        if (wrong_share != nullptr) start_counts(count);
        for (int64_t sample = 0; sample < routing_.batch; ++sample) {
            if (wrong_share != nullptr) std::fill(num_wrong_, num_wrong_ + count, 0.0f);
            for (int64_t slot = 0; slot < routing_.selected; ++slot) {
                routing_.choice_errors(sample, slot, first, count, sum_, errors_);
                if (wrong_share != nullptr) count_wrong(sample, slot, count);
                if (damped != nullptr) damp(sample, slot, first, count, damping, damped);
            }
            if (wrong_share != nullptr && !labels_follow_from_shares()) add_labels();
        }
        if (wrong_share != nullptr) finish_counts(first, count, wrong_share, unselected_label);
    }

 private:
    int64_t num_unselected() const { return routing_.experts - routing_.selected; }

    // Whether no label can exceed 1, so that its mean over the batch is that of the slots' wrong shares.
    bool labels_follow_from_shares() const { return routing_.selected <= num_unselected(); }

    void start_counts(int64_t count) {
        std::fill(counts_, counts_ + routing_.selected * kChunk, 0.0f);
        labels_.start(count);
    }

    void count_wrong(int64_t sample, int64_t slot, int64_t count) {
        const float limit = thresholds_[sample].wrong;
        float* slot_count = counts_ + slot * kChunk;
        for (int64_t i = 0; i < count; i += kRegisterLanes) {  // counts and errors have room for the last register
            const IntRegister is_wrong = load(errors_ + i) > limit;
            const Register increment = is_wrong ? broadcast(1.0f) : Register{};
            store(slot_count + i, load(slot_count + i) + increment);
            store(num_wrong_ + i, load(num_wrong_ + i) + increment);
        }
    }

    void damp(int64_t sample, int64_t slot, int64_t first, int64_t count, float damping, float* damped) const {
        const float limit = thresholds_[sample].damped;
        for (int64_t channel = 0; channel < routing_.expert_channels; ++channel) {
            const float* row = routing_.error_of(sample, slot) + channel * routing_.pixels + first;
            float* result = damped + (row - routing_.error);
            for (int64_t i = 0; i < count; i += kRegisterLanes) {
                const IntRegister is_damped = load(errors_ + i) > limit;
                // A product, so that an overflowed error stays visible to a loss scaler even where the damping is 0.
                const Register factor = is_damped ? broadcast(damping) : broadcast(1.0f);
                store(result + i, load(row + i, count - i) * factor, count - i);
            }
        }
    }

    void add_labels() {
        const float divisor = static_cast<float>(num_unselected());
        const float* num_wrong = num_wrong_;
        // With all experts selected there is no label to learn: it is zero.
        if (divisor == 0.0f) return;
        labels_.add([num_wrong, divisor](int64_t i) { return std::min(num_wrong[i] / divisor, 1.0f); });
    }

    void finish_counts(int64_t first, int64_t count, float* wrong_share, float* unselected_label) {
        const float batch = static_cast<float>(routing_.batch);
        for (int64_t slot = 0; slot < routing_.selected; ++slot) {
            const float* slot_count = counts_ + slot * kChunk;
            float* share = wrong_share + slot * routing_.pixels + first;
            for (int64_t i = 0; i < count; ++i) share[i] = slot_count[i] / batch;
            if (labels_follow_from_shares()) labels_.add([share](int64_t i) { return share[i]; });
        }
        const float divisor = labels_follow_from_shares() ? static_cast<float>(num_unselected()) : batch;
        for (int64_t i = 0; i < count; ++i) unselected_label[first + i] = labels_[i] / divisor;
    }

    const Routing& routing_;
    const std::vector<Threshold>& thresholds_;
    float* errors_;     // e of the current sample and slot
    float* num_wrong_;  // at each pixel of the current sample
    BlockedSum sum_;    // over an expert's channels
    BlockedSum labels_;
    float* counts_;  // of wrong choices, for each slot
};

bool train_routing(const Routing& routing, double quantile, double tolerance, double damping_tolerance, float damping,
                   float* damped, float* wrong_share, float* unselected_label, int64_t* is_nonfinite, int64_t threads) {
    static thread_local Scratch scratch;
    *is_nonfinite = 0;
    if (routing.batch == 0) {
        if (wrong_share == nullptr) return true;
        std::fill(wrong_share, wrong_share + routing.sample_size(), 0.0f);
        std::fill(unselected_label, unselected_label + routing.pixels, 0.0f);
        return true;
    }
    if (routing.sample_size() == 0) return true;

    std::atomic<bool> found_nonfinite{false};
    if (damped == nullptr && wrong_share == nullptr) {
        find_nonfinite(routing, threads, found_nonfinite);
        *is_nonfinite = found_nonfinite;
        return true;
    }
    std::vector<Threshold> thresholds(routing.batch);
    if (!find_thresholds(routing, quantile, tolerance, damping_tolerance, threads, thresholds, found_nonfinite)) {
        return false;
    }
    *is_nonfinite = found_nonfinite;

    const int64_t chunks = (routing.pixels + kChunk - 1) / kChunk;
    threads = useful_threads(threads, chunks, routing.batch * routing.sample_size());
    const size_t memory_size = ChunkSweep::memory_size(routing);
    float* memory = scratch.floats(threads * memory_size);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t thread = 0; thread < threads; ++thread) {
        ChunkSweep sweep(routing, thresholds, memory + thread * memory_size);
        for (int64_t chunk = chunks * thread / threads; chunk < chunks * (thread + 1) / threads; ++chunk) {
            const int64_t first = chunk * kChunk;
            const int64_t count = std::min(kChunk, routing.pixels - first);
            sweep.run(first, count, damping, damped, wrong_share, unselected_label);
        }
    }
    return true;
}

struct GradientScale {
    float size, factor;

    Register operator()(Register difference) const { return difference / size * factor; }
};

// Of the pixels from `first` on.
void gradient_of_chunk(const float* scores, const int32_t* indices, const float* wrong_share,
                       const float* unselected_label, int64_t experts, int64_t selected, int64_t pixels, int64_t first,
                       int64_t count, GradientScale scaled, float* gradient) {
    for (int64_t expert = 0; expert < experts; ++expert) {
        const float* row = scores + expert * pixels + first;
        const float* label = unselected_label + first;
        float* result = gradient + expert * pixels + first;
        for (int64_t i = 0; i < count; i += kRegisterLanes) {
            const Register difference = sigmoid(load(row + i, count - i)) - load(label + i, count - i);
            store(result + i, scaled(difference), count - i);
        }
    }
    float values[kChunk] = {};
    for (int64_t slot = 0; slot < selected; ++slot) {
        const int32_t* chosen = indices + slot * pixels + first;
        const float* share = wrong_share + slot * pixels + first;
        for (int64_t i = 0; i < count; ++i) values[i] = scores[chosen[i] * pixels + first + i];
        for (int64_t i = 0; i < count; i += kRegisterLanes) {
            const Register difference = sigmoid(load(values + i)) - (1.0f - load(share + i, count - i));
            store(values + i, scaled(difference));
        }
        for (int64_t i = 0; i < count; ++i) gradient[chosen[i] * pixels + first + i] = values[i];
    }
}

}  // namespace
}  // namespace training
}  // namespace smoe

extern "C" {

int smoe_train_routing(const float* error, int64_t batch, int64_t selected, int64_t expert_channels, int64_t pixels,
                       double scale, double quantile, double tolerance, double damping_tolerance, double damping,
                       int64_t wants_damping, int64_t wants_counts, int64_t experts, float* damped, float* wrong_share,
                       float* unselected_label, int64_t* is_nonfinite, int64_t threads) {
    const smoe::training::Routing routing{
        error, batch, selected, expert_channels, pixels, experts, static_cast<float>(scale)};
    try {
        const bool has_memory =
            smoe::training::train_routing(routing, quantile, tolerance, damping_tolerance, static_cast<float>(damping),
                                          wants_damping ? damped : nullptr, wants_counts ? wrong_share : nullptr,
                                          unselected_label, is_nonfinite, threads);
        return has_memory ? 0 : 1;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

int smoe_routing_gradient(const float* scores, const int32_t* indices, const float* wrong_share,
                          const float* unselected_label, int64_t experts, int64_t selected, int64_t pixels,
                          double factor, float* gradient, int64_t threads) {
    using namespace smoe::training;
    const GradientScale scaled{static_cast<float>(experts * pixels), static_cast<float>(factor)};
    const int64_t chunks = (pixels + kChunk - 1) / kChunk;
    threads = useful_threads(threads, chunks, experts * pixels);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const int64_t first = chunk * kChunk;
        gradient_of_chunk(scores, indices, wrong_share, unselected_label, experts, selected, pixels, first,
                          std::min(kChunk, pixels - first), scaled, gradient);
    }
    return 0;
}

}  // extern "C"
