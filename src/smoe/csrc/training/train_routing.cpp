// What a routed layer does in its backward pass besides its convolution (paper sections 2.2 and 2.3): how far off each
// choice was, which choices were wrong, the damped error, and the gate's gradient.
//
//   e[b, s, p] = scale * mean over f of |error[b, s, f, p]|,  wrong where e > quantile of e[b] + tolerance
//
// Two sweeps, neither of which stores e:
//   1. by samples: the quantile of e (quantile.h: one pass, which computes e chunk by chunk into L1). Threads own whole
//      samples, or parts of one where there are fewer samples than threads.
//   2. by chunks of pixels, over all samples: e is computed again and compared, the error copied or damped, and the
//      wrong choices of the chunk are counted. The chunk's gate gradient follows at once: the counts become labels, one
//      for each expert and pixel in a table that stays in L2, so that the scores are read once, in the order they lie
//      in memory, and the gradient is written once. Threads own chunks.
// A chunk adds its samples in ascending order, and its size depends on the shape alone: no result depends on the number
// of threads. No product is added to anything before the gradient, so fused multiply-adds cannot change what is wrong.
// Sums of more than sixteen terms are taken in blocks of sixteen, as PyTorch does.
//
// All inner loops are over contiguous pixels, a register at a time where they compare (registers.h) and otherwise
// vectorised by the compiler.
#include <atomic>
#include <new>
#include <vector>

#include "huge_pages.h"
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

    // e of one choice, counted through slots and pixels.
    float choice_error_at(int64_t sample, int64_t choice) const {
        float sum_memory[2 * kChunk], result;
        BlockedSum sum(sum_memory);
        choice_errors(sample, choice / pixels, choice % pixels, 1, sum, &result);
        return result;
    }

    // Calls visit(e of a chunk, number of its pixels) for the choices from `begin` to `end`.
    template <class Visit>
    void for_each_chunk(int64_t sample, int64_t begin, int64_t end, Visit&& visit) const {
        alignas(64) float chunk[kChunk], sum_memory[2 * kChunk];
        BlockedSum sum(sum_memory);
        while (begin < end) {
            const int64_t slot = begin / pixels, first = begin % pixels;
            const int64_t count = std::min({kChunk, pixels - first, end - begin});
            choice_errors(sample, slot, first, count, sum, chunk);
            visit(chunk, count);
            begin += count;
        }
    }
};

struct Threshold {
    float wrong, damped;  // e beyond which a choice is wrong, and its error damped
};

bool find_thresholds(const Routing& routing, double quantile, double tolerance, double damping_tolerance,
                     int64_t threads, std::vector<Threshold>& thresholds, std::atomic<bool>& is_nonfinite) {
    std::atomic<bool> has_memory{true};
    const int64_t size = routing.sample_size();
    const QuantileSelector selector(quantile, size);
    threads = useful_threads(threads, routing.batch * size, routing.batch * size);
    const auto select = [&](int64_t sample, int64_t parts) {
        Scratch scratch;
        const std::vector<int64_t> starts = even_starts(size, parts);
        const auto value_at = [&](int64_t choice) { return routing.choice_error_at(sample, choice); };
        const auto visit_part = [&](int64_t part, auto& visit) {
            routing.for_each_chunk(sample, starts[part], starts[part + 1], visit);
        };
        try {
            const Quantile found = selector.select(value_at, visit_part, starts, scratch);
            thresholds[sample] = {found.value + static_cast<float>(tolerance),
                                  found.value + static_cast<float>(damping_tolerance)};
            if (found.has_nonfinite) is_nonfinite = true;
        } catch (const std::bad_alloc&) {  // may not leave the parallel region
            has_memory = false;
        }
    };
    if (routing.batch < threads) {
        for (int64_t sample = 0; sample < routing.batch; ++sample) select(sample, threads);
        return has_memory;
    }
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t sample = 0; sample < routing.batch; ++sample) select(sample, 1);
    return has_memory;
}

// The gate's scores and what becomes of them.
struct Gate {
    const float* scores;
    const int32_t* indices;  // chosen experts (E, P)
    float factor;            // of the gradient
    float* gradient;         // nullptr if not wanted
};

// One chunk of pixels, over all samples.
class ChunkSweep {
 public:
    // Pixels of a chunk: its labels shall stay in L2, several rows of pixels in L1.
    static int64_t chunk_size(const Routing& routing) {
        constexpr int64_t kLabels = 1 << 17, kStep = 16;
        const int64_t count = kLabels / std::max<int64_t>(1, routing.experts) / kStep * kStep;
        return std::min(std::max<int64_t>(count, 128), kChunk / 2);
    }

    static size_t memory_size(const Routing& routing) {
        return (3 + routing.selected + routing.experts) * chunk_size(routing) + routing.experts * kLine + 4 * kChunk;
    }

    ChunkSweep(const Routing& routing, const std::vector<Threshold>& thresholds, const Gate& gate, float damping,
               float* damped, float* memory)
        : routing_(routing),
          thresholds_(thresholds),
          gate_(gate),
          damping_(damping),
          damped_(damped),
          pitch_(chunk_size(routing)),
          sum_(memory),
          label_sum_(memory + 2 * kChunk),
          errors_(memory + 4 * kChunk),
          num_wrong_(errors_ + pitch_),
          unselected_label_(num_wrong_ + pitch_),
          counts_(unselected_label_ + pitch_),
          labels_(counts_ + routing.selected * pitch_) {}

    void run(int64_t first, int64_t count) {
        first_ = first;
        count_ = count;
        if (wants_gradient()) start_counts();
        for (int64_t sample = 0; sample < routing_.batch; ++sample) {
            if (routing_.expert_channels == 1 && labels_follow_from_shares()) {
                sweep_plain(sample);
            } else {
                sweep_sample(sample);
            }
        }
        if (wants_gradient()) {
            finish_counts();
            write_gradient();
        }
    }

 private:
    static constexpr int64_t kLine = 16;  // floats of a cache line

    // A line more than a chunk: at a power of two, the labels of a pixel would all fall into the same few places of L1.
    int64_t label_pitch() const { return pitch_ + kLine; }

    bool wants_gradient() const { return gate_.gradient != nullptr; }

    int64_t num_unselected() const { return routing_.experts - routing_.selected; }

    // Whether no label can exceed 1, so that its mean over the batch is that of the slots' wrong shares.
    bool labels_follow_from_shares() const { return routing_.selected <= num_unselected(); }

    void start_counts() {
        std::fill(counts_, counts_ + routing_.selected * pitch_, 0.0f);
        label_sum_.start(count_);
    }

    // Experts with one output, of which at least half are unselected: all in registers.
    void sweep_plain(int64_t sample) {
        if (damped_ == nullptr) {
            sweep_plain<true, false>(sample);
        } else if (wants_gradient()) {
            sweep_plain<true, true>(sample);
        } else {
            sweep_plain<false, true>(sample);
        }
    }

    template <bool kCounts, bool kDamps>
    void sweep_plain(int64_t sample) {
        const Threshold limit = thresholds_[sample];
        const Register scale = broadcast(routing_.scale), damping = broadcast(damping_), one = broadcast(1.0f);
        for (int64_t slot = 0; slot < routing_.selected; ++slot) {
            const float* row = routing_.error_of(sample, slot) + first_;
            float* result = kDamps ? damped_ + (row - routing_.error) : nullptr;
            float* slot_count = counts_ + slot * pitch_;
            const auto sweep = [&](int64_t i, int64_t lanes) {
                const Register error = load(row + i, lanes);
                const Register e = absolute(error) * scale;
                if (kCounts) {
                    const Register counted = load(slot_count + i);
                    store(slot_count + i, e > limit.wrong ? counted + one : counted);
                }
                if (kDamps) store(result + i, error * (e > limit.damped ? damping : one), lanes);
            };
            int64_t i = 0;
            for (; i + kRegisterLanes <= count_; i += kRegisterLanes) {
                // The next row is too far for the processor to foresee; beyond the last one nothing comes of it.
                __builtin_prefetch(row + routing_.pixels + i);
                sweep(i, kRegisterLanes);
            }
            if (i < count_) sweep(i, count_ - i);
        }
    }

    void sweep_sample(int64_t sample) {
        if (wants_gradient()) std::fill(num_wrong_, num_wrong_ + count_, 0.0f);
        for (int64_t slot = 0; slot < routing_.selected; ++slot) {
            routing_.choice_errors(sample, slot, first_, count_, sum_, errors_);
            if (wants_gradient()) count_wrong(sample, slot);
            if (damped_ != nullptr) damp(sample, slot);
        }
        if (wants_gradient() && !labels_follow_from_shares()) add_labels();
    }

    void count_wrong(int64_t sample, int64_t slot) {
        const float limit = thresholds_[sample].wrong;
        float* slot_count = counts_ + slot * pitch_;
        for (int64_t i = 0; i < count_; i += kRegisterLanes) {  // counts and errors have room for the last register
            const IntRegister is_wrong = load(errors_ + i) > limit;
            const Register increment = is_wrong ? broadcast(1.0f) : Register{};
            store(slot_count + i, load(slot_count + i) + increment);
            store(num_wrong_ + i, load(num_wrong_ + i) + increment);
        }
    }

    void damp(int64_t sample, int64_t slot) const {
        const float limit = thresholds_[sample].damped;
        for (int64_t channel = 0; channel < routing_.expert_channels; ++channel) {
            const float* row = routing_.error_of(sample, slot) + channel * routing_.pixels + first_;
            float* result = damped_ + (row - routing_.error);
            for (int64_t i = 0; i < count_; i += kRegisterLanes) {
                const IntRegister is_damped = load(errors_ + i) > limit;
                // A product, so that an overflowed error stays visible to a loss scaler even where the damping is 0.
                const Register factor = is_damped ? broadcast(damping_) : broadcast(1.0f);
                store(result + i, load(row + i, count_ - i) * factor, count_ - i);
            }
        }
    }

    void add_labels() {
        const float divisor = static_cast<float>(num_unselected());
        const float* num_wrong = num_wrong_;
        label_sum_.add([num_wrong, divisor](int64_t i) { return std::min(num_wrong[i] / divisor, 1.0f); });
    }

    // From counts to shares of wrong choices, in their place, and the label of the experts that were not selected.
    void finish_counts() {
        const float batch = static_cast<float>(routing_.batch);
        for (int64_t slot = 0; slot < routing_.selected; ++slot) {
            float* share = counts_ + slot * pitch_;
            for (int64_t i = 0; i < count_; ++i) share[i] /= batch;
            if (labels_follow_from_shares()) label_sum_.add([share](int64_t i) { return share[i]; });
        }
        const float divisor = labels_follow_from_shares() ? static_cast<float>(num_unselected()) : batch;
        for (int64_t i = 0; i < count_; ++i) unselected_label_[i] = label_sum_[i] / divisor;
    }

    void write_gradient() {
        for (int64_t expert = 0; expert < routing_.experts; ++expert) {
            std::memcpy(labels_ + expert * label_pitch(), unselected_label_, count_ * sizeof(float));
        }
        label_selected();
        for (int64_t expert = 0; expert < routing_.experts; ++expert) {
            const float* row = gate_.scores + expert * routing_.pixels + first_;
            const float* label = labels_ + expert * label_pitch();
            float* result = gate_.gradient + expert * routing_.pixels + first_;
            int64_t i = 0;
            for (; i + kRegisterLanes <= count_; i += kRegisterLanes) {
                __builtin_prefetch(row + routing_.pixels + i);
                store(result + i, (sigmoid(load(row + i)) - load(label + i)) * gate_.factor);
            }
            if (i < count_) {
                const Register difference = sigmoid(load(row + i, count_ - i)) - load(label + i);
                store(result + i, difference * gate_.factor, count_ - i);
            }
        }
    }

    void label_selected() {
        for (int64_t slot = 0; slot < routing_.selected; ++slot) {
            const int32_t* chosen = gate_.indices + slot * routing_.pixels + first_;
            const float* share = counts_ + slot * pitch_;
            float* __restrict__ labels = labels_;
            const int64_t pitch = label_pitch();
            for (int64_t i = 0; i < count_; ++i) labels[chosen[i] * pitch + i] = 1.0f - share[i];
        }
    }

    const Routing& routing_;
    const std::vector<Threshold>& thresholds_;
    const Gate& gate_;
    float damping_;
    float* damped_;            // nullptr if not wanted
    int64_t pitch_;            // of rows of pixels in memory
    BlockedSum sum_;           // over an expert's channels
    BlockedSum label_sum_;     // over samples or slots
    float* errors_;            // e of the current sample and slot
    float* num_wrong_;         // at each pixel of the current sample
    float* unselected_label_;  // mean over the batch
    float* counts_;            // of wrong choices, for each slot; then their shares
    float* labels_;            // for each expert
    int64_t first_ = 0, count_ = 0;
};

// The damped error and the gate's gradient, either of which may be a nullptr. An error that is not finite says nothing
// about the routing: the gradient is zero.
bool train_routing(const Routing& routing, double quantile, double tolerance, double damping_tolerance, float damping,
                   float* damped, const Gate& gate, int64_t* is_nonfinite, int64_t threads) {
    Scratch scratch;
    std::atomic<bool> found_nonfinite{false};
    std::vector<Threshold> thresholds(routing.batch);
    if (!find_thresholds(routing, quantile, tolerance, damping_tolerance, threads, thresholds, found_nonfinite)) {
        return false;
    }
    *is_nonfinite = found_nonfinite;

    const int64_t num_errors = routing.batch * routing.sample_size() * routing.expert_channels;
    const int64_t num_scores = routing.experts * routing.pixels;
    if (damped != nullptr) advise_huge_pages(damped, num_errors * sizeof(float));
    if (gate.gradient != nullptr) advise_huge_pages(gate.gradient, num_scores * sizeof(float));
    const int64_t chunk_size = ChunkSweep::chunk_size(routing);
    const int64_t chunks = (routing.pixels + chunk_size - 1) / chunk_size;
    threads = useful_threads(threads, chunks, num_errors + num_scores);
    const size_t memory_size = ChunkSweep::memory_size(routing);
    float* memory = scratch.floats(threads * memory_size);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t thread = 0; thread < threads; ++thread) {
        ChunkSweep sweep(routing, thresholds, gate, damping, damped, memory + thread * memory_size);
        for (int64_t chunk = chunks * thread / threads; chunk < chunks * (thread + 1) / threads; ++chunk) {
            const int64_t first = chunk * chunk_size;
            sweep.run(first, std::min(chunk_size, routing.pixels - first));
        }
    }
    if (found_nonfinite && gate.gradient != nullptr) std::fill(gate.gradient, gate.gradient + num_scores, 0.0f);
    return true;
}

}  // namespace
}  // namespace training
}  // namespace smoe

// error (B, E, F, P), not empty; damped, likewise, or a nullptr; scores and gradient (X, P) with X > E, or both
// nullptrs; indices (E, P). scale: of an error of a loss that is not scaled; loss_scale: what the loss was multiplied
// by before its backward; unit: of the tolerances, or a nullptr. is_nonfinite: set to whether any e is not finite.
extern "C" int smoe_train_routing(const float* error, int64_t batch, int64_t selected, int64_t expert_channels,
                                  int64_t pixels, int64_t experts, double scale, double quantile, double tolerance,
                                  double damping_tolerance, double damping, double gradient_factor,
                                  const double* loss_scale, const double* unit, float* damped, const float* scores,
                                  const int32_t* indices, float* gradient, int64_t* is_nonfinite, int64_t threads) {
    using namespace smoe::training;
    const float error_scale = static_cast<float>(scale / std::fabs(*loss_scale));
    const Routing routing{error, batch, selected, expert_channels, pixels, experts, error_scale};
    const Gate gate{scores, indices, static_cast<float>(gradient_factor * *loss_scale), gradient};
    const double tolerances = unit == nullptr ? 1.0 : *unit;
    try {
        const bool has_memory = train_routing(routing, quantile, tolerance * tolerances, damping_tolerance * tolerances,
                                              static_cast<float>(damping), damped, gate, is_nonfinite, threads);
        return has_memory ? 0 : 1;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}
