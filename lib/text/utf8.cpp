#include "text/utf8.h"

namespace dsv41::text {
namespace {

struct LeadByte {
  int n_following;     // 0 for ASCII, -1 for a byte that begins no character
  uint8_t low = 0x80;  // range of the second byte: excludes overlong forms, surrogates and values beyond U+10FFFF
  uint8_t high = 0xbf;
};

LeadByte lead_byte(uint8_t byte) {
  if (byte < 0x80) return {0};
  if (byte < 0xc2) return {-1};
  if (byte < 0xe0) return {1};
  if (byte == 0xe0) return {2, 0xa0, 0xbf};
  if (byte == 0xed) return {2, 0x80, 0x9f};
  if (byte < 0xf0) return {2};
  if (byte == 0xf0) return {3, 0x90, 0xbf};
  if (byte < 0xf4) return {3};
  if (byte == 0xf4) return {3, 0x80, 0x8f};
  return {-1};
}

}  // namespace

Utf8Step utf8_step(std::string_view bytes) {
  using Kind = Utf8Step::Kind;
  const LeadByte lead = lead_byte(static_cast<uint8_t>(bytes[0]));
  if (lead.n_following < 0) return {Kind::kInvalid, 1};
  uint8_t low = lead.low, high = lead.high;
  for (int i = 1; i <= lead.n_following; ++i) {
    const auto n = static_cast<uint8_t>(i);
    if (bytes.size() == n) return {Kind::kIncomplete, n};
    const auto byte = static_cast<uint8_t>(bytes[n]);
    if (byte < low || byte > high) return {Kind::kInvalid, n};
    low = 0x80;
    high = 0xbf;
  }
  return {Kind::kCharacter, static_cast<uint8_t>(lead.n_following + 1)};
}

void Utf8Stream::append(std::string_view bytes, std::string& out) {
  std::string joined;
  if (!held_.empty()) {
    joined = held_;
    joined += bytes;
    bytes = joined;
    held_.clear();
  }
  size_t done = 0, at = 0;  // bytes[done, at) is valid and not yet given out
  while (at < bytes.size()) {
    const Utf8Step step = utf8_step(bytes.substr(at));
    if (step.kind == Utf8Step::Kind::kCharacter) {
      at += step.n_bytes;
      continue;
    }
    out += bytes.substr(done, at - done);
    if (step.kind == Utf8Step::Kind::kIncomplete) {
      held_ = bytes.substr(at);
      return;
    }
    out += kReplacementCharacter;
    at += step.n_bytes;
    done = at;
  }
  out += bytes.substr(done);
}

void Utf8Stream::flush(std::string& out) {
  if (!held_.empty()) out += kReplacementCharacter;
  held_.clear();
}

}  // namespace dsv41::text
