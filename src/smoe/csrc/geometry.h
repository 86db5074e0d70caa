// The shape of one routed convolution, as Python hands it over.
//
//   y[b, s, p] = sum over taps t and channels c of weight[indices[s, p], c, t] * x[b, c, source(p, t)]
//
// An expert with F output channels is F experts with one: Python folds F into X and E before it calls. The routing is
// shared by the batch. Experts are distinct at each pixel (checked in Python).
#pragma once

#include <cstdint>

extern "C" {

struct smoe_geometry {
    int64_t batch;          // B
    int64_t channels;       // C
    int64_t experts;        // X, filters in the bank
    int64_t selected;       // E, filters applied at each pixel
    int64_t height, width;  // input grid
    int64_t output_height, output_width;
    int64_t kernel_height, kernel_width;  // odd
    int64_t stride;
    int64_t wraps_rows, wraps_columns;  // 1: the border wraps around; 0: zeros lie beyond it
    int64_t threads;
};

}  // extern "C"

// Input coordinate that a tap of an output coordinate reads, or -1 where it reads a zero.
inline int64_t source_coordinate(int64_t output, int64_t tap, int64_t kernel, int64_t stride, int64_t size,
                                 int64_t wraps) {
    int64_t coordinate = output * stride + tap - kernel / 2;
    if (wraps) {
        coordinate %= size;
        return coordinate < 0 ? coordinate + size : coordinate;
    }
    return coordinate >= 0 && coordinate < size ? coordinate : -1;
}
