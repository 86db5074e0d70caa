// Families of equal size: expert K s + k is candidate k of slot s, and a pixel selects one candidate for each slot.
//
// The slots are cut into groups, and the pixels of a tile are sorted by the joint choice of a group. In a list of equal
// choices all filters of the group are known, so that what is loaded for a pixel serves several of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "../expert_lists/plan.h"
#include "../geometry.h"
#include "../scratch.h"
#include "../vector.h"

namespace smoe {
namespace joint_lists {

using expert_lists::Tile;
using expert_lists::Tiling;

constexpr int kMostSlots = 3;                        // of a group
constexpr int kMostLists = 16;                       // of a group in a tile: more would be too short
constexpr int kMostPixels = 512;                     // of a tile: its inputs fill L1, and the lists are long
constexpr int kRows = kRegisterLanes == 16 ? 3 : 1;  // of a kernel that registers hold for each slot,
constexpr int kVectors = 3;                          // and vectors of each
constexpr int64_t kRowFloats = 3 * kLanes;           // of a kernel's row in a block of channels

// Larger tiles than those of the experts' lists.
inline Tiling joint_tiling(const smoe_geometry& geometry) {
    Tiling tiling(geometry);
    tiling.width = 32;
    while (tiling.width > 1 && tiling.width / 2 >= tiling.output_width) tiling.width /= 2;
    tiling.height = kMostPixels / tiling.width;
    while (tiling.height > 1 && tiling.height / 2 >= tiling.slice_height) tiling.height /= 2;
    tiling.slice_rows = (tiling.slice_height + tiling.height - 1) / tiling.height;
    tiling.rows = geometry.output_depth * tiling.slice_rows;
    tiling.columns = (tiling.output_width + tiling.width - 1) / tiling.width;
    return tiling;
}

// Rows of a tile are so short that the memory does not see them coming: those of the next tile are called for.
template <typename T>
inline void prefetch_row(const T* row, int64_t width) {
    for (int64_t x = 0; x < width; x += 16) __builtin_prefetch(row + x);
    __builtin_prefetch(row + width - 1);
}

class Lists {
 public:
    Lists(const smoe_geometry& geometry, const Tiling& tiling)
        : geometry_(geometry), tiling_(tiling), candidates_(geometry.experts / geometry.selected) {
        int64_t slots = 1;
        lists_ = candidates_;
        while (slots < kMostSlots && lists_ * candidates_ <= kMostLists) {
            lists_ *= candidates_;
            ++slots;
        }
        groups_ = (geometry.selected + slots - 1) / slots;
        items_ = static_cast<uint16_t*>(scratch_.bytes(tiling.count() * groups_ * kMostPixels * sizeof(uint16_t)));
        ends_ = static_cast<uint16_t*>(scratch_.bytes(tiling.count() * groups_ * kMostLists * sizeof(uint16_t)));
    }

    int64_t groups() const { return groups_; }
    int64_t first_slot(int64_t group) const { return geometry_.selected * group / groups_; }
    int slots(int64_t group) const { return static_cast<int>(first_slot(group + 1) - first_slot(group)); }

    // Pixels of a tile, sorted by the choice of a group.
    const uint16_t* items(int64_t tile, int64_t group) const { return items_ + (tile * groups_ + group) * kMostPixels; }

    // Calls visit(experts of the slots, first item, number of items) for each list of a group that is not empty.
    template <typename Visit>
    void visit(int64_t tile, int64_t group, Visit visit) const {
        const uint16_t* ends = ends_ + (tile * groups_ + group) * kMostLists;
        int64_t begin = 0;
        for (int64_t list = 0; list < lists_; begin = ends[list++]) {
            if (ends[list] == begin) continue;
            int64_t experts[kMostSlots], rest = list;
            for (int64_t j = 0; j < slots(group); ++j, rest /= candidates_) {
                experts[j] = (first_slot(group) + j) * candidates_ + rest % candidates_;
            }
            visit(experts, begin, ends[list] - begin);
        }
    }

    // Returns false if an index is not one of its family's. masks: those of families of two, or none.
    bool sort(const int32_t* indices, const uint16_t* masks) {
        bool is_family = true;
#pragma omp parallel for num_threads(geometry_.threads) schedule(static) reduction(&& : is_family)
        for (int64_t number = 0; number < tiling_.count(); ++number) {
            const Tile tile(tiling_, number);
            for (int64_t group = 0; group < groups_; ++group) {
                is_family = is_family && sort_group(tile, number, group, indices, masks) == 0;
            }
        }
        return is_family;
    }

 private:
    uint32_t sort_group(const Tile& tile, int64_t number, int64_t group, const int32_t* indices,
                        const uint16_t* masks) {
        const int64_t width = tiling_.output_width, plane = tiling_.output_height * width;
        uint32_t choices[kMostPixels], is_other = 0, factor = 1;
        std::fill_n(choices, tile.height * tiling_.width, 0);
        const uint32_t candidates = static_cast<uint32_t>(candidates_);
        for (int64_t slot = first_slot(group); slot < first_slot(group + 1); ++slot, factor *= candidates) {
            const uint32_t first = static_cast<uint32_t>(slot) * candidates;
            for (int64_t y = 0; y < tile.height; ++y) {
                const int64_t place = (tile.row + y) * width + tile.column;
                uint32_t* target = choices + y * tiling_.width;
                if (masks != nullptr) {
                    const uint16_t* bits = masks + slot / 16 * plane + place;
                    for (int64_t x = 0; x < tile.width; ++x) {
                        target[x] += static_cast<uint32_t>(bits[x] >> slot % 16 & 1) * factor;
                    }
                    continue;
                }
                const int32_t* row = indices + slot * plane + place;
                prefetch_row(row + tile.width, tile.width);
                for (int64_t x = 0; x < tile.width; ++x) {
                    const uint32_t place = static_cast<uint32_t>(row[x]) - first;
                    is_other |= place >= candidates;
                    target[x] += place * factor;
                }
            }
        }
        if (is_other) return is_other;
        uint16_t* ends = ends_ + (number * groups_ + group) * kMostLists;
        uint16_t* items = items_ + (number * groups_ + group) * kMostPixels;
        uint16_t lists[kMostLists][kMostPixels];
        uint16_t* next[kMostLists];
        for (int64_t list = 0; list < lists_; ++list) next[list] = lists[list];
        for (int64_t y = 0; y < tile.height; ++y) {
            const int64_t first = y * tiling_.width;
            for (int64_t x = 0; x < tile.width; ++x) *next[choices[first + x]]++ = static_cast<uint16_t>(first + x);
        }
        int64_t end = 0;
        for (int64_t list = 0; list < lists_; ++list) {
            const int64_t count = next[list] - lists[list];
            std::memcpy(items + end, lists[list], count * sizeof(uint16_t));
            ends[list] = static_cast<uint16_t>(end += count);
        }
        return 0;
    }

    Scratch scratch_;
    const smoe_geometry geometry_;
    const Tiling tiling_;
    int64_t candidates_, lists_, groups_;
    uint16_t *items_, *ends_;
};

// The gradients of a group's slots at the pixels of its lists, [pixel][slot]; `source` is the tile's corner in the
// first slot.
template <int kSlots>
inline void gather_slots(const float* source, int64_t plane, int64_t width, const Tiling& tiling, const Tile& tile,
                         const uint16_t* pixels, float* target) {
    float together[kMostPixels * kSlots];
    for (int64_t y = 0; y < tile.height; ++y) {
        const float* row = source + y * width;
        float* place = together + y * tiling.width * kSlots;
#pragma GCC unroll 3
        for (int j = 0; j < kSlots; ++j) prefetch_row(row + j * plane + tile.width, tile.width);
        for (int64_t x = 0; x < tile.width; ++x) {
#pragma GCC unroll 3
            for (int j = 0; j < kSlots; ++j) place[x * kSlots + j] = row[j * plane + x];
        }
    }
    for (int64_t i = 0; i < tile.pixels(); ++i) {
        std::memcpy(target + i * kSlots, together + pixels[i] * kSlots, kSlots * sizeof(float));
    }
}

using Gather = void (*)(const float*, int64_t, int64_t, const Tiling&, const Tile&, const uint16_t*, float*);

template <int... kNumber>
inline Gather pick_gather(int slots, std::integer_sequence<int, kNumber...>) {
    static constexpr Gather kKernels[] = {gather_slots<kNumber + 1>...};
    return kKernels[slots - 1];
}

// The gradients of a tile in the order of its lists, group after group; `corner` is its first pixel in the first slot.
inline void list_gradients(const Lists& lists, const Tiling& tiling, const Tile& tile, int64_t number,
                           const float* corner, int64_t plane, int64_t width, float* target) {
    for (int64_t group = 0; group < lists.groups(); ++group) {
        constexpr auto kAll = std::make_integer_sequence<int, kMostSlots>{};
        pick_gather(lists.slots(group), kAll)(corner + lists.first_slot(group) * plane, plane, width, tiling, tile,
                                              lists.items(number, group), target);
        target += tile.pixels() * lists.slots(group);
    }
}

}  // namespace joint_lists
}  // namespace smoe
