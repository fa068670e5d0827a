// The intrinsics of x86-64; nothing on other machines. Included before whatever else may include immintrin.h.
#pragma once

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the "undefined" operands of its own AVX-512 headers for uninitialised variables (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#endif
