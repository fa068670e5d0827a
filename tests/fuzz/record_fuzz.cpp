// libFuzzer entry: any bytes as a record end in a failure of the format's codes, or in a record that can be written
// again and is then read as the same. Each input is used twice: as it is, and with its checksums made to hold.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "store/record.h"
#include "store/store_surgery.h"

namespace {

using namespace dsv41;
using namespace dsv41::store;

// Few bytes of zstd may stand for 64 MiB: the fuzzer's time is better spent on others.
constexpr uint64_t kMostRawBytes = 1 << 20;

void require(bool holds) {
  if (!holds) std::abort();
}

bool is_of_the_format(Code code) {
  return code == Code::kCORRUPT || code == Code::kCHECKSUM || code == Code::kFORMAT_VERSION ||
         code == Code::kCODEC_UNAVAILABLE || code == Code::kLAYOUT_MISMATCH;
}

// The record decoded; one plane stands for all. No head: what was told is no record.
struct Decoded {
  bool ok = false;
  RecordDraft draft;
};

template <class T>
bool fails(const T& result) {
  require(result.ok() || is_of_the_format(result.status().code()));
  return !result.ok();
}

Decoded decode(std::span<const std::byte> bytes) {
  Decoded decoded;
  const Result<RecordHead> head = decode_head(bytes);
  if (fails(head)) return decoded;
  require(head->body_bytes <= kMaxBodyBytes && head->raw_bytes <= kMaxRawBytes && head->n_planes <= kMaxPlanes);
  const std::span<const std::byte> body = bytes.subspan(kRecordHeadBytes);
  if (body.size() >= head->front_bytes()) fails(decode_front(head.value(), body.first(head->front_bytes())));
  const Result<RecordBody> parts = decode_body(head.value(), body);
  if (fails(parts) || head->raw_bytes > kMostRawBytes) return decoded;
  require(parts->ids.size() == head->n_ids && parts->hits.size() == head->n_hits);
  RecordDraft& draft = decoded.draft;
  draft = {head.value(), parts->ids, parts->hits, {{head->raw_bytes, false}}, {}};
  draft.raw.resize(head->raw_bytes);
  ChunkCodec codec;
  const Status status = decode_payload(head.value(), body, draft.raw, codec);
  require(status.ok() || is_of_the_format(status.code()));
  require(status.code() != Code::kLAYOUT_MISMATCH);
  decoded.ok = status.ok();
  return decoded;
}

void use(std::span<const std::byte> bytes) {
  Decoded decoded = decode(bytes);
  if (!decoded.ok) return;
  RecordDraft draft = decoded.draft;
  ChunkCodec codec;
  const Result<std::vector<std::byte>> written =
      encode_record(&draft, draft.head.written_unix_ns, kDefaultZstdLevel, codec);
  require(written.ok());
  const Decoded again = decode(written.value());
  require(again.ok && again.draft.head == draft.head && again.draft.ids == decoded.draft.ids);
  require(again.draft.hits == decoded.draft.hits && again.draft.raw == decoded.draft.raw);
  require(again.draft.head.payload == decoded.draft.head.payload);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::byte> bytes(size);
  if (size > 0) std::memcpy(bytes.data(), data, size);
  use(bytes);
  test::fix_record(bytes);
  use(bytes);
  return 0;
}
