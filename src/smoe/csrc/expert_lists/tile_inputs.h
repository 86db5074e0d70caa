// How the list kernels get at a tile: its inputs, and its stretches of output rows.
#pragma once

#include "bands.h"
#include "packing.h"
#include "plan.h"

namespace smoe {
namespace expert_lists {

struct TileInputs {
    const float* corner;     // the first tap of the tile's first pixel
    int64_t row_pitch;       // between kernel rows
    const int32_t* offsets;  // of the tile's pixels from the corner: see pixel_offsets()
    uint32_t pixel_mask;     // takes the pixel out of an item

    TileInputs(const smoe_geometry& geometry, const Tiling& tiling, const Tile& tile, const Block& block,
               const float* packed_sample, const int32_t* pixel_offsets)
        : corner(packed_sample + (block.input_offset + padded_row(geometry, tile.row, 0) * block.row_pitch +
                                  tile.column * block.pixel_pitch)),
          row_pitch(block.row_pitch),
          offsets(pixel_offsets),
          pixel_mask(static_cast<uint32_t>(tiling.pixels() - 1)) {}
};

// The same for all tiles; there are tiling.pixels() of them.
inline void pixel_offsets(const smoe_geometry& geometry, const Tiling& tiling, const Block& block, int32_t* offsets) {
    for (int64_t y = 0; y < tiling.height; ++y) {
        for (int64_t x = 0; x < tiling.width; ++x) {
            *offsets++ = static_cast<int32_t>(y * geometry.stride * block.row_pitch + x * block.pixel_pitch);
        }
    }
}

// The copies between rows of an output-shaped sample, (E, Ho, Wo), and a buffer [slot][pixel of the tile]. Rows of a
// tile are so short that the memory does not see them coming: each copy calls for the rows of the next tile.

inline void copy_from_rows(const smoe_geometry& geometry, const Tiling& tiling, const Tile& tile, const float* sample,
                           float* ordered) {
    const int64_t width = geometry.output_width, plane = geometry.output_height * width;
    const float* corner = sample + tile.row * width + tile.column;
    for (int64_t slot = 0; slot < geometry.selected; ++slot) {
        for (int64_t y = 0; y < tile.height; ++y) {
            const float* row = corner + slot * plane + y * width;
            __builtin_prefetch(row + 2 * tile.width - 1);
            copy_floats(row, tile.width, ordered + slot * tiling.pixels() + y * tiling.width);
        }
    }
}

inline void copy_to_rows(const smoe_geometry& geometry, const Tiling& tiling, const Tile& tile, const float* ordered,
                         float* sample) {
    const int64_t width = geometry.output_width, plane = geometry.output_height * width;
    float* corner = sample + tile.row * width + tile.column;
    for (int64_t slot = 0; slot < geometry.selected; ++slot) {
        for (int64_t y = 0; y < tile.height; ++y) {
            float* row = corner + slot * plane + y * width;
            __builtin_prefetch(row + 2 * tile.width - 1, 1);
            copy_floats(ordered + slot * tiling.pixels() + y * tiling.width, tile.width, row);
        }
    }
}

// target[i] = source[places[i]]. This and the next are functions of their own to have all registers for themselves.
__attribute__((noinline)) inline void gather(const float* __restrict source, const uint32_t* __restrict places,
                                             int64_t count, float* __restrict target) {
    for (int64_t i = 0; i < count; ++i) target[i] = source[places[i]];
}

// target[places[i]] = source[i]
__attribute__((noinline)) inline void scatter(const float* __restrict source, const uint32_t* __restrict places,
                                              int64_t count, float* __restrict target) {
    for (int64_t i = 0; i < count; ++i) target[places[i]] = source[i];
}

}  // namespace expert_lists
}  // namespace smoe
