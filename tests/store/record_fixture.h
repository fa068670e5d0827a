// Records for tests: pages of one chain, page i on top of page i - 1, and states behind page i - 1. All of a record
// follows from its number (and a variant, where a test wants another one of the same name), so a record that was read
// can be compared with the one that should be there.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "store/record.h"

namespace dsv41::test {

constexpr uint64_t kRecordTime = 1'700'000'000'000'000'000u;

inline store::RecordKey record_key(uint32_t number) {
  return {number * uint64_t{0x9E3779B97F4A7C15} + 1, ~uint64_t{number} * uint64_t{0xC2B2AE3D27D4EB4F}};
}

inline std::vector<std::byte> record_payload(uint32_t number, size_t n_bytes) {
  std::vector<std::byte> bytes(n_bytes);
  uint64_t state = number + 1;
  for (std::byte& b : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    b = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

inline store::RecordDraft page_draft(uint32_t number, size_t payload_bytes = 300, std::vector<int64_t> hits = {}) {
  store::RecordDraft draft;
  draft.head.kind = store::RecordKind::kPage;
  draft.head.key = record_key(number);
  draft.head.chain.fill(static_cast<uint8_t>(number * 7 + 1));
  draft.head.fingerprint.fill(0x11);
  draft.head.layout_id.fill(0x22);
  draft.head.numeric_class = "test/1";
  draft.head.first_token = uint64_t{number} * 128;
  if (number > 0) {
    draft.head.parent = record_key(number - 1);
    draft.head.parent_payload = xxh3_128(record_payload(number - 1, payload_bytes));
  }
  for (int32_t i = 0; i < 128; ++i) draft.ids.push_back(static_cast<int32_t>(number) * 128 + i);
  draft.hits = std::move(hits);
  draft.raw = record_payload(number, payload_bytes);
  // Two planes of noise, and one that zstd makes small.
  const size_t third = payload_bytes / 3;
  std::fill_n(draft.raw.begin() + static_cast<ptrdiff_t>(third), third, std::byte{0x40});
  draft.planes = {{third, false}, {third, true}, {payload_bytes - 2 * third, true}};
  return draft;
}

// Keys of states differ from those of pages.
inline store::RecordDraft state_draft(uint32_t number, size_t payload_bytes = 500, uint32_t variant = 0) {
  store::RecordDraft draft = page_draft(number, payload_bytes);
  draft.head.kind = store::RecordKind::kState;
  draft.head.key.low ^= 0x5555;
  draft.head.parts = store::kStateEncoderWindows | store::kStateSampler;
  draft.ids.resize(5 + number % 100);
  draft.raw = record_payload(number + 1000 + variant, payload_bytes);
  draft.planes = {{payload_bytes, true}};
  return draft;
}

inline std::vector<std::byte> encoded(store::RecordDraft& draft) {
  ChunkCodec codec;
  return store::encode_record(&draft, kRecordTime, kDefaultZstdLevel, codec).value();
}

// A record with its head, ready to be appended.
struct MadeRecord {
  explicit MadeRecord(store::RecordDraft made) : draft(std::move(made)), bytes(encoded(draft)) {}
  const store::RecordHead& head() const { return draft.head; }
  store::RecordDraft draft;
  std::vector<std::byte> bytes;
};

// Everything of a record, decoded as a reader would do it (planes stay empty).
inline Result<store::RecordDraft> decode_record(std::span<const std::byte> bytes) {
  store::RecordDraft draft;
  DSV41_TRY_ASSIGN(draft.head, store::decode_head(bytes));
  const std::span<const std::byte> body = bytes.subspan(store::kRecordHeadBytes);
  DSV41_TRY_ASSIGN(store::RecordBody parts, store::decode_body(draft.head, body));
  draft.ids = std::move(parts.ids);
  draft.hits = std::move(parts.hits);
  draft.raw.resize(draft.head.raw_bytes);
  ChunkCodec codec;
  DSV41_TRY(store::decode_payload(draft.head, body, draft.raw, codec));
  return draft;
}

// Ok when the bytes are the record that was made from the draft; else why not. TOKENS_MISMATCH: another record, as
// whoever knows the head notices. INTERNAL: what nobody would notice.
inline Status check_record(const store::RecordDraft& draft, std::span<const std::byte> bytes) {
  DSV41_TRY_ASSIGN(const store::RecordDraft read, decode_record(bytes));
  if (!(read.head == draft.head)) return Status(Code::kTOKENS_MISMATCH, "another record");
  if (read.ids == draft.ids && read.hits == draft.hits && read.raw == draft.raw) return {};
  return Status(Code::kINTERNAL, "a record that passes every check and is not what was written");
}

}  // namespace dsv41::test
