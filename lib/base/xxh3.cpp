#include "base/xxh3.h"

#include <new>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace dsv41 {
namespace {

Digest128 to_digest(XXH128_hash_t hash) { return {hash.low64, hash.high64}; }

}  // namespace

uint64_t xxh3_64(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

Digest128 xxh3_128(std::span<const std::byte> bytes) { return to_digest(XXH3_128bits(bytes.data(), bytes.size())); }

// XXH3 takes in bytes the same way for both widths; only the digests differ. So one state serves both.
struct Xxh3Stream::State {
  XXH3_state_t state;
};

Xxh3Stream::Xxh3Stream() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->state); }
Xxh3Stream::~Xxh3Stream() = default;
Xxh3Stream::Xxh3Stream(Xxh3Stream&&) noexcept = default;
Xxh3Stream& Xxh3Stream::operator=(Xxh3Stream&&) noexcept = default;

void Xxh3Stream::update(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_64bits_update(&state_->state, bytes.data(), bytes.size());
}

uint64_t Xxh3Stream::digest_64() const { return XXH3_64bits_digest(&state_->state); }

Digest128 Xxh3Stream::digest_128() const { return to_digest(XXH3_128bits_digest(&state_->state)); }

}  // namespace dsv41
