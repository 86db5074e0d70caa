// Sorting the items of tiles by expert, and keeping the plans.
//
// Work: a tile is sorted by counting, in two passes over its indices (E x 8 x 16 of them, from L1 or L2): the first
// counts the items of each expert, the second puts them in place. Tiles are shared out among the threads; each writes
// its own tiles' items, runs and remembered indices, at places that depend on the geometry only, so that a tile can be
// sorted again without moving the others.
//
// Cache: a list of plans, the last used in front. A plan is found by its geometry and by a sample of its indices: where
// all samples are equal, the full comparison decides whether it is the plan of this routing. Otherwise the plan with
// the most equal samples is brought up to date. A routing that differs in more than half of the samples is taken for
// another layer's, and gets a plan of its own. One lock guards the list and every change of a plan; a plan that someone
// else is using is replaced rather than changed.
#include "plan.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <iterator>
#include <list>
#include <mutex>
#include <new>
#include <utility>

#include "packing.h"

namespace smoe {
namespace expert_lists {
namespace {

constexpr size_t kMostPlans = 256;
constexpr int64_t kMostBytes = int64_t{512} << 20;  // of all plans; one is kept in any case
constexpr int64_t kSamples = 1024;

std::atomic<int64_t> tiles_sorted{0};

// Where in an array of `size` indices the samples lie: evenly, but not in step with rows and slots.
int64_t sample_position(int64_t sample, int64_t size) {
    const uint64_t scattered = static_cast<uint64_t>(sample + 1) * 0x9E3779B97F4A7C15u;
    return static_cast<int64_t>((scattered >> 20) % static_cast<uint64_t>(size));
}

template <typename Stored>
bool equal(const int32_t* indices, const Stored* stored, int64_t count) {
    int32_t difference = 0;
    for (int64_t i = 0; i < count; ++i) difference |= indices[i] ^ static_cast<int32_t>(stored[i]);
    return difference == 0;
}

}  // namespace

// The tile is as large as the first level cache allows: the kernels walk over the tile's inputs again for each expert,
// 32 channels at a time.
Tiling::Tiling(const smoe_geometry& geometry)
    : output_height(geometry.output_height),
      output_width(geometry.output_width),
      slice_height(output_slice_height(geometry)),
      height(8),
      width(16) {
    constexpr int64_t kMostInputs = 200;  // pixels of 128 bytes
    auto inputs = [&] {
        return ((height - 1) * geometry.stride + kernel_slice_height(geometry)) *
               ((width - 1) * geometry.stride + geometry.kernel_width);
    };
    while (inputs() > kMostInputs && height * width > 16) (width > height ? width : height) /= 2;
    slice_rows = (slice_height + height - 1) / height;
    rows = geometry.output_depth * slice_rows;
    columns = (output_width + width - 1) / width;
}

Tile::Tile(const Tiling& tiling, int64_t number) : column(number % tiling.columns * tiling.width) {
    const int64_t slice = number / tiling.columns / tiling.slice_rows;
    const int64_t row_in_slice = number / tiling.columns % tiling.slice_rows * tiling.height;
    row = slice * tiling.slice_height + row_in_slice;
    height = std::min(tiling.height, tiling.slice_height - row_in_slice);
    width = std::min(tiling.width, tiling.output_width - column);
    first_pixel = row * tiling.output_width + height * column;
}

Plan::Plan(const smoe_geometry& geometry)
    : tiling_(geometry), experts_(geometry.experts), selected_(geometry.selected) {
    const int64_t size = selected_ * tiling_.output_height * tiling_.output_width;
    run_capacity_ = std::min(experts_, selected_ * tiling_.pixels());
    items_.resize(size);
    runs_.resize(tiling_.count() * run_capacity_);
    run_counts_.resize(tiling_.count());
    if (experts_ <= 1 << 8) {
        remembered_ = Kept<uint8_t>(size);
    } else if (experts_ <= 1 << 16) {
        remembered_ = Kept<uint16_t>(size);
    } else {
        remembered_ = Kept<int32_t>(size);
    }
    samples_.resize(std::min(kSamples, size));
}

bool Plan::stretch_matches(const int32_t* indices, int64_t begin, int64_t count) const {
    return std::visit([=](const auto& stored) { return equal(indices + begin, stored.data() + begin, count); },
                      remembered_);
}

bool Plan::tile_matches(const Tile& tile, const int32_t* indices) const {
    for (int64_t slot = 0; slot < selected_; ++slot) {
        for (int64_t y = 0; y < tile.height; ++y) {
            const int64_t row = slot * tiling_.output_height + tile.row + y;
            if (!stretch_matches(indices, row * tiling_.output_width + tile.column, tile.width)) return false;
        }
    }
    return true;
}

void Plan::remember(const Tile& tile, const int32_t* indices) {
    for (int64_t slot = 0; slot < selected_; ++slot) {
        for (int64_t y = 0; y < tile.height; ++y) {
            const int64_t row = slot * tiling_.output_height + tile.row + y;
            const int64_t begin = row * tiling_.output_width + tile.column;
            std::visit([&](auto& stored) { std::copy_n(indices + begin, tile.width, stored.begin() + begin); },
                       remembered_);
        }
    }
}

void Plan::sort(int64_t number, const Tile& tile, const int32_t* indices, uint32_t* counts) {
    const int64_t plane = tiling_.output_height * tiling_.output_width;
    const int32_t* corner = indices + tile.row * tiling_.output_width + tile.column;
    std::fill_n(counts, experts_, 0);
    for (int64_t slot = 0; slot < selected_; ++slot) {
        for (int64_t y = 0; y < tile.height; ++y) {
            const int32_t* row = corner + slot * plane + y * tiling_.output_width;
            for (int64_t x = 0; x < tile.width; ++x) ++counts[row[x]];
        }
    }

    Run* runs = runs_.data() + number * run_capacity_;
    int32_t run_count = 0;
    uint32_t end = 0;
    for (int64_t expert = 0; expert < experts_; ++expert) {
        const uint32_t begin = end;
        end += counts[expert];
        counts[expert] = begin;  // from here on: where the expert's next item goes
        if (end > begin) runs[run_count++] = {static_cast<int32_t>(expert), static_cast<int32_t>(end)};
    }
    run_counts_[number] = run_count;

    uint32_t* items = items_.data() + tile.first_pixel * selected_;
    for (int64_t slot = 0; slot < selected_; ++slot) {
        for (int64_t y = 0; y < tile.height; ++y) {
            const int32_t* row = corner + slot * plane + y * tiling_.output_width;
            const uint32_t first = static_cast<uint32_t>(slot * tiling_.pixels() + y * tiling_.width);
            for (int64_t x = 0; x < tile.width; ++x) items[counts[row[x]]++] = first + static_cast<uint32_t>(x);
        }
    }
}

// From end to end in long stretches, which the memory serves much faster than tiles.
bool Plan::matches(const int32_t* indices, int64_t threads) const {
    constexpr int64_t kStretch = 4096;
    const int64_t size = static_cast<int64_t>(items_.size());
    bool same = built_;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(&& : same)
    for (int64_t begin = 0; begin < size; begin += kStretch) {
        same = same && stretch_matches(indices, begin, std::min(kStretch, size - begin));
    }
    return same;
}

int64_t Plan::update(const int32_t* indices, int64_t threads) {
    int64_t sorted = 0;
    std::vector<uint32_t> counts(threads * experts_);
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : sorted)
    for (int64_t number = 0; number < tiling_.count(); ++number) {
        const Tile tile(tiling_, number);
        if (built_ && tile_matches(tile, indices)) continue;
        remember(tile, indices);
        sort(number, tile, indices, counts.data() + thread_number() * experts_);
        ++sorted;
    }
    const int64_t size = static_cast<int64_t>(items_.size());
    for (int64_t i = 0; i < samples(); ++i) samples_[i] = indices[sample_position(i, size)];
    built_ = true;
    return sorted;
}

bool Plan::fits(const smoe_geometry& geometry) const {
    const Tiling other(geometry);
    return experts_ == geometry.experts && selected_ == geometry.selected &&
           tiling_.output_height == other.output_height && tiling_.output_width == other.output_width &&
           tiling_.slice_height == other.slice_height && tiling_.height == other.height && tiling_.width == other.width;
}

int64_t Plan::similarity(const int32_t* indices) const {
    const int64_t size = static_cast<int64_t>(items_.size());
    int64_t equal = 0;
    for (int64_t i = 0; i < samples(); ++i) equal += samples_[i] == indices[sample_position(i, size)];
    return equal;
}

int64_t Plan::bytes() const {
    const size_t remembered =
        std::visit([](const auto& stored) { return stored.size() * sizeof(stored[0]); }, remembered_);
    return static_cast<int64_t>(items_.size() * sizeof(uint32_t) + runs_.size() * sizeof(Run) +
                                (run_counts_.size() + samples_.size()) * sizeof(int32_t) + remembered);
}

namespace {

class Cache {
 public:
    std::shared_ptr<const Plan> obtain(const smoe_geometry& geometry, const int32_t* indices) {
        std::lock_guard<std::mutex> lock(mutex_);
        const Found found = find(geometry, indices);
        if (found.plan == plans_.end()) return add(geometry, indices);
        plans_.splice(plans_.begin(), plans_, found.plan);
        if (!found.is_exact) {
            // Nobody else holds it, and nobody can take it before the lock opens. The fence orders what its last user
            // read before what is written now.
            std::atomic_thread_fence(std::memory_order_acquire);
            tiles_sorted += (*found.plan)->update(indices, geometry.threads);
        }
        return *found.plan;
    }

    void clear() {
        std::lock_guard<std::mutex> lock(mutex_);
        plans_.clear();
    }

    // Around a fork: nobody changes the list meanwhile, so that the child has a whole one.
    void lock() { mutex_.lock(); }
    void unlock() { mutex_.unlock(); }

 private:
    using Plans = std::list<std::shared_ptr<Plan>>;

    struct Found {
        Plans::iterator plan;
        bool is_exact;
    };

    // By a kernel that is running.
    static bool is_held(const std::shared_ptr<Plan>& plan) { return plan.use_count() > 1; }

    // The plan of this routing, or of those that may be changed the one that is most similar.
    Found find(const smoe_geometry& geometry, const int32_t* indices) {
        Found best = {plans_.end(), false};
        int64_t most = 0;
        for (auto plan = plans_.begin(); plan != plans_.end(); ++plan) {
            if (!(*plan)->fits(geometry)) continue;
            const int64_t equal = (*plan)->similarity(indices), samples = (*plan)->samples();
            if (equal == samples && (*plan)->matches(indices, geometry.threads)) return {plan, true};
            if (equal > most && 2 * equal >= samples && !is_held(*plan)) {
                best.plan = plan;
                most = equal;
            }
        }
        return best;
    }

    std::shared_ptr<const Plan> add(const smoe_geometry& geometry, const int32_t* indices) {
        auto plan = std::make_shared<Plan>(geometry);
        tiles_sorted += plan->update(indices, geometry.threads);
        plans_.push_front(std::move(plan));
        forget_oldest();
        return plans_.front();
    }

    void forget_oldest() {
        size_t count = 0;
        int64_t bytes = 0;
        for (auto plan = plans_.begin(); plan != plans_.end();) {
            const auto next = std::next(plan);
            if (!is_held(*plan)) {
                count += 1;
                bytes += (*plan)->bytes();
                if (count > kMostPlans || (count > 1 && bytes > kMostBytes)) plans_.erase(plan);
            }
            plan = next;
        }
    }

    std::mutex mutex_;
    Plans plans_;
};

// Never destroyed: a thread may still convolve while the process ends.
Cache* instance = new Cache;

// A forked process starts with the plans of its parent, in pages that the two share. The lock is taken for the fork:
// another thread might hold it at that moment, and that thread does not exist in the child, where it would never open.
const int handles_forks =
    pthread_atfork([] { instance->lock(); }, [] { instance->unlock(); }, [] { instance->unlock(); });

Cache& cache() { return *instance; }

}  // namespace

std::shared_ptr<const Plan> obtain_plan(const smoe_geometry& geometry, const int32_t* indices) {
    return cache().obtain(geometry, indices);
}

}  // namespace expert_lists
}  // namespace smoe

extern "C" {

int64_t smoe_plan_builds(void) { return smoe::expert_lists::tiles_sorted; }

void smoe_plan_clear(void) { smoe::expert_lists::cache().clear(); }

}  // extern "C"
