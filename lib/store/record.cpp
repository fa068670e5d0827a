#include "store/record.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include "base/wire.h"

namespace dsv41::store {
namespace {

constexpr char kMagic[] = "DSV41REC";
constexpr uint16_t kMajor = 1, kMinor = 0;
constexpr size_t kMagicBytes = 8, kReservedBytes = 48, kClassBytes = 32;
constexpr size_t kCheckedHeadBytes = kRecordHeadBytes - sizeof(uint64_t);
constexpr uint32_t kPageIds = 128;  // a page; a state has fewer
constexpr uint64_t kMaxToken = uint64_t{1} << 62;

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(value.data(), value.size()));
}

Status corrupt(const char* what) { return Status(Code::kCORRUPT, std::string("record: ") + what); }

// What every head must obey, whether it is about to be written or was read: empty, or what is wrong.
const char* problem_of(const RecordHead& head) {
  const bool page = head.kind == RecordKind::kPage;
  if (!page && head.kind != RecordKind::kState) return "unknown kind";
  if (page ? head.n_ids != kPageIds : head.n_ids >= kPageIds) return "number of ids does not fit the kind";
  if (page && head.parts != 0) return "a page has no parts";
  if (head.first_token % kPageIds != 0 || head.first_token > kMaxToken) return "does not begin at a page's edge";
  if (head.first_token == 0 && (head.parent != RecordKey() || head.parent_payload != Digest128())) {
    return "has a parent at token 0";
  }
  if (head.n_planes > kMaxPlanes) return "too many planes";
  if (head.body_bytes > kMaxBodyBytes) return "body is too large";
  if (head.raw_bytes > kMaxRawBytes) return "payload is too large";
  if (head.body_bytes < head.front_bytes()) return "body is too small";
  if (head.numeric_class.size() >= kClassBytes) return "numeric class is too long";
  if (head.numeric_class.find('\0') != std::string::npos) return "numeric class has a NUL";
  return nullptr;
}

void put_head(WireWriter& out, const RecordHead& head) {
  out.put_bytes(std::as_bytes(std::span(kMagic, kMagicBytes)));
  out.put(kMajor);
  out.put(kMinor);
  out.put(head.kind);
  for (const uint64_t half : {head.key.low, head.key.high, head.parent.low, head.parent.high}) out.put(half);
  out.put_bytes(bytes_of(head.chain));
  for (const Digest128& digest : {head.payload, head.parent_payload}) {
    out.put(digest.low);
    out.put(digest.high);
  }
  out.put_bytes(bytes_of(head.fingerprint));
  out.put_bytes(bytes_of(head.layout_id));
  out.put(head.first_token);
  for (const uint32_t count : {head.n_ids, head.n_hits, head.n_planes, head.parts}) out.put(count);
  out.put(head.written_unix_ns);
  out.put(head.body_bytes);
  out.put(head.body_checksum);
  out.put_bytes(bytes_of(head.numeric_class));
  out.put_zeros(kClassBytes - head.numeric_class.size());
  out.put(head.raw_bytes);
  out.put_zeros(kReservedBytes);
  out.put(xxh3_64(out.bytes()));
  assert(out.size() == kRecordHeadBytes);
}

void get_digest(WireReader& in, Sha256Digest* digest) { in.get_into(std::as_writable_bytes(std::span(*digest))); }

RecordKey get_key(WireReader& in) {
  RecordKey key;
  key.low = in.get<uint64_t>();
  key.high = in.get<uint64_t>();
  return key;
}

Digest128 get_digest_128(WireReader& in) {
  Digest128 digest;
  digest.low = in.get<uint64_t>();
  digest.high = in.get<uint64_t>();
  return digest;
}

// False: bytes behind the first NUL that are none.
bool get_class(WireReader& in, std::string* numeric_class) {
  std::array<char, kClassBytes> text = {};
  in.get_into(std::as_writable_bytes(std::span(text)));
  const auto end = std::find(text.begin(), text.end(), '\0');
  numeric_class->assign(text.begin(), end);
  return std::all_of(end, text.end(), [](char c) { return c == '\0'; });
}

// A plane as the body describes it.
struct StoredPlane {
  Codec codec = Codec::kNone;
  uint32_t stored_bytes = 0;
  uint32_t raw_bytes = 0;
};

struct Front {
  std::span<const std::byte> ids, hits;
  std::array<StoredPlane, kMaxPlanes> planes;
  uint64_t stored_bytes = 0, raw_bytes = 0;  // of all planes
};

Result<Front> parse_front(const RecordHead& head, std::span<const std::byte> bytes) {
  if (const char* problem = problem_of(head)) return corrupt(problem);
  Front front;
  WireReader in(bytes);
  front.ids = in.get_bytes(size_t{head.n_ids} * sizeof(int32_t));
  front.hits = in.get_bytes(size_t{head.n_hits} * sizeof(int64_t));
  for (StoredPlane& plane : std::span(front.planes).first(head.n_planes)) {
    plane.codec = in.get<Codec>();
    plane.stored_bytes = in.get<uint32_t>();
    plane.raw_bytes = in.get<uint32_t>();
    if (in.get<uint32_t>() != 0) return corrupt("unknown flags of a plane");
    front.stored_bytes += plane.stored_bytes;
    front.raw_bytes += plane.raw_bytes;
  }
  if (!in.ok()) return corrupt("front of the body is cut off");
  if (front.stored_bytes != head.body_bytes - head.front_bytes()) return corrupt("planes do not fill the body");
  if (front.raw_bytes != head.raw_bytes) return corrupt("planes do not fill the payload");
  return front;
}

template <class T>
std::vector<T> numbers_of(std::span<const std::byte> bytes) {
  std::vector<T> numbers(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

bool any_negative(std::span<const int64_t> hits) {
  return std::any_of(hits.begin(), hits.end(), [](int64_t hit) { return hit < 0; });
}

Status check_draft(const RecordDraft& draft) {
  uint64_t raw_bytes = 0;
  for (const RecordDraft::Plane& plane : draft.planes) {
    if (plane.raw_bytes > draft.raw.size()) return Status(Code::kINVALID_ARG, "record: planes do not fit the payload");
    raw_bytes += plane.raw_bytes;
  }
  if (draft.planes.size() > kMaxPlanes || raw_bytes != draft.raw.size()) {
    return Status(Code::kINVALID_ARG, "record: planes do not fit the payload");
  }
  if (any_negative(draft.hits)) return Status(Code::kINVALID_ARG, "record: negative hit position");
  if (raw_bytes > kMaxRawBytes || draft.ids.size() >= kMaxBodyBytes ||
      draft.hits.size() > kMaxBodyBytes / sizeof(int64_t)) {
    return Status(Code::kLIMIT, "record: more than 64 MiB");
  }
  return {};
}

}  // namespace

std::string key_text(const RecordKey& key) {
  std::string text;
  for (const uint64_t half : {key.high, key.low}) {
    for (int shift = 60; shift >= 0; shift -= 4) text += "0123456789abcdef"[half >> shift & 15];
  }
  return text;
}

bool parse_key(std::string_view text, RecordKey* key) {
  if (text.size() != 32) return false;
  uint64_t halves[2] = {};
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t digit = std::string_view("0123456789abcdef").find(text[i]);
    if (digit == std::string_view::npos) return false;
    halves[i / 16] = halves[i / 16] << 4 | digit;
  }
  *key = {halves[1], halves[0]};
  return true;
}

Result<std::vector<std::byte>> encode_record(RecordDraft* draft, uint64_t now_unix_ns, int zstd_level,
                                             ChunkCodec& codec) {
  DSV41_TRY(check_draft(*draft));
  RecordHead& head = draft->head;
  head.n_ids = static_cast<uint32_t>(draft->ids.size());
  head.n_hits = static_cast<uint32_t>(draft->hits.size());
  head.n_planes = static_cast<uint32_t>(draft->planes.size());
  head.raw_bytes = draft->raw.size();
  head.payload = xxh3_128(draft->raw);
  head.written_unix_ns = now_unix_ns;

  // Head and front are filled in last: they tell what the planes have become.
  const uint64_t n_front = head.front_bytes();
  std::vector<std::byte> record;
  record.reserve(kRecordHeadBytes + n_front + draft->raw.size());
  record.resize(kRecordHeadBytes + n_front);
  WireWriter front;
  front.put_bytes(bytes_of(draft->ids));
  front.put_bytes(bytes_of(draft->hits));
  std::span<const std::byte> raw = draft->raw;
  for (const RecordDraft::Plane& plane : draft->planes) {
    DSV41_TRY_ASSIGN(const ChunkCodec::Encoded encoded,
                     codec.encode(raw.first(plane.raw_bytes), plane.try_zstd, zstd_level, plane.long_matches));
    raw = raw.subspan(plane.raw_bytes);
    record.insert(record.end(), encoded.bytes.begin(), encoded.bytes.end());
    front.put(encoded.codec);
    front.put(static_cast<uint32_t>(encoded.bytes.size()));
    front.put(static_cast<uint32_t>(plane.raw_bytes));
    front.put(uint32_t{0});
  }
  if (!front.bytes().empty()) std::memcpy(record.data() + kRecordHeadBytes, front.bytes().data(), n_front);
  const std::span<const std::byte> body = std::span(record).subspan(kRecordHeadBytes);
  head.body_bytes = body.size();
  head.body_checksum = xxh3_64(body);
  if (head.body_bytes > kMaxBodyBytes) return Status(Code::kLIMIT, "record: more than 64 MiB");
  if (const char* problem = problem_of(head)) return Status(Code::kINVALID_ARG, std::string("record: ") + problem);
  WireWriter front_head;
  put_head(front_head, head);
  std::memcpy(record.data(), front_head.bytes().data(), kRecordHeadBytes);
  return record;
}

Result<RecordHead> decode_head(std::span<const std::byte> bytes) {
  if (bytes.size() < kRecordHeadBytes) return corrupt("cut off");
  bytes = bytes.first(kRecordHeadBytes);
  WireReader in(bytes);
  if (std::memcmp(in.get_bytes(kMagicBytes).data(), kMagic, kMagicBytes) != 0) return corrupt("none begins here");
  const uint16_t major = in.get<uint16_t>();
  if (major != kMajor) return Status(Code::kFORMAT_VERSION, "record: version " + std::to_string(major));
  in.get<uint16_t>();  // any minor: it only adds what may be ignored
  RecordHead head;
  head.kind = in.get<RecordKind>();
  head.key = get_key(in);
  head.parent = get_key(in);
  get_digest(in, &head.chain);
  head.payload = get_digest_128(in);
  head.parent_payload = get_digest_128(in);
  get_digest(in, &head.fingerprint);
  get_digest(in, &head.layout_id);
  head.first_token = in.get<uint64_t>();
  for (uint32_t* count : {&head.n_ids, &head.n_hits, &head.n_planes, &head.parts}) *count = in.get<uint32_t>();
  head.written_unix_ns = in.get<uint64_t>();
  head.body_bytes = in.get<uint64_t>();
  head.body_checksum = in.get<uint64_t>();
  const bool has_class = get_class(in, &head.numeric_class);
  head.raw_bytes = in.get<uint64_t>();
  in.get_bytes(kReservedBytes);
  if (in.get<uint64_t>() != xxh3_64(bytes.first(kCheckedHeadBytes))) {
    return Status(Code::kCHECKSUM, "record: checksum of the head");
  }
  if (!has_class) return corrupt("numeric class has a NUL");
  if (const char* problem = problem_of(head)) return corrupt(problem);
  return head;
}

Result<RecordBody> decode_front(const RecordHead& head, std::span<const std::byte> bytes) {
  DSV41_TRY_ASSIGN(const Front front, parse_front(head, bytes));
  RecordBody body = {numbers_of<int32_t>(front.ids), numbers_of<int64_t>(front.hits), front.raw_bytes};
  if (any_negative(body.hits)) return corrupt("negative hit position");
  return body;
}

Result<RecordBody> decode_body(const RecordHead& head, std::span<const std::byte> body) {
  if (body.size() != head.body_bytes) return corrupt("body is not of the stated size");
  if (xxh3_64(body) != head.body_checksum) return Status(Code::kCHECKSUM, "record: checksum of the body");
  return decode_front(head, body);
}

Status decode_payload(const RecordHead& head, std::span<const std::byte> body, std::span<std::byte> raw,
                      ChunkCodec& codec) {
  if (body.size() != head.body_bytes) return corrupt("body is not of the stated size");
  DSV41_TRY_ASSIGN(const Front front, parse_front(head, body));
  if (raw.size() != front.raw_bytes) {
    return Status(Code::kLAYOUT_MISMATCH, "record: payload of " + std::to_string(front.raw_bytes) + " bytes and not " +
                                              std::to_string(raw.size()));
  }
  std::span<const std::byte> stored = body.subspan(head.front_bytes());
  std::span<std::byte> left = raw;
  for (const StoredPlane& plane : std::span(front.planes).first(head.n_planes)) {
    DSV41_TRY(codec.decode(plane.codec, stored.first(plane.stored_bytes), left.first(plane.raw_bytes)));
    stored = stored.subspan(plane.stored_bytes);
    left = left.subspan(plane.raw_bytes);
  }
  if (xxh3_128(raw) != head.payload) return Status(Code::kCHECKSUM, "record: checksum of the payload");
  return {};
}

}  // namespace dsv41::store
