// Packed form: an entry of the map is new (the next unused compressed id) or a copy of an earlier value. For every
// copy, in ascending id order, two LEB128 numbers: distance of its id from the previous copy's id (the first from -1),
// and its value minus the previous copy's value, zigzag coded. Base64. Rejected: the plain table (517 KB).
#include "model/engram_vocab_map.h"

#include <array>
#include <cstring>
#include <span>
#include <string_view>

#include "base/sha256.h"

namespace dsv41::model {
namespace {

constexpr std::string_view kPacked =
#include "model/engram_vocab_map.inc"
    ;
constexpr char kMapSha256[] = "c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481";

std::vector<uint8_t> base64_decode(std::string_view text) {
  static constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::array<uint8_t, 256> value = {};
  for (size_t i = 0; i < kAlphabet.size(); ++i) value[static_cast<uint8_t>(kAlphabet[i])] = static_cast<uint8_t>(i);
  std::vector<uint8_t> out;
  uint32_t bits = 0;
  int n_bits = 0;
  for (char c : text) {
    if (c == '=') break;
    bits = bits << 6 | value[static_cast<uint8_t>(c)];
    n_bits += 6;
    if (n_bits >= 8) out.push_back(static_cast<uint8_t>(bits >> (n_bits -= 8)));
  }
  return out;
}

class Leb128Reader {
 public:
  explicit Leb128Reader(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  bool done() const { return at_ == bytes_.size(); }
  int64_t next() {
    int64_t value = 0;
    for (int shift = 0; !done() && shift < 63; shift += 7) {
      const uint8_t byte = bytes_[at_++];
      value |= int64_t{byte & 0x7f} << shift;
      if (byte < 0x80) break;
    }
    return value;
  }

 private:
  std::span<const uint8_t> bytes_;
  size_t at_ = 0;
};

}  // namespace

Result<std::vector<int32_t>> released_engram_vocab_map() {
  const std::vector<uint8_t> packed = base64_decode(kPacked);
  Leb128Reader reader(packed);
  std::vector<int32_t> map;
  map.reserve(kReleasedVocabSize);
  int32_t n_fresh = 0;
  int64_t copy_id = -1, copy_value = 0;
  for (bool more = true; more;) {
    more = !reader.done();
    copy_id = more ? copy_id + reader.next() : kReleasedVocabSize;
    while (static_cast<int64_t>(map.size()) < copy_id && copy_id <= kReleasedVocabSize) map.push_back(n_fresh++);
    if (!more) break;
    const int64_t zigzag = reader.next();
    copy_value += zigzag & 1 ? -(zigzag + 1) / 2 : zigzag / 2;
    map.push_back(static_cast<int32_t>(copy_value));
  }
  if (sha256_hex(sha256(std::as_bytes(std::span(map)))) != kMapSha256) {
    return Status(Code::kINTERNAL, "the shipped Engram map does not have its SHA-256");
  }
  return map;
}

}  // namespace dsv41::model
