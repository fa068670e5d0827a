// Several tokens times FP4 weights by the tiles of AMX, with the bits of the integers (fp4_integers.h).
//
// TDPBF16PS sums a strip of 32 columns from +0 and adds it to the tile with one rounding. FP4 weights and quantised
// tokens are exact in BF16, scales included, and a strip's sum over the activations from 0.125 on is exact in fp32, as is
// the one over the rest. So one instruction for the former and, where a tile of 16 tokens has any, one for the latter are
// the sum that numerics.md 2 defines, in the tile and over all columns: whether tiles or integers multiply a token shows
// nowhere. Hence one token and a few stay with the integers, which read weights as fast as memory gives them, and so does
// whatever has a scale at the end of the range.
//
// Estimated, as no machine with tiles was at hand, cycles of a core for 16 outputs x 32 columns x 64 tokens: TDPBF16PS
// 4 x 16, and the same times the share of tiles with low values (normal inputs 0.32, hidden values 0.99); weights 47,
// once, and tokens 10 x 64 / 16 tiles of outputs = 40 (measured: Xeon without AMX, beside other work, in units of half a
// vector addition); sums to and from the tiles 16. With no overlap at all this is 0.34 of the peak for normal inputs, 0.28
// for hidden values, and 0.11 at 8 tokens, which then wait for memory. The integers take some 12 cycles a token, so they
// end at five.
//
// Rejected: TDPBSSD on signed bytes, which do twice as many products at a time. A large activation takes two bytes, so two
// instructions of 16 cycles for 32 columns as well; but then each strip's sums have to leave the tile (16 cycles), be
// widened, scaled and added up (48 for 16 x 16). Rejected, too: operands of all tokens prepared beforehand, 4 bytes a value
// of each (token, expert) pair, more than all other memory of a step's experts.
#pragma once

#include "kernels/common/cpu_context.h"
#include "kernels/gemm/tile_product.h"

namespace dsv41::kernels {

inline constexpr int kLeastTileTokens = 6;

// As multiply_integers of the rows that x names, all of which prepare_integers accepted. weight: kFp4Row32, in any
// layout. False: it has to be multiplied in integers, y has no meaning yet. Takes 144 KiB of stack.
bool multiply_fp4_tiles(CpuTarget target, const tensor::WeightView& weight, int64_t first, int64_t n,
                        const TokenRows& x, const ProductOutput& out);

}  // namespace dsv41::kernels
