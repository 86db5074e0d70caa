// Large layers are worked off in bands, so that what is packed is small: a few megabytes rather than copies of whole
// images, which would take as much memory as the layer's own tensors and would not stay in any cache.
//
// The bands of a geometry come in the order of samples and rows, and no kernel sums in another order for being in
// bands: results do not depend on how many there are. Small layers are one band.
#pragma once

#include "packing.h"
#include "plan.h"

namespace smoe {
namespace expert_lists {

// All threads work on a band together, so it grows with their number.
inline int64_t band_bytes(int64_t threads) { return std::max<int64_t>(threads, 4) << 20; }

// Whole samples, or some rows of tiles of one sample.
struct Band {
    int64_t first_sample, samples;
    int64_t first_tile, tiles;
    int64_t first_row, rows;      // padded input rows that the tiles read
    int64_t first_pixel, pixels;  // of the tiles, in each sample
};

// Cuts the tiles of all samples into bands. row_bytes: packed for each row of tiles, in each sample.
inline std::vector<Band> cut_bands(const smoe_geometry& geometry, const Tiling& tiling, int64_t row_bytes) {
    const int64_t most_rows = std::max<int64_t>(band_bytes(geometry.threads) / std::max<int64_t>(row_bytes, 1), 1);
    const int64_t samples = std::max<int64_t>(most_rows / tiling.rows, 1);
    const int64_t parts = (tiling.rows + most_rows - 1) / most_rows;  // of a sample; nearly equal ones
    std::vector<Band> bands;
    for (int64_t sample = 0; sample < geometry.batch; sample += samples) {
        for (int64_t part = 0; part < parts; ++part) {
            const int64_t begin = tiling.rows * part / parts, end = tiling.rows * (part + 1) / parts;
            const Tile last(tiling, end * tiling.columns - 1);
            const int64_t first_output = Tile(tiling, begin * tiling.columns).row;
            const int64_t last_output = last.row + last.height - 1;
            Band band;
            band.first_sample = sample;
            band.samples = std::min(samples, geometry.batch - sample);
            band.first_tile = begin * tiling.columns;
            band.tiles = (end - begin) * tiling.columns;
            band.first_row = padded_row(geometry, first_output, 0);
            band.rows = padded_row(geometry, last_output, geometry.kernel_height - 1) - band.first_row + 1;
            band.first_pixel = first_output * tiling.output_width;
            band.pixels = (last_output - first_output + 1) * tiling.output_width;
            bands.push_back(band);
        }
    }
    return bands;
}

}  // namespace expert_lists
}  // namespace smoe
