#include "store/store_fixture.h"

#include <span>

#include "base/wire.h"

namespace dsv41::test {

using store::Lease;
using store::PutOutcome;
using store::RecordKind;

uint64_t TestRecord::record_bytes() const {
  return store::kRecordHeadBytes + draft.ids.size() * 4 + draft.hits.size() * 8 + draft.planes.size() * 16 +
         draft.raw.size();
}

TestRecord RecordMaker::make(RecordKind kind, const TestRecord* parent, uint64_t words, size_t n_ids, size_t n_hits,
                             uint64_t variant) const {
  TestRecord made;
  store::RecordDraft& draft = made.draft;
  store::RecordHead& head = draft.head;
  head.kind = kind;
  head.numeric_class = "test/1";
  head.fingerprint.fill(0x11);
  head.layout_id.fill(0x22);
  if (parent) {
    head.parent = parent->key();
    head.parent_payload = parent->payload();
    head.first_token = parent->draft.head.first_token + 128;
  }
  for (size_t i = 0; i < n_ids; ++i) draft.ids.push_back(static_cast<int32_t>(words * 1000 + i) & 0xFFFF);
  for (size_t i = 0; i < n_hits; ++i) draft.hits.push_back(static_cast<int64_t>(128 * (i + 1)));

  WireWriter named;
  named.put(kind);
  named.put_bytes(std::as_bytes(std::span(parent ? parent->draft.head.chain : Sha256Digest())));
  named.put_bytes(std::as_bytes(std::span(draft.ids)));
  head.chain = sha256(named.bytes());
  const Digest128 key = xxh3_128(named.bytes());
  head.key = {key.low | 1, key.high};  // zeros are no key
  if (key_bits < 64) head.key = {(key.low & ((uint64_t{1} << key_bits) - 1)) | uint64_t{1} << key_bits, 0};

  // Other bytes for each history, provenance and variant.
  uint64_t state = xxh3_64(named.bytes()) ^ head.parent_payload.low ^ (n_hits * 77 + variant + 1) * 0x9E3779B97F4A7C15u;
  draft.raw.resize(payload_bytes);
  for (std::byte& b : draft.raw) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    b = static_cast<std::byte>(state >> 56);
  }
  draft.planes = {{payload_bytes / 2, false}, {payload_bytes - payload_bytes / 2, true}};
  head.payload = xxh3_128(draft.raw);
  return made;
}

TestRecord RecordMaker::page(const TestRecord* parent, uint64_t words, size_t n_hits, uint64_t variant) const {
  return make(RecordKind::kPage, parent, words, 128, n_hits, variant);
}

TestRecord RecordMaker::state(const TestRecord* parent, uint64_t words, size_t n_ids, uint32_t parts,
                              uint64_t variant) const {
  TestRecord made = make(RecordKind::kState, parent, words, n_ids, 0, variant * 1000 + parts);
  made.draft.head.parts = parts;
  return made;
}

std::vector<TestRecord> RecordMaker::chain(uint64_t words, size_t n_pages, size_t n_hits) const {
  std::vector<TestRecord> pages;
  for (size_t i = 0; i < n_pages; ++i) pages.push_back(page(i ? &pages.back() : nullptr, words + i, n_hits));
  return pages;
}

std::vector<store::RecordName> names(const std::vector<TestRecord>& records) {
  std::vector<store::RecordName> names;
  for (const TestRecord& record : records) names.push_back(record.name());
  return names;
}

void MemoryStore::open(bool read_only) {
  volume.read_only = read_only;
  volume.segment_bytes = options.segment_bytes;
  volume.all_named = options.folder.empty();
  Result<std::shared_ptr<store::Store>> opened =
      store::Store::open(options, std::make_shared<MemoryVolume>(disk, volume));
  REQUIRE_MESSAGE(opened.ok(), opened.status().message());
  store = std::move(opened).value();
}

PutOutcome MemoryStore::put(const TestRecord& record) {
  Result<PutOutcome> outcome = store->put(record.draft, nullptr);
  REQUIRE_MESSAGE(outcome.ok(), outcome.status().message());
  return outcome.value();
}

size_t MemoryStore::put_all(const std::vector<TestRecord>& records) {
  size_t n = 0;
  for (const TestRecord& record : records) {
    const PutOutcome outcome = put(record);
    if (outcome != PutOutcome::kQueued && outcome != PutOutcome::kPresent) break;
    ++n;
  }
  return n;
}

size_t MemoryStore::n_found(const std::vector<TestRecord>& pages, const store::Wanted& wanted) {
  return store->match(names(pages), wanted).size();
}

Status MemoryStore::read(const TestRecord& record) {
  const Lease lease = store->lease(record.key());
  if (!lease) return Status(Code::kNOT_FOUND, "no such record");
  return read_and_compare(*store, lease, record);
}

Status read_and_compare(store::Store& store, const Lease& lease, const TestRecord& record, const CancelFlag* cancel) {
  DSV41_TRY_ASSIGN(const uint64_t n_bytes, store.raw_bytes(lease));
  std::vector<std::byte> raw(n_bytes);
  DSV41_TRY(store.read(lease, record.draft.ids, raw, cancel));
  if (raw != record.draft.raw) return Status(Code::kINTERNAL, "other bytes than were stored");
  return {};
}

}  // namespace dsv41::test
