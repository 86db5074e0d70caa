// A layer in inference by one call: the convolution, the bias of experts and the local affine map.
#include <cstring>

#include "geometry.h"

extern "C" {

typedef int (*SmoeForward)(const smoe_geometry*, const float*, const float*, const float*, const int32_t*, float*);

int smoe_family_infer(const smoe_geometry*, const float*, const float*, const float*, const int32_t*, uint16_t*,
                      const float*, const float*, float*);
int smoe_local_affine(int64_t, int64_t, const float*, const float*, const float*, float*, int64_t);

// Returns 2 if two pieces of memory differ.
int smoe_equal(const void* one, const void* other, int64_t size) { return std::memcmp(one, other, size) == 0 ? 0 : 2; }

// masks: those of families of two, or none; bias, scale and offset may be missing. `forward` is used without masks.
int smoe_infer(SmoeForward forward, const smoe_geometry* geometry, const float* x, const float* weight,
               const float* bias, const int32_t* indices, uint16_t* masks, const float* scale, const float* offset,
               float* y) {
    if (masks != nullptr) return smoe_family_infer(geometry, x, weight, bias, indices, masks, scale, offset, y);
    const int code = forward(geometry, x, weight, bias, indices, y);
    if (code != 0 || scale == nullptr) return code;
    const int64_t size = geometry->selected * geometry->output_height * geometry->output_width;
    return smoe_local_affine(geometry->batch, size, y, scale, offset, y, geometry->threads);
}

}  // extern "C"
