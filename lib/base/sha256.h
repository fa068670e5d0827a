// SHA-256 (FIPS 180-4): digests of files, tensors and fingerprints. Uses the CPU's SHA instructions where they exist.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dsv41 {

using Sha256Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  // Both give the same digest; kPortable is for tests.
  enum class Path : uint8_t { kBest, kPortable };
  explicit Sha256(Path path = Path::kBest);

  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text.data(), text.size()))); }
  // The digest of everything so far; the object must not be used afterwards.
  Sha256Digest finish();

 private:
  using CompressFn = void (*)(uint32_t state[8], const uint8_t* data, size_t n_chunks);

  CompressFn compress_;
  std::array<uint32_t, 8> state_;
  std::array<uint8_t, 64> tail_ = {};  // bytes that do not yet fill a 64-byte chunk
  size_t n_tail_ = 0;
  uint64_t n_bytes_ = 0;
};

Sha256Digest sha256(std::span<const std::byte> bytes);
Sha256Digest sha256(std::string_view text);
// 64 lower-case hexadecimal digits.
std::string sha256_hex(const Sha256Digest& digest);

}  // namespace dsv41
