// Exact selection of a quantile in one pass over the values, whatever they are and however many are equal.
//
// The bits of floats, turned into integers of the same order, are the keys. A sample of up to 256 values, at places
// spread evenly by the golden ratio, tells between which two keys the wanted rank must lie but for about one case in
// some hundreds. The pass over the values counts those below this bracket and copies those within it, a sixth or so.
// There the key of the rank is found by bisection: count the keys up to the middle, halve, at most 32 times, each a few
// instructions per register of keys in cache. No input is slow: equal keys are counted, not moved. If the bracket
// missed the rank, the pass is done again with a bracket of everything.
//
// A pass may be shared by several threads, each with its part of the values. What they find are counts and a set of
// keys, whose order does not matter: the result does not depend on the number of parts.
//
// The values come in chunks from a callable, visit_part(part, visit) with visit(const float* values, int64_t count), so
// that they may be computed on the fly; it must bring the same values each time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "../scratch.h"
#include "registers.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace smoe {
namespace training {

// Integers in the order of the floats.
inline IntRegister key_of(IntRegister bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }
inline int32_t key_of(int32_t bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }

inline int32_t key_of(float value) {
    int32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return key_of(bits);
}

inline float value_of(int32_t key) {
    const int32_t bits = key_of(key);
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}

constexpr int32_t kLeastKey = std::numeric_limits<int32_t>::min(), kLargestKey = std::numeric_limits<int32_t>::max();
constexpr int32_t kInfinity = 0x7f800000;  // bits; those of a NaN without its sign are larger

struct Bracket {
    int32_t least = kLeastKey, largest = kLargestKey;
};

// Keys of which the last register may be filled with the largest key: they are never counted as less.
class Keys {
 public:
    static int64_t padded(int64_t count) { return (count + kRegisterLanes - 1) / kRegisterLanes * kRegisterLanes; }

    // keys: with room for padded(count).
    Keys(int32_t* keys, int64_t count) : keys_(keys), count_(count) {
        std::fill(keys + count, keys + padded(count), kLargestKey);
    }

    int64_t size() const { return count_; }

    // The key of a rank, between two keys that are known to enclose it: by halves, at most 32 times.
    int32_t select(int64_t rank, int32_t least, int32_t largest) const {
        while (least < largest) {
            const int32_t middle = static_cast<int32_t>((int64_t{least} + largest) >> 1);  // rounded down
            if (count_up_to(middle) > rank) {
                largest = middle;
            } else {
                least = middle + 1;
            }
        }
        return least;
    }

    // The keys of two ranks, of few keys: each is compared with all others. That of a rank is the largest key that has
    // not more than `rank` smaller ones.
    Bracket select_two(int64_t low_rank, int64_t high_rank) const {
        const IntRegister none = IntRegister{} + kLeastKey;
        IntRegister low = none, high = none;
        for (int64_t i = 0; i < count_; i += kRegisterLanes) {
            const IntRegister keys = load_keys(keys_ + i);
            IntRegister smaller = {};
            for (int64_t other = 0; other < count_; ++other) smaller -= keys_[other] < keys;
            const IntRegister low_offer = smaller <= static_cast<int32_t>(low_rank) ? keys : none;
            const IntRegister high_offer = smaller <= static_cast<int32_t>(high_rank) ? keys : none;
            low = low_offer > low ? low_offer : low;
            high = high_offer > high ? high_offer : high;
        }
        Bracket found{low[0], high[0]};
        for (int lane = 1; lane < kRegisterLanes; ++lane) {
            found.least = std::max(found.least, low[lane]);
            found.largest = std::max(found.largest, high[lane]);
        }
        return found;
    }

    int64_t count_up_to(int32_t limit) const {
        if (limit == kLargestKey) return count_;
        int64_t total = 0;
        for (int64_t first = 0; first < count_; first += kBlock) {
            const int64_t end = std::min(first + kBlock, count_);
            // Two sums, so that an addition need not wait for the one before it.
            IntRegister even = {}, odd = {};
            int64_t i = first;
            for (; i + kRegisterLanes < end; i += 2 * kRegisterLanes) {
                even -= load_keys(keys_ + i) <= limit;
                odd -= load_keys(keys_ + i + kRegisterLanes) <= limit;
            }
            if (i < end) even -= load_keys(keys_ + i) <= limit;
            total += sum(even + odd);
        }
        return total;
    }

    // The least key above a limit that some key exceeds.
    int32_t least_above(int32_t limit) const {
        const IntRegister none = IntRegister{} + kLargestKey;
        IntRegister least = none;
        for (int64_t i = 0; i < count_; i += kRegisterLanes) {
            const IntRegister keys = load_keys(keys_ + i);
            const IntRegister offered = keys > limit ? keys : none;
            least = offered < least ? offered : least;
        }
        int32_t result = kLargestKey;
        for (int lane = 0; lane < kRegisterLanes; ++lane) result = std::min(result, least[lane]);
        return result;
    }

 private:
    static constexpr int64_t kBlock = int64_t{1} << 24;  // before a lane's sum can overflow

    static IntRegister load_keys(const int32_t* keys) {
        IntRegister lanes;
        std::memcpy(&lanes, keys, sizeof(lanes));
        return lanes;
    }

    static int64_t sum(IntRegister lanes) {
        int64_t total = 0;
        for (int i = 0; i < kRegisterLanes; ++i) total += lanes[i];
        return total;
    }

    const int32_t* keys_;
    int64_t count_;
};

// Copies the keys within a bracket to memory that has room for all of them and two registers more.
class Collector {
 public:
    Collector(Bracket bracket, int32_t* keys) : bracket_(bracket), keys_(keys) {}

    void operator()(const float* values, int64_t count) {
        for (int64_t first = 0; first < count; first += kBlock) {
            collect_block(values + first, std::min(kBlock, count - first));
        }
    }

    int64_t below() const { return below_; }
    int64_t size() const { return size_; }

    // The largest bits without sign: tells an infinity or a NaN.
    int32_t largest_magnitude() const {
        int32_t largest = 0;
        for (int i = 0; i < kRegisterLanes; ++i) largest = std::max(largest, magnitudes_[i]);
        return largest;
    }

 private:
    static constexpr int64_t kBlock = int64_t{1} << 24;  // before a lane's sum can overflow

    void collect_block(const float* values, int64_t count) {
        IntRegister below = {}, magnitudes = magnitudes_;
        const int32_t least = bracket_.least, largest = bracket_.largest;
        int32_t* end = keys_ + size_;
        int64_t i = 0;
        for (; i + kRegisterLanes <= count; i += kRegisterLanes) {
            const IntRegister bits = (IntRegister)load(values + i);
            const IntRegister magnitude = bits & 0x7fffffff;
            magnitudes = magnitude > magnitudes ? magnitude : magnitudes;
            const IntRegister keys = key_of(bits);
            below -= keys < least;
            end = append(keys, least, largest, end);
        }
        for (; i < count; ++i) {
            const int32_t key = key_of(values[i]);
            magnitudes[0] = std::max(magnitudes[0], key ^ (key >> 31));
            below_ += key < least;
            *end = key;
            end += (key >= least) & (key <= largest);
        }
        for (int lane = 0; lane < kRegisterLanes; ++lane) below_ += below[lane];
        magnitudes_ = magnitudes;
        size_ = end - keys_;
    }

    // Writes all lanes, or one after the other, and advances by those that count: no branch to mispredict.
    static int32_t* append(IntRegister keys, int32_t least, int32_t largest, int32_t* end) {
#if defined(__AVX512F__)
        const __mmask16 is_within = _mm512_cmpge_epi32_mask((__m512i)keys, _mm512_set1_epi32(least)) &
                                    _mm512_cmple_epi32_mask((__m512i)keys, _mm512_set1_epi32(largest));
        // Packed in a register and stored whole: packing in memory takes some processors a hundred cycles.
        _mm512_storeu_si512(end, _mm512_maskz_compress_epi32(is_within, (__m512i)keys));
        return end + __builtin_popcount(is_within);
#else
        const IntRegister is_within = (keys >= least) & (keys <= largest);
        for (int lane = 0; lane < kRegisterLanes; ++lane) {
            *end = keys[lane];
            end -= is_within[lane];
        }
        return end;
#endif
    }

    Bracket bracket_;
    int32_t* keys_;
    int64_t below_ = 0, size_ = 0;
    IntRegister magnitudes_ = {};
};

struct Quantile {
    float value;
    bool has_nonfinite;  // whether any of the values is a NaN or an infinity
};

// The starts of near-equal parts, and the end of the last.
inline std::vector<int64_t> even_starts(int64_t size, int64_t parts) {
    std::vector<int64_t> starts(parts + 1);
    for (int64_t part = 0; part <= parts; ++part) starts[part] = size * part / parts;
    return starts;
}

class QuantileSelector {
 public:
    QuantileSelector(double quantile, int64_t size) : size_(size) {
        const double position = quantile * static_cast<double>(size - 1);
        rank_ = std::min(static_cast<int64_t>(position), size - 1);
        fraction_ = position - static_cast<double>(rank_);
        // An interpolation of weight zero needs no right neighbour, which may not exist.
        last_rank_ = fraction_ > 0.0 && rank_ + 1 < size ? rank_ + 1 : rank_;
    }

    // The quantile with linear interpolation; NaN if any value is. May throw std::bad_alloc.
    // value_at(i): the value at any place. starts: the first place of each part, and at last the number of values.
    template <class ValueAt, class VisitPart>
    Quantile select(const ValueAt& value_at, const VisitPart& visit_part, const std::vector<int64_t>& starts,
                    Scratch& scratch) const {
        const int64_t parts = static_cast<int64_t>(starts.size()) - 1;
        const size_t room = size_ + (parts + 1) * kRoom;
        int32_t* memory = static_cast<int32_t*>(scratch.bytes(room * sizeof(int32_t)));
        for (Bracket bracket = estimate(value_at);; bracket = {}) {
            std::vector<Collector> collectors;
            for (int64_t part = 0; part < parts; ++part) {
                collectors.emplace_back(bracket, memory + starts[part] + part * kRoom);
            }
            if (parts == 1) {
                visit_part(0, collectors[0]);
            } else {
#pragma omp parallel for num_threads(parts) schedule(static)
                for (int64_t part = 0; part < parts; ++part) visit_part(part, collectors[part]);
            }
            int64_t below = 0, size = 0;
            int32_t magnitude = 0;
            for (int64_t part = 0; part < parts; ++part) {
                const Collector& collector = collectors[part];
                std::memmove(memory + size, memory + starts[part] + part * kRoom, collector.size() * sizeof(int32_t));
                below += collector.below();
                size += collector.size();
                magnitude = std::max(magnitude, collector.largest_magnitude());
            }
            if (magnitude > kInfinity) return {std::numeric_limits<float>::quiet_NaN(), true};
            if (rank_ < below || last_rank_ >= below + size) continue;  // missed
            return {interpolate(Keys(memory, size), rank_ - below, bracket), magnitude == kInfinity};
        }
    }

 private:
    static constexpr int64_t kRoom = 2 * kRegisterLanes;  // for what is written and does not count
    static constexpr int64_t kMaxSample = 256;            // a multiple of the lanes

    // A bracket that very likely holds the ranks: three standard deviations to either side of theirs in a sample.
    template <class ValueAt>
    Bracket estimate(const ValueAt& value_at) const {
        int64_t count = 64;
        while (count < kMaxSample && 256 * count < size_) count *= 2;
        if (size_ < 4 * count) return {};
        int32_t keys[kMaxSample];
        for (int64_t i = 0; i < count; ++i) {
            const uint32_t place = static_cast<uint32_t>(i) * 2654435769u;  // fractions of the golden ratio's multiples
            keys[i] = key_of(static_cast<float>(value_at(static_cast<int64_t>(uint64_t{place} * size_ >> 32))));
        }
        const double share = (static_cast<double>(rank_) + 0.5) / static_cast<double>(size_);
        const double deviation = 3.0 * std::sqrt(share * (1.0 - share) * static_cast<double>(count)) + 1.0;
        const int64_t low = static_cast<int64_t>(share * static_cast<double>(count) - deviation);
        const int64_t high = static_cast<int64_t>(share * static_cast<double>(count) + deviation);
        Bracket bracket = Keys(keys, count).select_two(low, high);
        if (low < 0) bracket.least = kLeastKey;
        if (high >= count) bracket.largest = kLargestKey;
        return bracket;
    }

    float interpolate(const Keys& keys, int64_t rank, Bracket bracket) const {
        const int32_t low_key = keys.select(rank, bracket.least, bracket.largest);
        const float low = value_of(low_key);
        if (last_rank_ == rank_) return low;
        const bool is_repeated = keys.count_up_to(low_key) > rank + 1;
        const float high = is_repeated ? low : value_of(keys.least_above(low_key));
        // Equal neighbours need no interpolation, and the difference of infinite ones is NaN.
        if (low == high) return low;
        // Rounded on its own, as PyTorch does: a fused multiply-add would differ in the last bit.
        const volatile float step = static_cast<float>(fraction_) * (high - low);
        return low + step;
    }

    int64_t size_, rank_, last_rank_;
    double fraction_;
};

}  // namespace training
}  // namespace smoe
