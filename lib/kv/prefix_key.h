// Keys of the prefix tree (kv.md section 5).
//
//   root key   XXH3-128(secret; layout id, fingerprint, salt), each length-framed
//   page key   XXH3-128(secret; key of the parent, n ids, ids, n media, (offset, digest) of each)
//
// What leaves the process (files, stores) is compared by a SHA-256 chain over the same input, which no seed changes:
//
//   chain_root     SHA-256(layout id, fingerprint, salt, each length-framed): PrefixRoot::extras
//   chain_digest   SHA-256(chain of the parent, n ids, n media, ids, (offset, digest) of each)
//
// The secret is derived from a seed of 32 random bytes, so keys of two pools differ and cannot be guessed. A key only
// finds candidates: a hit always compares the ids and the parent, and at the root the SHA-256 over the extras, so a
// collision costs a miss and never gives the pages of another prefix.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/sha256.h"
#include "base/status.h"

namespace dsv41::kv {

struct PageKey {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const PageKey&) const = default;
};

using KeySeed = std::array<std::byte, 32>;
// From the system's random source. IO when it fails.
Result<KeySeed> draw_key_seed();

// What besides token ids must be equal for pages to be shared.
struct PrefixExtras {
  std::span<const std::byte> layout_id;
  std::span<const std::byte> fingerprint;
  std::span<const std::byte> salt;
};

// The start of a chain of pages: one for all sessions with equal extras.
struct PrefixRoot {
  PageKey key;
  Sha256Digest extras = {};  // chain_root of the extras: what is compared
  bool operator==(const PrefixRoot&) const = default;
};
using PrefixRootRef = std::shared_ptr<const PrefixRoot>;

// An image or other media whose span begins inside the page.
struct MediaMark {
  uint32_t offset_tokens = 0;  // from the start of the page
  Sha256Digest digest = {};
};

Sha256Digest chain_root(const PrefixExtras& extras);
// The SHA-256 chain behind `ids` (a page's, or those of a tail) that stand behind `parent`.
Sha256Digest chain_digest(const Sha256Digest& parent, std::span<const int32_t> ids,
                          std::span<const MediaMark> media = {});

class PrefixKeys {
 public:
  // key_bits (1 to 128) cuts page keys, so that tests meet collisions.
  explicit PrefixKeys(const KeySeed& seed, int key_bits = 128);

  PrefixRoot root(const PrefixExtras& extras) const;
  PageKey page(const PageKey& parent, std::span<const int32_t> ids, std::span<const MediaMark> media = {}) const;

 private:
  static constexpr size_t kSecretBytes = 192;
  PageKey cut(PageKey key) const { return {key.low & mask_.low, key.high & mask_.high}; }

  std::array<std::byte, kSecretBytes> secret_;
  PageKey mask_;
};

// Hit positions that a range of global KV descends from, oldest first; null: none, the KV is exact. Immutable.
using Provenance = std::shared_ptr<const std::vector<int64_t>>;
inline bool is_exact(const Provenance& provenance) { return !provenance || provenance->empty(); }
bool equal(const Provenance& a, const Provenance& b);
// `provenance` and one more hit position behind it.
Provenance descend(const Provenance& provenance, int64_t hit_position);

}  // namespace dsv41::kv
