// XXH3 (xxHash 0.8) of bytes: checksums against damage, and names of contents. Not against an adversary.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace dsv41 {

// XXH3-128 as its canonical bytes are not used here: low half, then high half, little-endian.
struct Digest128 {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const Digest128&) const = default;
};

uint64_t xxh3_64(std::span<const std::byte> bytes);
Digest128 xxh3_128(std::span<const std::byte> bytes);

// The same over pieces, one after the other.
class Xxh3Stream {
 public:
  Xxh3Stream();
  ~Xxh3Stream();
  Xxh3Stream(Xxh3Stream&&) noexcept;
  Xxh3Stream& operator=(Xxh3Stream&&) noexcept;
  void update(std::span<const std::byte> bytes);
  uint64_t digest_64() const;
  Digest128 digest_128() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dsv41
