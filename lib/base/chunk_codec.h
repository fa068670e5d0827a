// ChunkCodec: one piece of data, stored as it is or through zstd, whichever is worth it (kv.md section 10).
//
// A zstd chunk is one frame with its content size and without zstd's own checksum: every stored chunk has an XXH3 beside
// it. "Worth it": at least kLeastGain of the raw size saved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"

namespace dsv41 {

// Numbers stand in files: never reused.
enum class Codec : uint32_t { kNone = 0, kZstd = 1 };

inline constexpr double kLeastGain = 0.02;
inline constexpr int kDefaultZstdLevel = 1;
inline constexpr int kMinZstdLevel = 1, kMaxZstdLevel = 19;

// Holds zstd's contexts; one thread at a time.
class ChunkCodec {
 public:
  ChunkCodec();
  ~ChunkCodec();
  ChunkCodec(ChunkCodec&&) noexcept;
  ChunkCodec& operator=(ChunkCodec&&) noexcept;

  struct Encoded {
    Codec codec = Codec::kNone;
    std::span<const std::byte> bytes;  // `raw` itself, or memory of this object until its next call
  };
  // try_zstd false: kNone. long_matches: at the default level, matches of less than 7 bytes are not looked for; the entropy
  // coder does as well on bytes that have next to none but by chance, in less than half the time. NO_MEMORY is the only
  // failure.
  Result<Encoded> encode(std::span<const std::byte> raw, bool try_zstd, int level = kDefaultZstdLevel,
                         bool long_matches = false);
  // Fills `raw` exactly; CORRUPT when the bytes do not give that many, CODEC_UNAVAILABLE for an unknown codec. Never
  // allocates by what the bytes claim.
  Status decode(Codec codec, std::span<const std::byte> stored, std::span<std::byte> raw);

 private:
  struct Contexts;
  std::unique_ptr<Contexts> contexts_;
  std::vector<std::byte> buffer_;
};

}  // namespace dsv41
