// The plan of a routing: for every tile of output pixels, expert by expert, the (pixel, slot) pairs that chose it.
//
// A routing comes as a new array in every call, though in training only a few pixels change their experts from step to
// step, and at inference none. So plans are kept, and found again by content: see obtain_plan().
#pragma once

#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "../geometry.h"
#include "../pages.h"

namespace smoe {
namespace expert_lists {

// Output pixels are cut into tiles of the same shape; those at the lower and right border of a slice may be smaller. A
// pixel has its number within a tile, row * width + column, whether or not the tile is complete.
struct Tiling {
    int64_t output_height, output_width;
    int64_t slice_height;   // output rows of a slice
    int64_t height, width;  // of a tile; both powers of two
    int64_t slice_rows;     // rows of tiles in a slice
    int64_t rows, columns;  // how many tiles

    explicit Tiling(const smoe_geometry& geometry);

    int64_t count() const { return rows * columns; }
    int64_t pixels() const { return height * width; }
};

// One tile: where it lies.
struct Tile {
    int64_t row, column;    // of its first pixel, in the output
    int64_t height, width;  // cut off at the border
    int64_t first_pixel;    // pixels of all the tiles before it

    Tile(const Tiling& tiling, int64_t number);

    int64_t pixels() const { return height * width; }
};

// A run of a tile's items that chose the same expert; it begins where the run before it ends.
struct Run {
    int32_t expert;
    int32_t end;
};

class Plan {
 public:
    explicit Plan(const smoe_geometry& geometry);

    const Tiling& tiling() const { return tiling_; }

    // Items of a tile, sorted by expert, then by slot, then by pixel. An item is slot * tiling().pixels() + pixel.
    const uint32_t* items(const Tile& tile) const { return items_.data() + tile.first_pixel * selected_; }
    int64_t item_count(const Tile& tile) const { return tile.pixels() * selected_; }

    // The runs of a tile, of ascending experts; experts that nobody in the tile chose have none.
    const Run* runs(int64_t tile) const { return runs_.data() + tile * run_capacity_; }
    int64_t run_count(int64_t tile) const { return run_counts_[tile]; }

    // Makes the plan that of `indices`: sorts the tiles whose indices changed. Returns how many did. Nobody else may
    // hold it.
    int64_t update(const int32_t* indices, int64_t threads);

    // Is it the plan of `indices` as it is?
    bool matches(const int32_t* indices, int64_t threads) const;

    bool fits(const smoe_geometry& geometry) const;
    int64_t similarity(const int32_t* indices) const;  // sampled entries that agree, of samples()
    int64_t samples() const { return static_cast<int64_t>(samples_.size()); }
    int64_t bytes() const;

 private:
    template <typename T>
    using Kept = std::vector<T, PageAllocator<T>>;

    bool stretch_matches(const int32_t* indices, int64_t begin, int64_t count) const;
    bool tile_matches(const Tile& tile, const int32_t* indices) const;
    void remember(const Tile& tile, const int32_t* indices);
    void sort(int64_t number, const Tile& tile, const int32_t* indices, uint32_t* counts);

    Tiling tiling_;
    int64_t experts_, selected_;
    int64_t run_capacity_;
    bool built_ = false;
    Kept<uint32_t> items_;
    Kept<Run> runs_;
    std::vector<int32_t> run_counts_;
    // The indices that the plan was made of, in their own order, and in as few bytes as the experts' numbers fit: that
    // saves memory, and time in each comparison. A hash would take still less, but the comparison would not be exact.
    std::variant<Kept<uint8_t>, Kept<uint16_t>, Kept<int32_t>> remembered_;
    std::vector<int32_t> samples_;
};

// The plan of this routing, from the cache if it is there, and up to date in any case. While the pointer lives the plan
// does not change.
std::shared_ptr<const Plan> obtain_plan(const smoe_geometry& geometry, const int32_t* indices);

}  // namespace expert_lists
}  // namespace smoe
