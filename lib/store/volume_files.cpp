#include "store/volume_files.h"

#include <sys/random.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string>

#include "base/os_file.h"
#include "base/wire.h"
#include "base/xxh3.h"

namespace dsv41::store {
namespace {

constexpr size_t kMagicBytes = 8;
constexpr char kStoreMagic[] = "DSV41STO", kCatalogueMagic[] = "DSV41CAT";
constexpr uint16_t kMajor = 1, kMinor = 0;
constexpr size_t kCopyBytes = 128, kSecondCopy = 4096, kCopyReserved = 48;
constexpr size_t kUseBytes = 24, kPinBytes = 24, kDroppedBytes = 36;  // least bytes of each

void put_start(WireWriter& out, const char* magic) {
  out.put_bytes(std::as_bytes(std::span(magic, kMagicBytes)));
  out.put(kMajor);
  out.put(kMinor);
  out.put(uint32_t{0});
}

Status get_start(WireReader& in, const char* magic, const char* what) {
  const std::span<const std::byte> found = in.get_bytes(kMagicBytes);
  if (found.empty() || std::memcmp(found.data(), magic, kMagicBytes) != 0) {
    return Status(Code::kCORRUPT, std::string(what) + ": another kind of file");
  }
  const uint16_t major = in.get<uint16_t>();
  if (major != kMajor) return Status(Code::kFORMAT_VERSION, std::string(what) + ": version " + std::to_string(major));
  in.get<uint16_t>();
  in.get<uint32_t>();
  return {};
}

std::vector<std::byte> encode_copy(const StoreIdentity& identity) {
  WireWriter out;
  put_start(out, kStoreMagic);
  out.put_bytes(identity.id);
  out.put_bytes(identity.seed);
  out.put(identity.created_unix_ns);
  out.put_zeros(kCopyReserved);
  out.put(xxh3_64(out.bytes()));
  assert(out.size() == kCopyBytes);
  return out.take();
}

Result<StoreIdentity> decode_copy(std::span<const std::byte> bytes, size_t offset) {
  if (bytes.size() < offset + kCopyBytes) return Status(Code::kCORRUPT, "store: cut off");
  bytes = bytes.subspan(offset, kCopyBytes);
  WireReader in(bytes);
  DSV41_TRY(get_start(in, kStoreMagic, "store"));
  StoreIdentity identity;
  in.get_into(identity.id);
  in.get_into(identity.seed);
  identity.created_unix_ns = in.get<uint64_t>();
  in.get_bytes(kCopyReserved);
  if (in.get<uint64_t>() != xxh3_64(bytes.first(kCopyBytes - sizeof(uint64_t)))) {
    return Status(Code::kCHECKSUM, "store: checksum");
  }
  return identity;
}

void put_key(WireWriter& out, const RecordKey& key) {
  out.put(key.low);
  out.put(key.high);
}

RecordKey get_key(WireReader& in) {
  RecordKey key;
  key.low = in.get<uint64_t>();
  key.high = in.get<uint64_t>();
  return key;
}

// The number of things of at least that size each; false when they cannot all be there.
bool get_count(WireReader& in, size_t least_bytes, size_t* count) {
  const uint64_t n = in.get<uint64_t>();
  if (!in.ok() || n > in.n_left() / least_bytes) return false;
  *count = static_cast<size_t>(n);
  return true;
}

bool get_uses(WireReader& in, std::vector<Catalogue::Use>* uses) {
  size_t count = 0;
  if (!get_count(in, kUseBytes, &count)) return false;
  uses->resize(count);
  for (Catalogue::Use& use : *uses) {
    use.key = get_key(in);
    use.used_unix_ns = in.get<uint64_t>();
  }
  return in.ok();
}

bool get_pins(WireReader& in, std::vector<Catalogue::Pin>* pins) {
  size_t count = 0;
  if (!get_count(in, kPinBytes, &count)) return false;
  pins->resize(count);
  for (Catalogue::Pin& pin : *pins) {
    pin.key = get_key(in);
    pin.count = in.get<uint32_t>();
    const std::span<const std::byte> reason = in.get_bytes(in.get<uint32_t>());
    if (!in.ok()) return false;
    pin.reason.assign(reinterpret_cast<const char*>(reason.data()), reason.size());
  }
  return true;
}

bool get_dropped(WireReader& in, std::vector<Catalogue::Dropped>* dropped) {
  size_t count = 0;
  if (!get_count(in, kDroppedBytes, &count)) return false;
  dropped->resize(count);
  for (Catalogue::Dropped& record : *dropped) {
    record.place.segment = in.get<uint64_t>();
    record.place.offset = in.get<uint64_t>();
    record.key = get_key(in);
    record.why = in.get<Catalogue::Why>();
    if (record.why != Catalogue::Why::kRemoved && record.why != Catalogue::Why::kQuarantined) return false;
  }
  return in.ok();
}

}  // namespace

Result<StoreIdentity> draw_identity(uint64_t now_unix_ns) {
  std::array<std::byte, sizeof(StoreIdentity::id) + sizeof(StoreIdentity::seed)> random;
  // Never in part: that takes more than 256 bytes.
  const ssize_t n = retry_interrupted([&] { return ::getrandom(random.data(), random.size(), 0); });
  if (n != static_cast<ssize_t>(random.size())) {
    return Status(Code::kIO, "the system gives no random bytes", errno);
  }
  StoreIdentity identity;
  std::copy_n(random.begin(), identity.id.size(), identity.id.begin());
  std::copy_n(random.begin() + identity.id.size(), identity.seed.size(), identity.seed.begin());
  identity.created_unix_ns = now_unix_ns;
  return identity;
}

std::vector<std::byte> encode_store_file(const StoreIdentity& identity) {
  const std::vector<std::byte> copy = encode_copy(identity);
  std::vector<std::byte> bytes(kStoreFileBytes);
  std::copy(copy.begin(), copy.end(), bytes.begin());
  std::copy(copy.begin(), copy.end(), bytes.begin() + kSecondCopy);
  return bytes;
}

Result<StoreFile> decode_store_file(std::span<const std::byte> bytes) {
  const Result<StoreIdentity> first = decode_copy(bytes, 0), second = decode_copy(bytes, kSecondCopy);
  if (first.ok()) return StoreFile{first.value(), second.ok() && bytes.size() == kStoreFileBytes};
  if (second.ok()) return StoreFile{second.value(), false};
  for (const Result<StoreIdentity>* copy : {&first, &second}) {
    if (copy->status().code() == Code::kFORMAT_VERSION) return copy->status();
  }
  return Status(Code::kCORRUPT, "store: both copies are damaged");
}

std::vector<std::byte> encode_catalogue(const Catalogue& catalogue) {
  WireWriter out;
  put_start(out, kCatalogueMagic);
  out.put(uint64_t{catalogue.uses.size()});
  for (const Catalogue::Use& use : catalogue.uses) {
    put_key(out, use.key);
    out.put(use.used_unix_ns);
  }
  out.put(uint64_t{catalogue.pins.size()});
  for (const Catalogue::Pin& pin : catalogue.pins) {
    assert(pin.reason.size() <= std::numeric_limits<uint32_t>::max());
    put_key(out, pin.key);
    out.put(pin.count);
    out.put(static_cast<uint32_t>(pin.reason.size()));
    out.put_bytes(std::as_bytes(std::span(pin.reason)));
  }
  out.put(uint64_t{catalogue.dropped.size()});
  for (const Catalogue::Dropped& record : catalogue.dropped) {
    out.put(record.place.segment);
    out.put(record.place.offset);
    put_key(out, record.key);
    out.put(record.why);
  }
  out.put(xxh3_64(out.bytes()));
  return out.take();
}

Result<Catalogue> decode_catalogue(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  DSV41_TRY(get_start(in, kCatalogueMagic, "catalogue"));
  if (in.n_left() < sizeof(uint64_t)) return Status(Code::kCORRUPT, "catalogue: cut off");
  WireReader sum(bytes.last(sizeof(uint64_t)));
  if (sum.get<uint64_t>() != xxh3_64(bytes.first(bytes.size() - sizeof(uint64_t)))) {
    return Status(Code::kCHECKSUM, "catalogue: checksum");
  }
  Catalogue catalogue;
  const bool whole = get_uses(in, &catalogue.uses) && get_pins(in, &catalogue.pins) &&
                     get_dropped(in, &catalogue.dropped) && in.n_left() == sizeof(uint64_t);
  if (!whole) return Status(Code::kCORRUPT, "catalogue: counts do not fit its size");
  return catalogue;
}

}  // namespace dsv41::store
