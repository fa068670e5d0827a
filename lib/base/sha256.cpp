#include "base/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace dsv41 {
namespace {

constexpr size_t kChunkBytes = 64;

// FIPS 180-4, 4.2.2: fractions of the cube roots of the first 64 primes.
alignas(16) constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

// FIPS 180-4, 5.3.3: fractions of the square roots of the first 8 primes.
constexpr std::array<uint32_t, 8> kInitial = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                              0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

uint32_t load_big_endian(const uint8_t* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | uint32_t{p[3]};
}

// FIPS 180-4, 6.2.2, step by step.
void compress_portable(uint32_t state[8], const uint8_t* data, size_t n_chunks) {
  for (; n_chunks > 0; --n_chunks, data += kChunkBytes) {
    uint32_t w[64];
    for (int t = 0; t < 16; ++t) w[t] = load_big_endian(data + 4 * t);
    for (int t = 16; t < 64; ++t) {
      const uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
      const uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
      w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (int t = 0; t < 64; ++t) {
      const uint32_t sum1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
      const uint32_t t1 = h + sum1 + ((e & f) ^ (~e & g)) + kRound[t] + w[t];
      const uint32_t sum0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
      const uint32_t t2 = sum0 + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1;
      d = c, c = b, b = a, a = t1 + t2;
    }
    const uint32_t sum[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; ++i) state[i] += sum[i];
  }
}

#if defined(__x86_64__)

// SHA-NI keeps the eight state words as (a b e f) and (c d g h), highest lane first; sha256rnds2 does two rounds.
__attribute__((target("sha,sse4.1,ssse3"))) void compress_sha_ni(uint32_t state[8], const uint8_t* data,
                                                                 size_t n_chunks) {
  const __m128i big_endian = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
  const auto set = [](uint32_t w3, uint32_t w2, uint32_t w1, uint32_t w0) __attribute__((target("sse4.1"))) {
    return _mm_set_epi32(static_cast<int>(w3), static_cast<int>(w2), static_cast<int>(w1), static_cast<int>(w0));
  };
  __m128i abef = set(state[0], state[1], state[4], state[5]);
  __m128i cdgh = set(state[2], state[3], state[6], state[7]);
  for (; n_chunks > 0; --n_chunks, data += kChunkBytes) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];  // ring: the last 16 words of the message schedule
    for (int i = 0; i < 16; ++i) {
      if (i < 4) {
        w[i] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data) + i), big_endian);
      } else {
        // w[t] = (w[t-16] + s0(w[t-15])) + w[t-7], then + s1(w[t-2])
        const __m128i next = w[(i + 3) % 4], last = w[(i + 2) % 4];
        const __m128i part =
            _mm_add_epi32(_mm_sha256msg1_epu32(w[i % 4], w[(i + 1) % 4]), _mm_alignr_epi8(next, last, 4));
        w[i % 4] = _mm_sha256msg2_epu32(part, next);
      }
      const __m128i k = _mm_load_si128(reinterpret_cast<const __m128i*>(kRound) + i);
      const __m128i sum = _mm_add_epi32(w[i % 4], k);
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  state[0] = static_cast<uint32_t>(_mm_extract_epi32(abef, 3));
  state[1] = static_cast<uint32_t>(_mm_extract_epi32(abef, 2));
  state[4] = static_cast<uint32_t>(_mm_extract_epi32(abef, 1));
  state[5] = static_cast<uint32_t>(_mm_extract_epi32(abef, 0));
  state[2] = static_cast<uint32_t>(_mm_extract_epi32(cdgh, 3));
  state[3] = static_cast<uint32_t>(_mm_extract_epi32(cdgh, 2));
  state[6] = static_cast<uint32_t>(_mm_extract_epi32(cdgh, 1));
  state[7] = static_cast<uint32_t>(_mm_extract_epi32(cdgh, 0));
}

bool cpu_has_sha() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_SSE4_1) || !(c & bit_SSSE3)) return false;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_SHA);
}

#endif

}  // namespace

Sha256::Sha256(Path path) : compress_(compress_portable), state_(kInitial) {
#if defined(__x86_64__)
  static const bool has_sha = cpu_has_sha();
  if (path == Path::kBest && has_sha) compress_ = compress_sha_ni;
#else
  (void)path;
#endif
}

void Sha256::update(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const uint8_t* data = reinterpret_cast<const uint8_t*>(bytes.data());
  size_t n_left = bytes.size();
  n_bytes_ += n_left;
  if (n_tail_ > 0) {
    const size_t n = std::min(kChunkBytes - n_tail_, n_left);
    std::memcpy(tail_.data() + n_tail_, data, n);
    n_tail_ += n;
    data += n;
    n_left -= n;
    if (n_tail_ < kChunkBytes) return;
    compress_(state_.data(), tail_.data(), 1);
    n_tail_ = 0;
  }
  compress_(state_.data(), data, n_left / kChunkBytes);
  n_tail_ = n_left % kChunkBytes;
  std::memcpy(tail_.data(), data + (n_left - n_tail_), n_tail_);
}

Sha256Digest Sha256::finish() {
  // 5.1.1: a one bit, zeros, the length in bits as 64-bit big-endian, up to a whole chunk.
  const uint64_t n_bits = n_bytes_ * 8;
  std::array<uint8_t, 2 * kChunkBytes> last = {};
  std::memcpy(last.data(), tail_.data(), n_tail_);
  last[n_tail_] = 0x80;
  const size_t n_chunks = n_tail_ + 9 <= kChunkBytes ? 1 : 2;
  for (size_t i = 0; i < 8; ++i) last[n_chunks * kChunkBytes - 1 - i] = static_cast<uint8_t>(n_bits >> (8 * i));
  compress_(state_.data(), last.data(), n_chunks);
  Sha256Digest digest;
  for (size_t i = 0; i < digest.size(); ++i) digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

Sha256Digest sha256(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

Sha256Digest sha256(std::string_view text) { return sha256(std::as_bytes(std::span(text.data(), text.size()))); }

std::string sha256_hex(const Sha256Digest& digest) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (uint8_t byte : digest) {
    out += kHex[byte >> 4];
    out += kHex[byte & 15];
  }
  return out;
}

}  // namespace dsv41
