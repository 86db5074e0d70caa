// The shape of one routed convolution, as Python hands it over.
//
//   y[b, s, p] = sum over taps t and channels c of weight[indices[s, p], c, t] * x[b, c, source(p, t)]
//
// An expert with F output channels is F experts with one: Python folds F into X and E before it calls. The routing is
// shared by the batch. Experts are distinct at each pixel (checked in Python).
//
// A volume is a tall image: the rows of its slices below each other. Its kernel likewise has the rows of all its
// slices, and source_row() finds the input row that a kernel row of an output row reads. A plane is a volume of one
// slice.
#pragma once

#include <cstdint>

extern "C" {

struct smoe_geometry {
    int64_t batch;          // B
    int64_t channels;       // C
    int64_t experts;        // X, filters in the bank
    int64_t selected;       // E, filters applied at each pixel
    int64_t height, width;  // input grid; rows of all slices
    int64_t output_height, output_width;
    int64_t kernel_height, kernel_width;  // each slice has an odd number of rows and columns
    int64_t stride;
    int64_t wraps_rows, wraps_columns;  // 1: the border wraps around; 0: zeros lie beyond it
    int64_t threads;
    int64_t depth, output_depth, kernel_depth;  // slices; 1 in a plane
    int64_t wraps_depth;
    int64_t depth_padding, row_padding, column_padding;  // beyond the border; half a kernel keeps the grid
};

}  // extern "C"

// Input coordinate that a tap of an output coordinate reads, or -1 where it reads a zero.
inline int64_t source_coordinate(int64_t output, int64_t tap, int64_t padding, int64_t stride, int64_t size,
                                 int64_t wraps) {
    int64_t coordinate = output * stride + tap - padding;
    if (wraps) {
        coordinate %= size;
        return coordinate < 0 ? coordinate + size : coordinate;
    }
    return coordinate >= 0 && coordinate < size ? coordinate : -1;
}

// Rows of one slice.
inline int64_t slice_height(const smoe_geometry& g) { return g.height / g.depth; }
inline int64_t output_slice_height(const smoe_geometry& g) { return g.output_height / g.output_depth; }
inline int64_t kernel_slice_height(const smoe_geometry& g) { return g.kernel_height / g.kernel_depth; }

// Input row that a kernel row of an output row reads, or -1 where it reads zeros.
inline int64_t source_row(const smoe_geometry& g, int64_t output_row, int64_t kernel_row) {
    const int64_t outputs = output_slice_height(g), taps = kernel_slice_height(g), rows = slice_height(g);
    const int64_t slice =
        source_coordinate(output_row / outputs, kernel_row / taps, g.depth_padding, g.stride, g.depth, g.wraps_depth);
    const int64_t row =
        source_coordinate(output_row % outputs, kernel_row % taps, g.row_padding, g.stride, rows, g.wraps_rows);
    return slice < 0 || row < 0 ? -1 : slice * rows + row;
}
