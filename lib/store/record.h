// Record: one page, or what lies behind a session's last full page, as the store keeps it (FORMAT.md).
//
// The head is read alone to learn what is there; the body is checked as a whole before anything of it is used. Every
// number in a head is checked against what there is before memory is taken for it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/chunk_codec.h"
#include "base/sha256.h"
#include "base/status.h"
#include "base/xxh3.h"

namespace dsv41::store {

inline constexpr uint64_t kRecordHeadBytes = 320, kRecordAlignment = 64;
inline constexpr uint64_t kMaxBodyBytes = uint64_t{64} << 20, kMaxRawBytes = kMaxBodyBytes;
inline constexpr uint32_t kMaxPlanes = 8;
inline constexpr uint64_t kPlaneEntryBytes = 16;

struct RecordKey {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const RecordKey&) const = default;
};
// 32 hexadecimal digits, high half first; and back (false: not a key).
std::string key_text(const RecordKey& key);
bool parse_key(std::string_view text, RecordKey* key);

enum class RecordKind : uint32_t { kPage = 1, kState = 2 };

// Parts of a state, in RecordHead::parts.
enum StatePart : uint32_t {
  kStateEncoderWindows = 4,
  kStateDecoderWindows = 8,
  kStateOpenRows = 16,
  kStateLogits = 32,
  kStateSampler = 64,
  kStateHostData = 256,
};

struct RecordHead {
  RecordKind kind = RecordKind::kPage;
  RecordKey key, parent;
  Sha256Digest chain = {};
  Digest128 payload, parent_payload;
  Sha256Digest fingerprint = {}, layout_id = {};
  uint64_t first_token = 0;
  uint32_t n_ids = 0;
  uint32_t n_hits = 0;
  uint32_t n_planes = 0;
  uint32_t parts = 0;
  uint64_t written_unix_ns = 0;
  uint64_t body_bytes = 0;
  uint64_t body_checksum = 0;
  std::string numeric_class;  // at most 31 bytes
  uint64_t raw_bytes = 0;     // of all planes, at most kMaxRawBytes

  uint64_t record_bytes() const { return kRecordHeadBytes + body_bytes; }
  // Ids, hits and plane table: what stands in the body in front of the planes.
  uint64_t front_bytes() const {
    return uint64_t{n_ids} * sizeof(int32_t) + uint64_t{n_hits} * sizeof(int64_t) + n_planes * kPlaneEntryBytes;
  }
  bool exact() const { return n_hits == 0; }
  bool operator==(const RecordHead&) const = default;
};

// What becomes a record.
struct RecordDraft {
  struct Plane {
    uint64_t raw_bytes = 0;
    bool try_zstd = false;
    bool long_matches = false;  // as of ChunkCodec::encode
  };
  RecordHead head;  // n_*, payload, body_* and times are filled in by encode_record
  std::vector<int32_t> ids;
  std::vector<int64_t> hits;
  std::vector<Plane> planes;
  std::vector<std::byte> raw;  // the planes behind each other
};

// The bytes of the record. LIMIT when it would be too large, INVALID_ARG for a draft that decode_* would not take (ids
// that do not fit the kind, a parent at token 0, planes that do not fill `raw`). Fills in draft->head.
Result<std::vector<std::byte>> encode_record(RecordDraft* draft, uint64_t now_unix_ns, int zstd_level,
                                             ChunkCodec& codec);

// CORRUPT (no such head, or numbers that contradict each other), FORMAT_VERSION, CHECKSUM.
Result<RecordHead> decode_head(std::span<const std::byte> bytes);
// The parts of a body that stand in front of the payload.
struct RecordBody {
  std::vector<int32_t> ids;
  std::vector<int64_t> hits;
  uint64_t raw_bytes = 0;  // as in the head
};
// `front`: the first head.front_bytes() bytes of a body, read alone. They have no checksum of their own: good for an
// index whose answers are checked when the whole body is read. CORRUPT.
Result<RecordBody> decode_front(const RecordHead& head, std::span<const std::byte> front);
// `body`: head.body_bytes bytes. Checks its checksum, then its structure.
Result<RecordBody> decode_body(const RecordHead& head, std::span<const std::byte> body);
// The raw payload of a body that decode_body has passed, checked against the head's digest. LAYOUT_MISMATCH when `raw`
// is of another size; CORRUPT, CODEC_UNAVAILABLE, CHECKSUM, NO_MEMORY.
Status decode_payload(const RecordHead& head, std::span<const std::byte> body, std::span<std::byte> raw,
                      ChunkCodec& codec);

}  // namespace dsv41::store
