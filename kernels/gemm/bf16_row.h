// One token times packed FP8 and BF16 weights by VDPBF16PS: the order of dot_unit.h without panels in between, with the
// same bits. Scales are multiplied into the token as in packed_product.h; what it cannot take goes through panels.
#pragma once

#include <cstdint>

#include "kernels/gemm/tile_product.h"

namespace dsv41::kernels {

// As multiply_rows. False, and nothing is written: there are several tokens, the weight is not packed or the values
// need the general form.
bool multiply_bf16_row(const tensor::WeightView& weight, int64_t first, int64_t n, const TokenRows& x,
                       const ProductOutput& out);

}  // namespace dsv41::kernels
