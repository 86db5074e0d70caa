// The straight-through gradient of families, in units of the spread of its products.
//
// With D the products of error and output, and d = D less the mean of its family, the score of candidate k receives
//
//     factor / temperature * pi_k (d_k - sum_j pi_j d_j) / spread,  spread = root mean square of all d,
//
// where pi is the softmax of the scores of the family over the temperature. The first pass over the products finds the
// spread, in float64, because squares of small errors would be 0. The second one computes the gradient in the cache.
// The sums of the families are added in order: nothing depends on the number of threads.

#include <cmath>
#include <limits>
#include <vector>

#include "exponential.h"
#include "family.h"

namespace smoe {
namespace {

typedef double Doubles __attribute__((vector_size(8 * kRegisterLanes)));

struct Arguments {
    const float *scores, *products;
    int64_t experts, families, pixels;
};

inline Register family_mean(const Arguments& a, const Family& family, int64_t begin, int64_t lanes) {
    Register mean = {};
    for (int64_t k = 0; k < family.count; ++k) {
        mean += load_pixels(a.products + (family.first + k) * a.pixels + begin, lanes);
    }
    return mean / static_cast<float>(family.count);
}

// The sum over the family and the pixels of the block of d squared.
double squares(const Arguments& a, const Family& family, int64_t begin, int64_t lanes) {
    const Register mean = family_mean(a, family, begin, lanes);
    Doubles sum = {};
    for (int64_t k = 0; k < family.count; ++k) {
        const Register d = load_pixels(a.products + (family.first + k) * a.pixels + begin, lanes) - mean;
        const Doubles wide = __builtin_convertvector(d, Doubles);
        sum += wide * wide;
    }
    double total = 0.0;
    for (int64_t lane = 0; lane < std::min<int64_t>(lanes, kRegisterLanes); ++lane) total += sum[lane];
    return total;
}

void differentiate(const Arguments& a, const Family& family, int64_t begin, int64_t lanes, float inverse_temperature,
                   float factor, float* gradient) {
    const Register mean = family_mean(a, family, begin, lanes);
    Register highest = load_pixels(a.scores + family.first * a.pixels + begin, lanes);
    for (int64_t k = 1; k < family.count; ++k) {
        const Register score = load_pixels(a.scores + (family.first + k) * a.pixels + begin, lanes);
        highest = score > highest ? score : highest;
    }
    Register total = {}, expected = {};
    for (int64_t k = 0; k < family.count; ++k) {
        const int64_t place = (family.first + k) * a.pixels + begin;
        const Register weight = exponential((load_pixels(a.scores + place, lanes) - highest) * inverse_temperature);
        total += weight;
        expected += weight * (load_pixels(a.products + place, lanes) - mean);
        store_pixels(gradient + place, weight, lanes);
    }
    expected /= total;
    const Register scale = factor / total;
    for (int64_t k = 0; k < family.count; ++k) {
        const int64_t place = (family.first + k) * a.pixels + begin;
        const Register d = load_pixels(a.products + place, lanes) - mean;
        store_pixels(gradient + place, load_pixels(gradient + place, lanes) * ((d - expected) * scale), lanes);
    }
}

}  // namespace
}  // namespace smoe

// scores and products (X, P) to the gradient (X, P) and the spread of the products. Where the spread is 0, a
// denormal number or not finite, the gradient is 0.
extern "C" int smoe_family_gradient(const float* scores, const float* products, int64_t experts, int64_t families,
                                    int64_t pixels, float temperature, const float* factor, float* gradient,
                                    float* spread, int64_t threads) {
    using namespace smoe;
    const Arguments a = {scores, products, experts, families, pixels};
    const int64_t blocks = ceil_divide(pixels, kRegisterLanes);
    std::vector<double> sums(families);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t number = 0; number < families; ++number) {
        const Family family(number, experts, families);
        double sum = 0.0;
        for (int64_t block = 0; block < blocks; ++block) {
            sum += squares(a, family, block * kRegisterLanes, pixels - block * kRegisterLanes);
        }
        sums[number] = sum;
    }
    double total = 0.0;
    for (const double sum : sums) total += sum;
    const double root = std::sqrt(total / static_cast<double>(experts * pixels));
    *spread = static_cast<float>(root);
    // The inverse of a smaller spread is not finite.
    const bool is_usable = std::isfinite(root) && root >= std::numeric_limits<float>::min();
    const float scale = is_usable ? static_cast<float>(*factor / (temperature * root)) : 0.0f;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1) collapse(2)
    for (int64_t number = 0; number < families; ++number) {
        for (int64_t block = 0; block < blocks; ++block) {
            const Family family(number, experts, families);
            const int64_t begin = block * kRegisterLanes, lanes = pixels - begin;
            if (is_usable) {
                differentiate(a, family, begin, lanes, 1.0f / temperature, scale, gradient);
            } else {
                for (int64_t k = 0; k < family.count; ++k) {
                    store_pixels(gradient + (family.first + k) * pixels + begin, Register{}, lanes);
                }
            }
        }
    }
    return 0;
}
