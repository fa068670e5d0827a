// XXH3 for AVX2 (xxh3_wide.h).
#if defined(__x86_64__)
#define DSV41_XXH3_TARGET "avx2"
#define XXH_VECTOR 2
#include "base/xxh3_wide.inc"

namespace dsv41 {

const Xxh3Functions kXxh3Avx2 = {hash_64, hash_128, update};

}  // namespace dsv41
#endif
