// The gradient that families of experts give to keys and embeddings, whose products are the scores of a gate.
//
// With D_k the products of error and output of candidate k of a family, summed over samples and an expert's outputs,
// and pi the softmax of the family's scores over the temperature T, a score receives pi_k (D_k - sum_j pi_j D_j) / T.
// These gradients add up to 0 in a family. So only differences from a family's first candidate are computed: of its
// filters, biases, keys, products and scores. Neither outputs nor scores are ever stored as a whole.
//
// Work: bands of output rows, whose size depends on the geometry alone. Each packs its inputs, errors and embeddings
// with one pitch, padding included, so that a tap is a constant shift of all pixels of the band; the columns between
// two rows have an error of 0. Then difference filters run over the band, and families over their products.
// Registers: the outputs of up to 12 filters (6 without AVX-512) at two vectors of pixels, and two vectors of inputs.
// Caches: L1 holds the weights of these filters for a block of channels, L2 the inputs and products of a band.
// Threads share out bands. The gradients of the keys are added up band after band: nothing depends on the threads.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "../geometry.h"
#include "../scratch.h"
#include "exponential.h"
#include "family.h"

namespace smoe {
namespace {

constexpr int kFilters = kRegisterLanes == 16 ? 12 : 6;
constexpr int64_t kTile = 2 * kRegisterLanes;
constexpr int64_t kBandFloats = 192 << 10;
constexpr int64_t kWeightFloats = 4 << 10;  // of the filters that are in use at a time

inline Register load_register(const float* source) {
    Register values;
    std::memcpy(&values, source, sizeof(values));
    return values;
}

inline void store_register(float* target, Register values) { std::memcpy(target, &values, sizeof(values)); }

inline float add_lanes(Register values) {
    float total = 0.0f;
    for (int lane = 0; lane < kRegisterLanes; ++lane) total += values[lane];
    return total;
}

// A candidate's filter less that of the first candidate of its family.
struct Difference {
    int64_t filter, first;  // in the bank
    int64_t row;            // among the products
    int64_t slot;           // among the errors
    float bias;
};

// Filters that are multiplied together; `weights` are [channel][tap][filter].
struct Group {
    const Difference* differences;
    int64_t count;
    const float* weights;
};

struct Products {
    float* values;        // [row][pixel]
    const float* errors;  // [slot][pixel]
    int64_t pitch;        // of both
};

// Adds error times output to the products of kCount filters at kVectors vectors of pixels, for some channels.
template <int kCount, int kVectors>
void multiply(const Group& group, int64_t first_channel, int64_t channels, const std::vector<int64_t>& taps,
              const float* x, int64_t channel_pitch, const Products& products, int64_t pixel) {
    Register sums[kCount][kVectors];
#pragma GCC unroll 12
    for (int i = 0; i < kCount; ++i) {
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
            sums[i][v] = (first_channel == 0 ? group.differences[i].bias : 0.0f) - Register{};
        }
    }
    const int64_t* end = taps.data() + taps.size();
    const float* weights = group.weights + first_channel * static_cast<int64_t>(taps.size()) * kCount;
    for (int64_t c = 0; c < channels; ++c) {
        const float* corner = x + (first_channel + c) * channel_pitch + pixel;
        for (const int64_t* tap = taps.data(); tap != end; ++tap) {
            Register input[kVectors];
#pragma GCC unroll 2
            for (int v = 0; v < kVectors; ++v) input[v] = load_register(corner + *tap + v * kRegisterLanes);
#pragma GCC unroll 12
            for (int i = 0; i < kCount; ++i) {
                const Register weight = weights[i] - Register{};
#pragma GCC unroll 2
                for (int v = 0; v < kVectors; ++v) sums[i][v] += weight * input[v];
            }
            weights += kCount;
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < kCount; ++i) {
        const float* error = products.errors + group.differences[i].slot * products.pitch + pixel;
        float* target = products.values + group.differences[i].row * products.pitch + pixel;
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v, error += kRegisterLanes, target += kRegisterLanes) {
            store_register(target, load_register(target) + load_register(error) * sums[i][v]);
        }
    }
}

using Multiply = void (*)(const Group&, int64_t, int64_t, const std::vector<int64_t>&, const float*, int64_t,
                          const Products&, int64_t);

template <int kVectors, int... kNumber>
Multiply pick_multiply(int64_t count, std::integer_sequence<int, kNumber...>) {
    static constexpr Multiply kKernels[] = {multiply<kNumber + 1, kVectors>...};
    return kKernels[count - 1];
}

template <int kVectors>
Multiply pick_multiply(int64_t count) {
    return pick_multiply<kVectors>(count, std::make_integer_sequence<int, kFilters>{});
}

struct Arguments {
    const float* x;
    int64_t sample_floats;  // between samples of x,
    const float* errors;
    int64_t error_floats;  // and of the errors
    const float *weight, *bias;
    int64_t expert_channels;
    const float *keys, *embeddings;
    int64_t rank;
    float scale, temperature;
};

class Learner {
 public:
    Learner(const smoe_geometry& geometry, const Arguments& arguments, float* key_gradient, float* embedding_gradient)
        : g_(geometry),
          a_(arguments),
          experts_(geometry.experts / arguments.expert_channels),
          families_(geometry.selected / arguments.expert_channels),
          rows_(experts_ - families_),
          key_gradient_(key_gradient),
          embedding_gradient_(embedding_gradient) {
        // Inputs of a stride lie in planes of their own, so that neighbours in the output are neighbours there too.
        kernel_rows_ = kernel_slice_height(g_);
        row_phases_ = std::min(g_.stride, kernel_rows_);
        column_phases_ = std::min(g_.stride, g_.kernel_width);
        halo_ = (kernel_rows_ - 1) / g_.stride;
        pitch_ = g_.output_width + (g_.kernel_width - 1) / g_.stride;
        phases_ = g_.kernel_depth * row_phases_ * column_phases_;
        for (int64_t b = 0; b < column_phases_; ++b) {
            for (int64_t i = 0; i < pitch_; ++i) {
                columns_.push_back(source_coordinate(i, b, g_.column_padding, g_.stride, g_.width, g_.wraps_columns));
            }
        }
        const int64_t slice = output_slice_height(g_);
        const int64_t row_floats = pitch_ * (rows_ + g_.selected + g_.channels * phases_ + 2 * a_.rank);
        const int64_t most_rows = std::min(std::max<int64_t>(kBandFloats / row_floats, 1), slice);
        parts_ = ceil_divide(slice, most_rows);
        band_rows_ = ceil_divide(slice, parts_);
        // The last tap of the last tile reads beyond the last row.
        pixels_ = ceil_divide(band_rows_ * pitch_, kTile) * kTile;
        channel_floats_ = phases_ * (band_rows_ + halo_) * pitch_;
        input_floats_ = ceil_divide(g_.channels * channel_floats_ + (halo_ + 1) * pitch_ + kTile, 16) * 16;
        number_differences();
        weights_ = scratch_.floats(g_.channels * taps() * static_cast<int64_t>(differences_.size()));
        workspace_floats_ = input_floats_ + (g_.selected + rows_ + 2 * a_.rank) * pixels_;
        workspace_ = scratch_.floats(g_.threads * workspace_floats_);
        band_sums_ = scratch_.floats(g_.output_depth * parts_ * rows_ * a_.rank);
    }

    // Returns whether all gradients are finite; they are 0 otherwise.
    bool run() {
        cut_groups();
        const int64_t bands = g_.output_depth * parts_;
        const int64_t groups = static_cast<int64_t>(groups_.size());
#pragma omp parallel num_threads(g_.threads) if (g_.threads > 1)
        {
#pragma omp for schedule(static)
            for (int64_t i = 0; i < groups; ++i) pack_weights(groups_[i]);
#pragma omp for schedule(dynamic)
            for (int64_t band = 0; band < bands; ++band) learn_band(band);
        }
        for (int64_t family = 0; family < families_; ++family) finish_keys(family, bands);
        const int64_t numbers = a_.rank * g_.output_height * g_.output_width;
        if (is_finite(key_gradient_, experts_ * a_.rank) && is_finite(embedding_gradient_, numbers)) return true;
        std::fill_n(key_gradient_, experts_ * a_.rank, 0.0f);
        std::fill_n(embedding_gradient_, numbers, 0.0f);
        return false;
    }

 private:
    int64_t taps() const { return g_.kernel_height * g_.kernel_width; }
    Family family(int64_t number) const { return Family(number, experts_, families_); }
    // The row of a family's second candidate.
    int64_t first_row(int64_t number) const { return family(number).first - number; }

    void number_differences() {
        const int64_t channels = a_.expert_channels;
        for (int64_t number = 0; number < families_; ++number) {
            const Family members = family(number);
            for (int64_t k = 1; k < members.count; ++k) {
                const float* key = a_.keys + (members.first + k) * a_.rank;
                for (int64_t i = 0; i < a_.rank; ++i) {
                    key_differences_.push_back(a_.scale * (key[i] - a_.keys[members.first * a_.rank + i]));
                }
                for (int64_t f = 0; f < channels; ++f) {
                    const int64_t first = members.first * channels + f, filter = first + k * channels;
                    const float bias = a_.bias == nullptr ? 0.0f : a_.bias[filter] - a_.bias[first];
                    differences_.push_back({filter, first, first_row(number) + k - 1, number * channels + f, bias});
                }
            }
        }
    }

    void cut_groups() {
        const int64_t count = static_cast<int64_t>(differences_.size()), groups = ceil_divide(count, kFilters);
        for (int64_t i = 0; i < groups; ++i) {
            const int64_t begin = count * i / groups, end = count * (i + 1) / groups;
            groups_.push_back({differences_.data() + begin, end - begin, weights_ + begin * g_.channels * taps()});
        }
    }

    void pack_weights(const Group& group) {
        constexpr int64_t kTogether = 64;  // of a filter, so that all filters of the group meet in L1
        const int64_t floats = g_.channels * taps();
        float* target = weights_ + (group.weights - weights_);
        for (int64_t begin = 0; begin < floats; begin += kTogether) {
            const int64_t end = std::min(begin + kTogether, floats);
            for (int64_t i = 0; i < group.count; ++i) {
                const float* filter = a_.weight + group.differences[i].filter * floats;
                const float* first = a_.weight + group.differences[i].first * floats;
                for (int64_t j = begin; j < end; ++j) target[j * group.count + i] = filter[j] - first[j];
            }
        }
    }

    void learn_band(int64_t band) {
        const int64_t slice = band / parts_, part = band % parts_, height = output_slice_height(g_);
        const int64_t begin = height * part / parts_, rows = height * (part + 1) / parts_ - begin;
        float* x = workspace_ + workspace_floats_ * thread_number();
        float* errors = x + input_floats_;
        float* products = errors + g_.selected * pixels_;
        float* embeddings = products + rows_ * pixels_;
        float* gradients = embeddings + a_.rank * pixels_;
        const int64_t first_pixel = (slice * height + begin) * g_.output_width;
        const int64_t vectors = ceil_divide(rows * pitch_, kRegisterLanes);
        std::fill_n(products, rows_ * pixels_, 0.0f);
        for (int64_t b = 0; b < g_.batch; ++b) {
            pack_inputs(a_.x + b * a_.sample_floats, slice, begin, rows, x);
            pack_rows(a_.errors + b * a_.error_floats + first_pixel, g_.selected, rows, errors);
            convolve(rows, x, {products, errors, pixels_});
        }
        pack_rows(a_.embeddings + first_pixel, a_.rank, rows, embeddings);
        float* sums = band_sums_ + band * rows_ * a_.rank;
        for (int64_t number = 0; number < families_; ++number) differentiate(number, vectors, embeddings, products);
        for (int64_t row = 0; row < rows_; ++row) {
            sum_keys(products + row * pixels_, vectors, embeddings, sums + row * a_.rank);
        }
        sum_embeddings(products, vectors, gradients);
        const int64_t plane = g_.output_height * g_.output_width;
        for (int64_t i = 0; i < a_.rank; ++i) {
            for (int64_t row = 0; row < rows; ++row) {
                std::memcpy(embedding_gradient_ + i * plane + first_pixel + row * g_.output_width,
                            gradients + i * pixels_ + row * pitch_, g_.output_width * sizeof(float));
            }
        }
    }

    static int thread_number() {
#if defined(_OPENMP)
        return omp_get_thread_num();
#else
        return 0;
#endif
    }

    void pack_inputs(const float* sample, int64_t slice, int64_t begin, int64_t rows, float* target) const {
        const int64_t plane = g_.height * g_.width, height = slice_height(g_);
        float* const start = target;
        for (int64_t c = 0; c < g_.channels; ++c) {
            for (int64_t z = 0; z < g_.kernel_depth; ++z) {
                const int64_t depth =
                    source_coordinate(slice, z, g_.depth_padding, g_.stride, g_.depth, g_.wraps_depth);
                for (int64_t a = 0; a < row_phases_; ++a) {
                    for (int64_t b = 0; b < column_phases_; ++b) {
                        for (int64_t i = 0; i < rows + halo_; ++i, target += pitch_) {
                            const int64_t row =
                                source_coordinate(begin + i, a, g_.row_padding, g_.stride, height, g_.wraps_rows);
                            if (depth < 0 || row < 0) {
                                std::memset(target, 0, pitch_ * sizeof(float));
                            } else {
                                pack_row(sample + c * plane + (depth * height + row) * g_.width,
                                         columns_.data() + b * pitch_, target);
                            }
                        }
                    }
                }
            }
        }
        std::memset(target, 0, (start + input_floats_ - target) * sizeof(float));
    }

    // Planes lie so far apart that no processor foresees a row of the next one.
    static void prefetch_row(const float* source, int64_t width) {
        for (int64_t i = 0; i < width; i += kLanes) __builtin_prefetch(source + i);
    }

    void pack_row(const float* source, const int64_t* columns, float* target) const {
        int64_t i = 0;
        prefetch_row(source + g_.height * g_.width, g_.width);
        if (g_.stride == 1) {
            const int64_t inner = std::min(g_.width, pitch_ - g_.column_padding);
            std::memcpy(target + g_.column_padding, source, inner * sizeof(float));
            for (; i < g_.column_padding; ++i) target[i] = columns[i] < 0 ? 0.0f : source[columns[i]];
            i += inner;
        }
        for (; i < pitch_; ++i) target[i] = columns[i] < 0 ? 0.0f : source[columns[i]];
    }

    // Rows of (count, output pixels), with zeros between them and behind.
    void pack_rows(const float* source, int64_t count, int64_t rows, float* target) const {
        const int64_t plane = g_.output_height * g_.output_width, width = g_.output_width;
        for (int64_t i = 0; i < count; ++i, target += pixels_) {
            for (int64_t row = 0; row < rows; ++row) {
                prefetch_row(source + (i + 1) * plane + row * width, width);
                std::memcpy(target + row * pitch_, source + i * plane + row * width, width * sizeof(float));
                std::memset(target + row * pitch_ + width, 0, (pitch_ - width) * sizeof(float));
            }
            std::memset(target + rows * pitch_, 0, (pixels_ - rows * pitch_) * sizeof(float));
        }
    }

    void convolve(int64_t rows, const float* x, const Products& products) const {
        const int64_t phase_floats = (rows + halo_) * pitch_, pixels = rows * pitch_;
        std::vector<int64_t> taps;
        for (int64_t z = 0; z < g_.kernel_depth; ++z) {
            for (int64_t y = 0; y < kernel_rows_; ++y) {
                for (int64_t i = 0; i < g_.kernel_width; ++i) {
                    const int64_t phase = (z * row_phases_ + y % g_.stride) * column_phases_ + i % g_.stride;
                    taps.push_back(phase * phase_floats + y / g_.stride * pitch_ + i / g_.stride);
                }
            }
        }
        const int64_t size = static_cast<int64_t>(taps.size()), channel_pitch = phases_ * phase_floats;
        const int64_t blocks = ceil_divide(g_.channels, std::max<int64_t>(kWeightFloats / kFilters / size, 1));
        for (int64_t block = 0; block < blocks; ++block) {
            const int64_t first = g_.channels * block / blocks;
            const int64_t channels = g_.channels * (block + 1) / blocks - first;
            for (const Group& group : groups_) {
                const Multiply two = pick_multiply<2>(group.count), one = pick_multiply<1>(group.count);
                for (int64_t pixel = 0; pixel < pixels; pixel += kTile) {
                    const Multiply run = pixels - pixel <= kRegisterLanes ? one : two;
                    run(group, first, channels, taps, x, channel_pitch, products, pixel);
                }
            }
        }
    }

    // Products of a family to the gradient of its scores, but for the scale and the temperature.
    void differentiate(int64_t number, int64_t vectors, const float* embeddings, float* products) const {
        const int64_t count = family(number).count - 1, rank = a_.rank;
        const float* keys = key_differences_.data() + first_row(number) * rank;
        float* rows = products + first_row(number) * pixels_;
        const float inverse = 1.0f / a_.temperature;
        std::vector<Register> weights(count);
        for (int64_t v = 0; v < vectors; ++v, rows += kRegisterLanes, embeddings += kRegisterLanes) {
            Register highest = {};
            for (int64_t k = 0; k < count; ++k) {
                Register score = {};
                for (int64_t i = 0; i < rank; ++i) {
                    score += keys[k * rank + i] * load_register(embeddings + i * pixels_);
                }
                score *= inverse;
                weights[k] = score;
                highest = score > highest ? score : highest;
            }
            Register total = exponential(-highest), expected = {};
            for (int64_t k = 0; k < count; ++k) {
                weights[k] = exponential(weights[k] - highest);
                total += weights[k];
                expected += weights[k] * load_register(rows + k * pixels_);
            }
            expected /= total;
            for (int64_t k = 0; k < count; ++k) {
                const Register product = load_register(rows + k * pixels_);
                store_register(rows + k * pixels_, weights[k] * (product - expected) / total);
            }
        }
    }

    // sums[i] = the sum over the pixels of a row times number i of the embeddings.
    void sum_keys(const float* row, int64_t vectors, const float* embeddings, float* sums) const {
        constexpr int64_t kTogether = 8;
        for (int64_t first = 0; first < a_.rank; first += kTogether) {
            const int64_t count = std::min(kTogether, a_.rank - first);
            Register totals[kTogether] = {};
            for (int64_t v = 0; v < vectors; ++v) {
                const Register value = load_register(row + v * kRegisterLanes);
                const float* place = embeddings + first * pixels_ + v * kRegisterLanes;
                if (count == kTogether) {
#pragma GCC unroll 8
                    for (int i = 0; i < kTogether; ++i) totals[i] += value * load_register(place + i * pixels_);
                } else {
                    for (int i = 0; i < count; ++i) totals[i] += value * load_register(place + i * pixels_);
                }
            }
            for (int64_t i = 0; i < count; ++i) sums[first + i] = add_lanes(totals[i]);
        }
    }

    // Gradient of the embeddings [number][pixel] by the rows.
    void sum_embeddings(const float* rows, int64_t vectors, float* gradients) const {
        constexpr int64_t kTogether = 8;
        const Register scale = 1.0f / a_.temperature - Register{};
        for (int64_t v = 0; v < vectors; ++v) {
            for (int64_t first = 0; first < a_.rank; first += kTogether) {
                const int64_t count = std::min(kTogether, a_.rank - first);
                Register totals[kTogether] = {};
                for (int64_t row = 0; row < rows_; ++row) {
                    const Register value = load_register(rows + row * pixels_ + v * kRegisterLanes);
                    const float* key = key_differences_.data() + row * a_.rank + first;
                    if (count == kTogether) {
#pragma GCC unroll 8
                        for (int i = 0; i < kTogether; ++i) totals[i] += key[i] * value;
                    } else {
                        for (int i = 0; i < count; ++i) totals[i] += key[i] * value;
                    }
                }
                for (int64_t i = 0; i < count; ++i) {
                    store_register(gradients + (first + i) * pixels_ + v * kRegisterLanes, totals[i] * scale);
                }
            }
        }
    }

    // The keys of a family: what the bands have found, and for the first candidate its negative sum.
    void finish_keys(int64_t number, int64_t bands) {
        const Family members = family(number);
        const float scale = a_.scale / a_.temperature;
        float* first = key_gradient_ + members.first * a_.rank;
        std::fill_n(first, a_.rank, 0.0f);
        for (int64_t k = 1; k < members.count; ++k) {
            const float* sums = band_sums_ + (first_row(number) + k - 1) * a_.rank;
            for (int64_t i = 0; i < a_.rank; ++i) {
                float total = 0.0f;
                for (int64_t band = 0; band < bands; ++band) total += sums[band * rows_ * a_.rank + i];
                first[k * a_.rank + i] = total * scale;
                first[i] -= total * scale;
            }
        }
    }

    static bool is_finite(const float* values, int64_t count) {
        float zeros = 0.0f;  // a number that is not finite is no 0 after a multiplication by 0
        for (int64_t i = 0; i < count; ++i) zeros += values[i] * 0.0f;
        return zeros == 0.0f;
    }

    Scratch scratch_;
    const smoe_geometry g_;
    const Arguments a_;
    const int64_t experts_, families_, rows_;  // rows: candidates but the first of each family
    float *key_gradient_, *embedding_gradient_;
    int64_t kernel_rows_, row_phases_, column_phases_, phases_, halo_, pitch_;
    int64_t parts_, band_rows_, pixels_, channel_floats_, input_floats_, workspace_floats_;
    std::vector<int64_t> columns_;  // of the input, or -1, for each phase and place of a row
    std::vector<Difference> differences_;
    std::vector<float> key_differences_;  // [row][number]
    std::vector<Group> groups_;
    float *weights_, *workspace_, *band_sums_;
};

}  // namespace
}  // namespace smoe

// x (B, C, ...), errors (B, E F, P), weight (X F, C, ...), bias (X F) or null, keys (X, R) and embeddings (R, P) to the
// gradients of keys and embeddings; scores are scale * keys . embeddings.
extern "C" int smoe_learn_factorised(const smoe_geometry* geometry, const float* x, int64_t sample_floats,
                                     const float* errors, int64_t error_floats, const float* weight, const float* bias,
                                     int64_t expert_channels, const float* keys, const float* embeddings, int64_t rank,
                                     float scale, float temperature, float* key_gradient, float* embedding_gradient,
                                     int64_t* is_nonfinite) {
    try {
        const smoe::Arguments arguments = {x,    sample_floats, errors, error_floats, weight,     bias, expert_channels,
                                           keys, embeddings,    rank,   scale,        temperature};
        *is_nonfinite = !smoe::Learner(*geometry, arguments, key_gradient, embedding_gradient).run();
    } catch (const std::bad_alloc&) {
        return 1;
    }
    return 0;
}
