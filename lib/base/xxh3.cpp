#include "base/xxh3.h"

#include <array>
#include <new>

#include "base/xxh3_wide.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace dsv41 {
namespace {

constexpr size_t kShortBytes = 240;  // up to here XXH3 has no loop over vectors

Digest128 to_digest(XXH128_hash_t hash) { return {hash.low64, hash.high64}; }

uint64_t hash_64(const void* bytes, size_t n) { return XXH3_64bits(bytes, n); }

void hash_128(const void* bytes, size_t n, uint64_t* low, uint64_t* high) {
  const XXH128_hash_t hash = XXH3_128bits(bytes, n);
  *low = hash.low64;
  *high = hash.high64;
}

void update(void* state, const void* bytes, size_t n) {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state), bytes, n);
}

constexpr Xxh3Functions kNarrow = {hash_64, hash_128, update};

struct Supported {
  std::array<const Xxh3Functions*, 3> functions = {&kNarrow};
  size_t n = 1;
  Supported() {
#ifdef DSV41_XXH3_WIDE
    if (__builtin_cpu_supports("avx2")) functions[n++] = &kXxh3Avx2;
    if (__builtin_cpu_supports("avx512f")) functions[n++] = &kXxh3Avx512;
#endif
  }
};

const Supported& supported() {
  static const Supported kSupported;
  return kSupported;
}

const Xxh3Functions& widest() { return *supported().functions[supported().n - 1]; }

}  // namespace

size_t n_xxh3_functions() { return supported().n; }
const Xxh3Functions& xxh3_functions(size_t i) { return *supported().functions[i]; }

uint64_t xxh3_64(std::span<const std::byte> bytes) {
  if (bytes.size() <= kShortBytes) return hash_64(bytes.data(), bytes.size());
  return widest().hash_64(bytes.data(), bytes.size());
}

Digest128 xxh3_128(std::span<const std::byte> bytes) {
  if (bytes.size() <= kShortBytes) return to_digest(XXH3_128bits(bytes.data(), bytes.size()));
  Digest128 digest;
  widest().hash_128(bytes.data(), bytes.size(), &digest.low, &digest.high);
  return digest;
}

// XXH3 takes in bytes the same way for both widths; only the digests differ. So one state serves both.
struct Xxh3Stream::State {
  XXH3_state_t state;
};

Xxh3Stream::Xxh3Stream() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->state); }
Xxh3Stream::~Xxh3Stream() = default;
Xxh3Stream::Xxh3Stream(Xxh3Stream&&) noexcept = default;
Xxh3Stream& Xxh3Stream::operator=(Xxh3Stream&&) noexcept = default;

void Xxh3Stream::update(std::span<const std::byte> bytes) {
  if (!bytes.empty()) widest().update(&state_->state, bytes.data(), bytes.size());
}

uint64_t Xxh3Stream::digest_64() const { return XXH3_64bits_digest(&state_->state); }

Digest128 Xxh3Stream::digest_128() const { return to_digest(XXH3_128bits_digest(&state_->state)); }

}  // namespace dsv41
