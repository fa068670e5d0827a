#include "base/stream_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/x86_intrinsics.h"

namespace dsv41 {

#if defined(__x86_64__)

void stream_copy(void* to, const void* from, size_t n_bytes) {
  constexpr size_t kLine = 64;
  auto* out = static_cast<std::byte*>(to);
  const auto* in = static_cast<const std::byte*>(from);
  const size_t n_before = std::min(n_bytes, static_cast<size_t>(-reinterpret_cast<uintptr_t>(out) % kLine));
  if (n_before) std::memcpy(out, in, n_before);
  out += n_before;
  in += n_before;
  n_bytes -= n_before;
  for (; n_bytes >= kLine; n_bytes -= kLine, in += kLine, out += kLine) {  // lines leave the core whole
    const auto* const from_line = reinterpret_cast<const __m128i*>(in);
    auto* const to_line = reinterpret_cast<__m128i*>(out);
    const __m128i a = _mm_loadu_si128(from_line), b = _mm_loadu_si128(from_line + 1);
    const __m128i c = _mm_loadu_si128(from_line + 2), d = _mm_loadu_si128(from_line + 3);
    _mm_stream_si128(to_line, a);
    _mm_stream_si128(to_line + 1, b);
    _mm_stream_si128(to_line + 2, c);
    _mm_stream_si128(to_line + 3, d);
  }
  if (n_bytes) std::memcpy(out, in, n_bytes);
  _mm_sfence();  // streamed stores are in no order with what follows
}

#else

void stream_copy(void* to, const void* from, size_t n_bytes) {
  if (n_bytes) std::memcpy(to, from, n_bytes);
}

#endif

}  // namespace dsv41
