#include "kv/prefix_key.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace dsv41::kv {
namespace {

void append(std::vector<std::byte>& out, std::span<const std::byte> bytes) {
  const uint64_t size = bytes.size();
  const auto* frame = reinterpret_cast<const std::byte*>(&size);
  out.insert(out.end(), frame, frame + sizeof size);
  out.insert(out.end(), bytes.begin(), bytes.end());
}

std::vector<std::byte> frame(const PrefixExtras& extras) {
  std::vector<std::byte> framed;
  for (std::span<const std::byte> part : {extras.layout_id, extras.fingerprint, extras.salt}) append(framed, part);
  return framed;
}

PageKey to_key(XXH128_hash_t hash) { return {hash.low64, hash.high64}; }

constexpr uint64_t low_bits(int n) { return n <= 0 ? 0 : n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1; }

}  // namespace

Result<KeySeed> draw_key_seed() {
  KeySeed seed;
  size_t have = 0;
  while (have < seed.size()) {
    const ssize_t n = getrandom(seed.data() + have, seed.size() - have, 0);
    if (n < 0 && errno != EINTR) return Status(Code::kIO, "the system gives no random bytes", errno);
    if (n > 0) have += static_cast<size_t>(n);
  }
  return seed;
}

Sha256Digest chain_root(const PrefixExtras& extras) { return sha256(frame(extras)); }

Sha256Digest chain_digest(const Sha256Digest& parent, std::span<const int32_t> ids, std::span<const MediaMark> media) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(parent)));
  const uint64_t counts[2] = {ids.size(), media.size()};
  hash.update(std::as_bytes(std::span(counts)));
  hash.update(std::as_bytes(ids));
  for (const MediaMark& mark : media) {
    hash.update(std::as_bytes(std::span(&mark.offset_tokens, 1)));
    hash.update(std::as_bytes(std::span(mark.digest)));
  }
  return hash.finish();
}

PrefixKeys::PrefixKeys(const KeySeed& seed, int key_bits) : mask_{low_bits(key_bits), low_bits(key_bits - 64)} {
  XXH3_generateSecret(secret_.data(), secret_.size(), seed.data(), seed.size());
}

PrefixRoot PrefixKeys::root(const PrefixExtras& extras) const {
  const std::vector<std::byte> framed = frame(extras);
  return {to_key(XXH3_128bits_withSecret(framed.data(), framed.size(), secret_.data(), secret_.size())),
          sha256(framed)};
}

PageKey PrefixKeys::page(const PageKey& parent, std::span<const int32_t> ids, std::span<const MediaMark> media) const {
  // The fixed frame first: parent key, number of ids, number of media.
  const uint64_t head[4] = {parent.low, parent.high, ids.size(), media.size()};
  constexpr size_t kWhole = 128;
  if (media.empty() && ids.size() == kWhole) {  // a page of text: one buffer, one pass
    std::byte buffer[sizeof head + kWhole * sizeof(int32_t)];
    std::memcpy(buffer, head, sizeof head);
    std::memcpy(buffer + sizeof head, ids.data(), kWhole * sizeof(int32_t));
    return cut(to_key(XXH3_128bits_withSecret(buffer, sizeof buffer, secret_.data(), secret_.size())));
  }
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  XXH3_128bits_reset_withSecret(&state, secret_.data(), secret_.size());
  XXH3_128bits_update(&state, head, sizeof head);
  XXH3_128bits_update(&state, ids.data(), ids.size_bytes());
  for (const MediaMark& mark : media) {
    XXH3_128bits_update(&state, &mark.offset_tokens, sizeof mark.offset_tokens);
    XXH3_128bits_update(&state, mark.digest.data(), mark.digest.size());
  }
  return cut(to_key(XXH3_128bits_digest(&state)));
}

bool equal(const Provenance& a, const Provenance& b) {
  if (is_exact(a) || is_exact(b)) return is_exact(a) && is_exact(b);
  return *a == *b;
}

Provenance descend(const Provenance& provenance, int64_t hit_position) {
  std::vector<int64_t> list;
  if (provenance) list = *provenance;
  list.push_back(hit_position);
  return std::make_shared<const std::vector<int64_t>>(std::move(list));
}

}  // namespace dsv41::kv
