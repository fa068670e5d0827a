// One body, several instruction sets. A kernel writes its inner loops once as an always-inline function over plain arrays
// (fixed trip counts, __builtin_fmaf where a fused step is meant); the macro compiles that body for scalar, AVX2 and
// AVX-512 and picks one by CpuTarget. As the order of every sum is in the source, the targets give the same bits.
// Elsewhere the body is compiled once, for what the compiler may take for granted: on aarch64 that is NEON with FMA.
// Rejected: one translation unit per instruction set with -m flags (inline functions of headers would be compiled with
// them too and may be linked in for machines that lack them).
#pragma once

#include "kernels/common/cpu_context.h"

#define DSV41_INLINE inline __attribute__((always_inline))

// Defines `name(target, args...)` that calls the always-inline function template/function `body(args...)`.
#if defined(__x86_64__)

#define DSV41_AVX2 __attribute__((target("avx2,fma,f16c,bmi,bmi2,popcnt")))
#define DSV41_AVX512_FEATURES "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,bmi,bmi2,popcnt"
#ifdef __clang__  // knows no such word there, and then drops the whole attribute
#define DSV41_VECTORS_OF_64
#else
#define DSV41_VECTORS_OF_64 ",prefer-vector-width=512"
#endif
#define DSV41_AVX512 __attribute__((target(DSV41_AVX512_FEATURES DSV41_VECTORS_OF_64)))

#define DSV41_DISPATCH(name, body)                                            \
  template <class... A>                                                       \
  static void name##_scalar(A... a) {                                         \
    body(a...);                                                               \
  }                                                                           \
  template <class... A>                                                       \
  DSV41_AVX2 static void name##_avx2(A... a) {                                \
    body(a...);                                                               \
  }                                                                           \
  template <class... A>                                                       \
  DSV41_AVX512 static void name##_avx512(A... a) {                            \
    body(a...);                                                               \
  }                                                                           \
  template <class... A>                                                       \
  static void name(::dsv41::kernels::CpuTarget target, A... a) {              \
    switch (target) {                                                         \
      case ::dsv41::kernels::CpuTarget::kAmx:                                 \
      case ::dsv41::kernels::CpuTarget::kAvx512Bf16:                          \
      case ::dsv41::kernels::CpuTarget::kAvx512: name##_avx512(a...); return; \
      case ::dsv41::kernels::CpuTarget::kAvx2: name##_avx2(a...); return;     \
      case ::dsv41::kernels::CpuTarget::kNeon:                                \
      case ::dsv41::kernels::CpuTarget::kScalar: name##_scalar(a...); return; \
    }                                                                         \
  }

#else

#define DSV41_DISPATCH(name, body)                        \
  template <class... A>                                   \
  static void name(::dsv41::kernels::CpuTarget, A... a) { \
    body(a...);                                           \
  }

#endif
