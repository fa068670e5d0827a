#include "base/chunk_codec.h"

#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>

namespace dsv41 {
namespace {

struct CompressorDeleter {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
};
struct DecompressorDeleter {
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

bool is_worth_it(size_t raw_bytes, size_t stored_bytes) {
  return stored_bytes < raw_bytes &&
         static_cast<double>(raw_bytes - stored_bytes) >= kLeastGain * static_cast<double>(raw_bytes);
}

// Exactly one frame of today's format that says its size. zstd itself would also take several frames in a row, frames
// to skip, and the formats of its early versions, whose decoders nobody looks after any more.
bool is_one_frame(std::span<const std::byte> stored, size_t raw_bytes) {
  uint32_t magic = 0;
  if (stored.size() < sizeof magic) return false;
  std::memcpy(&magic, stored.data(), sizeof magic);
  return magic == ZSTD_MAGICNUMBER && ZSTD_getFrameContentSize(stored.data(), stored.size()) == raw_bytes &&
         ZSTD_findFrameCompressedSize(stored.data(), stored.size()) == stored.size();
}

constexpr int kLongMatchBytes = 7;  // the longest that zstd takes as the shortest

// As zstd answers: a size, or an error.
size_t compress(ZSTD_CCtx* context, std::span<const std::byte> raw, std::span<std::byte> to, int level,
                bool long_matches) {
  if (!long_matches || level != kDefaultZstdLevel) {
    return ZSTD_compressCCtx(context, to.data(), to.size(), raw.data(), raw.size(), level);
  }
  for (const auto& [parameter, value] :
       {std::pair{ZSTD_c_compressionLevel, level}, std::pair{ZSTD_c_minMatch, kLongMatchBytes}}) {
    const size_t answer = ZSTD_CCtx_setParameter(context, parameter, value);
    if (ZSTD_isError(answer)) return answer;
  }
  return ZSTD_compress2(context, to.data(), to.size(), raw.data(), raw.size());
}

Status out_of_memory() { return Status(Code::kNO_MEMORY, "no memory for zstd"); }

}  // namespace

// Made when first needed: most objects only encode or only decode.
struct ChunkCodec::Contexts {
  std::unique_ptr<ZSTD_CCtx, CompressorDeleter> compressor;
  std::unique_ptr<ZSTD_DCtx, DecompressorDeleter> decompressor;
};

ChunkCodec::ChunkCodec() : contexts_(std::make_unique<Contexts>()) {}
ChunkCodec::~ChunkCodec() = default;
ChunkCodec::ChunkCodec(ChunkCodec&&) noexcept = default;
ChunkCodec& ChunkCodec::operator=(ChunkCodec&&) noexcept = default;

Result<ChunkCodec::Encoded> ChunkCodec::encode(std::span<const std::byte> raw, bool try_zstd, int level,
                                               bool long_matches) {
  const Encoded as_it_is = {Codec::kNone, raw};
  if (!try_zstd || raw.empty()) return as_it_is;
  try {
    const size_t most_bytes = ZSTD_compressBound(raw.size());
    if (buffer_.size() < most_bytes) buffer_.resize(most_bytes);
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  }
  if (!contexts_->compressor) contexts_->compressor.reset(ZSTD_createCCtx());
  if (!contexts_->compressor) return out_of_memory();
  const size_t stored_bytes = compress(contexts_->compressor.get(), raw, buffer_,
                                       std::clamp(level, kMinZstdLevel, kMaxZstdLevel), long_matches);
  // With room for the worst case, memory for tables is all that can be missing.
  if (ZSTD_isError(stored_bytes)) return out_of_memory();
  if (!is_worth_it(raw.size(), stored_bytes)) return as_it_is;
  return Encoded{Codec::kZstd, std::span(buffer_).first(stored_bytes)};
}

Status ChunkCodec::decode(Codec codec, std::span<const std::byte> stored, std::span<std::byte> raw) {
  if (codec == Codec::kNone) {
    if (stored.size() != raw.size()) return Status(Code::kCORRUPT, "stored size differs from raw size");
    if (!raw.empty()) std::memcpy(raw.data(), stored.data(), raw.size());
    return {};
  }
  if (codec != Codec::kZstd) {
    return Status(Code::kCODEC_UNAVAILABLE, "unknown codec " + std::to_string(static_cast<uint32_t>(codec)));
  }
  if (!is_one_frame(stored, raw.size())) return Status(Code::kCORRUPT, "not one zstd frame of the stated size");
  if (!contexts_->decompressor) contexts_->decompressor.reset(ZSTD_createDCtx());
  if (!contexts_->decompressor) return out_of_memory();
  // Decodes straight into `raw`: no window is allocated, whatever the frame asks for.
  const size_t n =
      ZSTD_decompressDCtx(contexts_->decompressor.get(), raw.data(), raw.size(), stored.data(), stored.size());
  if (ZSTD_isError(n)) return Status(Code::kCORRUPT, std::string("zstd: ") + ZSTD_getErrorName(n));
  if (n != raw.size()) return Status(Code::kCORRUPT, "zstd frame gives fewer bytes than it states");
  return {};
}

}  // namespace dsv41
