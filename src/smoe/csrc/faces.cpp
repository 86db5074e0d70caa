// The borders of the faces of a HEALPix sphere, and their gradient.
//
// A padded face has `width` more rows and columns on each side. Each pixel of this border shows the mean of two pixels
// of the sphere, which are one and the same but at corners where three faces meet. sources: the numbers of the first
// pixels, then those of the second; for each face the rows above it, the columns left of it, those right of it, and the
// rows below it.
#include <algorithm>
#include <cstdint>
#include <cstring>

namespace {

constexpr int64_t kFaces = 12;

// Calls border(place in the padded faces, number in the border) and row(place in the padded faces, place in the faces).
template <typename Border, typename Row>
void visit(int64_t side, int64_t width, Border border, Row row) {
    const int64_t size = side + 2 * width;
    int64_t number = 0;
    for (int64_t face = 0; face < kFaces; ++face) {
        const int64_t first = face * size * size;
        for (int64_t i = 0; i < width * size; ++i) border(first + i, number++);
        for (const int64_t left : {int64_t{0}, width + side}) {
            for (int64_t i = 0; i < side * width; ++i) {
                border(first + (width + i / width) * size + left + i % width, number++);
            }
        }
        for (int64_t i = 0; i < width * size; ++i) border(first + (width + side) * size + i, number++);
        for (int64_t i = 0; i < side; ++i) row(first + (width + i) * size + width, (face * side + i) * side);
    }
}

}  // namespace

extern "C" {

// planes: samples times channels.
int smoe_pad_faces(int64_t planes, int64_t side, int64_t width, const int64_t* sources, const float* faces,
                   float* padded, int64_t threads) {
    const int64_t pixels = kFaces * side * side, size = side + 2 * width, count = kFaces * (size * size - side * side);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t plane = 0; plane < planes; ++plane) {
        const float* from = faces + plane * pixels;
        float* to = padded + plane * kFaces * size * size;
        visit(
            side, width,
            [&](int64_t place, int64_t i) {
                const int64_t first = sources[i], second = sources[count + i];
                to[place] = first == second ? from[first] : 0.5f * from[first] + 0.5f * from[second];
            },
            [&](int64_t place, int64_t source) { std::memcpy(to + place, from + source, side * sizeof(float)); });
    }
    return 0;
}

// A plane is summed by one thread, in the order of its border.
int smoe_pad_faces_gradient(int64_t planes, int64_t side, int64_t width, const int64_t* sources, const float* padded,
                            float* faces, int64_t threads) {
    const int64_t pixels = kFaces * side * side, size = side + 2 * width, count = kFaces * (size * size - side * side);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t plane = 0; plane < planes; ++plane) {
        const float* from = padded + plane * kFaces * size * size;
        float* to = faces + plane * pixels;
        const auto nothing = [](int64_t, int64_t) {};
        visit(side, width, nothing,
              [&](int64_t place, int64_t target) { std::memcpy(to + target, from + place, side * sizeof(float)); });
        visit(
            side, width,
            [&](int64_t place, int64_t i) {
                to[sources[i]] += 0.5f * from[place];
                to[sources[count + i]] += 0.5f * from[place];
            },
            nothing);
    }
    return 0;
}

}  // extern "C"
