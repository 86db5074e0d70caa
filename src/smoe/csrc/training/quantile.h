// Exact selection of a quantile by radix: two passes over the values, whatever they are and however many are equal.
//
// Bits of a float, read as an integer, are in the order of the floats of one sign. Pass one counts the values by their
// leading twelve bits (sign, exponent and three bits of the fraction), in four tables by turns, so that equal values do
// not wait for each other's counters; the few bins that real data touch stay in L1. The bin of the wanted rank holds a
// few percent of the values. Pass two copies these, and they are narrowed down in cache by the next ten bits and the
// last ten. A third pass is needed only if the wanted rank is the largest of its bin: the right neighbour is then the
// least value beyond it.
//
// The values come in chunks from a callable, `chunks(visit)` with visit(const float* values, int64_t count), so that
// they may be computed on the fly; it is called once for each pass and must bring the same values each time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>

#include "../scratch.h"

namespace smoe {
namespace training {

class QuantileSelector {
 public:
    QuantileSelector() = default;
    QuantileSelector(const QuantileSelector&) = delete;
    QuantileSelector& operator=(const QuantileSelector&) = delete;

    // The quantile with linear interpolation; NaN if any value is. May throw std::bad_alloc.
    template <class Chunks>
    float select(const Chunks& chunks, int64_t size, double quantile) {
        const double position = quantile * static_cast<double>(size - 1);
        const int64_t rank = std::min(static_cast<int64_t>(position), size - 1);
        const double fraction = position - static_cast<double>(rank);

        has_spilled_ = false;
        chunks([this](const float* values, int64_t count) { count_leading(values, count); });
        has_spilled_ ? spill_leading() : merge_leading();
        has_nonfinite_ =
            has_spilled_ ? has_counts_beyond_finite(counters_->spilled) : has_counts_beyond_finite(counters_->merged);
        if (has_nonfinite_ && has_nan(chunks)) return std::numeric_limits<float>::quiet_NaN();

        const Bin bin = has_spilled_ ? find_leading(counters_->spilled, rank) : find_leading(counters_->merged, rank);
        const int64_t rank_in_bin = rank - bin.before;
        float high = 0.0f;
        // An interpolation of weight zero needs no right neighbour, which may not exist.
        const bool needs_high = fraction > 0.0 && rank + 1 < size;
        const bool is_last_of_bin = rank_in_bin + 1 == bin.count;
        if (needs_high && is_last_of_bin) high = least_beyond(chunks, bin.digit);

        int32_t* keys = static_cast<int32_t*>(candidates_.bytes((bin.count + 1) * sizeof(int32_t)));
        collect(chunks, bin.digit, keys);
        int32_t next_key = 0;
        const float low = value_of(select_key(keys, bin.count, rank_in_bin, next_key));
        if (!needs_high) return low;
        return interpolate(low, is_last_of_bin ? high : value_of(next_key), fraction);
    }

    // Whether the last selection met a NaN or an infinity.
    bool has_nonfinite() const { return has_nonfinite_; }

 private:
    static constexpr int kTables = 4;
    static constexpr int kLeadingShift = 20, kLeadingBins = 1 << 12;
    static constexpr int kDigitBits = 10, kDigitBins = 1 << kDigitBits;
    static constexpr int64_t kFewKeys = 256;             // not worth a table of counters
    static constexpr int64_t kFlush = int64_t{1} << 31;  // before a counter of 32 bits can overflow
    // Leading bits, as an unsigned number, of infinity and of whatever has the same exponent.
    static constexpr int kInfinity = 0x7f8, kSign = 0x800;

    struct Bin {
        int digit;
        int64_t before, count;  // values in the bins before it and in it
    };

    // Integers in the order of the floats. Its own inverse.
    static int32_t key_of(int32_t bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }

    static float value_of(int32_t key) {
        const int32_t bits = key_of(key);
        float value;
        std::memcpy(&value, &bits, sizeof(value));
        return value;
    }

    static uint32_t bits_at(const float* values, int64_t i) {
        uint32_t bits;
        std::memcpy(&bits, values + i, sizeof(bits));
        return bits;
    }

    void count_leading(const float* values, int64_t count) {
        for (int64_t first = 0; first < count; first += kFlush) {
            const int64_t end = std::min(count, first + kFlush);
            if (num_counted_ + end - first > kFlush) spill_leading();
            num_counted_ += end - first;
            int64_t i = first;
            for (; i + kTables <= end; i += kTables) {
                ++counters_->leading[0][bits_at(values, i) >> kLeadingShift];
                ++counters_->leading[1][bits_at(values, i + 1) >> kLeadingShift];
                ++counters_->leading[2][bits_at(values, i + 2) >> kLeadingShift];
                ++counters_->leading[3][bits_at(values, i + 3) >> kLeadingShift];
            }
            for (; i < end; ++i) ++counters_->leading[0][bits_at(values, i) >> kLeadingShift];
        }
    }

    // Adds the counters of all tables and leaves them at zero for the next selection.
    void merge_leading() {
        Counters& counters = *counters_;
        for (int i = 0; i < kLeadingBins; ++i) {
            counters.merged[i] =
                counters.leading[0][i] + counters.leading[1][i] + counters.leading[2][i] + counters.leading[3][i];
        }
        std::memset(counters.leading, 0, sizeof(counters.leading));
        num_counted_ = 0;
    }

    // Moves the counters to wider ones, which only samples of more than 2^31 values need.
    void spill_leading() {
        merge_leading();
        if (!has_spilled_) std::memset(counters_->spilled, 0, sizeof(counters_->spilled));
        for (int i = 0; i < kLeadingBins; ++i) counters_->spilled[i] += counters_->merged[i];
        has_spilled_ = true;
    }

    template <class Count>
    static bool has_counts_beyond_finite(const Count* counts) {
        int64_t sum = 0;
        for (int i = kInfinity; i < kSign; ++i) sum += int64_t{counts[i]} + counts[i + kSign];
        return sum > 0;
    }

    template <class Chunks>
    static bool has_nan(const Chunks& chunks) {
        bool found = false;
        chunks([&](const float* values, int64_t count) {
            for (int64_t i = 0; i < count; ++i) found |= values[i] != values[i];
        });
        return found;
    }

    // The bin of a rank: first its block of bins, then itself.
    template <class Count>
    static Bin find_leading(const Count* counts, int64_t rank) {
        constexpr int kBlock = 64;
        int64_t before = 0;
        for (int block = 0; block < kLeadingBins; block += kBlock) {
            // Of negative values, the leading bits are in the opposite order.
            const bool is_negative = block < kSign;
            const int lowest = is_negative ? kLeadingBins - kBlock - block : block - kSign;
            Count in_block = 0;
            for (int i = 0; i < kBlock; ++i) in_block += counts[lowest + i];
            if (rank < before + int64_t{in_block}) {
                int digit = is_negative ? lowest + kBlock - 1 : lowest;
                for (; rank >= before + int64_t{counts[digit]}; digit += is_negative ? -1 : 1) before += counts[digit];
                return {digit, before, counts[digit]};
            }
            before += in_block;
        }
        return {0, 0, 0};  // not reached: all ranks are in some bin
    }

    // The least value in the bins after this one.
    template <class Chunks>
    static float least_beyond(const Chunks& chunks, int digit) {
        const int32_t last_key = key_of(static_cast<int32_t>(static_cast<uint32_t>(digit) << kLeadingShift |
                                                             (digit < kSign ? (1u << kLeadingShift) - 1 : 0u)));
        int32_t least = std::numeric_limits<int32_t>::max();
        chunks([&](const float* values, int64_t count) {
            int32_t chunk_least = least;
            for (int64_t i = 0; i < count; ++i) {
                const int32_t key = key_of(static_cast<int32_t>(bits_at(values, i)));
                const int32_t offered = key > last_key ? key : std::numeric_limits<int32_t>::max();
                chunk_least = std::min(chunk_least, offered);
            }
            least = chunk_least;
        });
        return value_of(least);
    }

    // Writes every value and advances where it belongs to the bin: no branch to mispredict.
    template <class Chunks>
    static void collect(const Chunks& chunks, int digit, int32_t* keys) {
        int64_t num_keys = 0;
        chunks([&](const float* values, int64_t count) {
            int64_t end = num_keys;
            for (int64_t i = 0; i < count; ++i) {
                const uint32_t bits = bits_at(values, i);
                keys[end] = static_cast<int32_t>(bits);
                end += bits >> kLeadingShift == static_cast<uint32_t>(digit);
            }
            num_keys = end;
        });
        if (digit >= kSign) {
            for (int64_t i = 0; i < num_keys; ++i) keys[i] = key_of(keys[i]);
        }
    }

    static bool all_equal(const int32_t* keys, int64_t count) {
        for (int64_t first = 0; first < count; first += kDigitBins) {
            const int64_t end = std::min<int64_t>(count, first + kDigitBins);
            int32_t difference = 0;
            for (int64_t i = first; i < end; ++i) difference |= keys[i] ^ keys[0];
            if (difference != 0) return false;
        }
        return true;
    }

    // The key of a rank among keys with equal leading bits, and the one after it if there is one. Reorders them.
    int32_t select_key(int32_t* keys, int64_t count, int64_t rank, int32_t& next_key) {
        const bool has_next = rank + 1 < count;
        bool is_next_known = false;
        for (int shift = kLeadingShift - kDigitBits; shift >= 0; shift -= kDigitBits) {
            if (count <= kFewKeys || all_equal(keys, count)) break;
            const Bin bin = find_digit(keys, count, shift, rank);
            rank -= bin.before;
            if (has_next && !is_next_known && rank + 1 == bin.count) {
                next_key = least_beyond_digit(keys, count, shift, bin.digit);
                is_next_known = true;
            }
            int64_t end = 0;
            for (int64_t i = 0; i < count; ++i) {
                const int32_t key = keys[i];
                keys[end] = key;
                end += digit_of(key, shift) == bin.digit;
            }
            count = bin.count;
        }
        if (count > kFewKeys) {  // all are equal
            if (!is_next_known) next_key = keys[0];
            return keys[0];
        }
        std::nth_element(keys, keys + rank, keys + count);
        if (has_next && !is_next_known) next_key = *std::min_element(keys + rank + 1, keys + count);
        return keys[rank];
    }

    static int digit_of(int32_t key, int shift) { return (key >> shift) & (kDigitBins - 1); }

    Bin find_digit(const int32_t* keys, int64_t count, int shift, int64_t rank) {
        auto& digits = counters_->digits;
        std::memset(digits, 0, sizeof(digits));
        int64_t i = 0;
        for (; i + kTables <= count; i += kTables) {
            for (int table = 0; table < kTables; ++table) ++digits[table][digit_of(keys[i + table], shift)];
        }
        for (; i < count; ++i) ++digits[0][digit_of(keys[i], shift)];
        Bin bin{-1, 0, 0};
        do {
            bin.before += bin.count;
            ++bin.digit;
            bin.count = digits[0][bin.digit] + digits[1][bin.digit] + digits[2][bin.digit] + digits[3][bin.digit];
        } while (bin.before + bin.count <= rank);
        return bin;
    }

    static int32_t least_beyond_digit(const int32_t* keys, int64_t count, int shift, int digit) {
        int32_t least = std::numeric_limits<int32_t>::max();
        for (int64_t i = 0; i < count; ++i) {
            least = std::min(least, digit_of(keys[i], shift) > digit ? keys[i] : std::numeric_limits<int32_t>::max());
        }
        return least;
    }

    static float interpolate(float low, float high, double fraction) {
        // Equal neighbours need no interpolation, and the difference of infinite ones is NaN.
        if (low == high) return low;
        // Rounded on its own, as PyTorch does: a fused multiply-add would differ in the last bit.
        const volatile float step = static_cast<float>(fraction) * (high - low);
        return low + step;
    }

    struct Counters {
        uint32_t leading[kTables][kLeadingBins];
        uint32_t merged[kLeadingBins];
        int64_t spilled[kLeadingBins];
        int64_t digits[kTables][kDigitBins];
    };

    // On the heap, since a selector may be local to a thread, where memory is scarce.
    std::unique_ptr<Counters> counters_{new Counters()};
    int64_t num_counted_ = 0;
    bool has_spilled_ = false, has_nonfinite_ = false;
    Scratch candidates_;
};

}  // namespace training
}  // namespace smoe
