// XXH3 for AVX-512 (xxh3_wide.h).
#if defined(__x86_64__)
#define DSV41_XXH3_TARGET "avx512f"
#define XXH_VECTOR 3
#include "base/xxh3_wide.inc"

namespace dsv41 {

const Xxh3Functions kXxh3Avx512 = {hash_64, hash_128, update};

}  // namespace dsv41
#endif
