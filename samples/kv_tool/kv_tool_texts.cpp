#include "kv_tool_texts.h"

#include <dsv41/dsv41.h>

#include <cstdio>
#include <ctime>

namespace dsv41_kv {
namespace {

struct PartName {
  uint32_t bit;
  const char* text;
  const char* key;
};

constexpr PartName kPartNames[] = {
    {DSV41_PART_TOKENS, "tokens", "tokens"},
    {DSV41_PART_GLOBAL_KV, "global KV", "global_kv"},
    {DSV41_PART_ENCODER_WINDOWS, "encoder windows", "encoder_windows"},
    {DSV41_PART_DECODER_WINDOWS, "decoder windows", "decoder_windows"},
    {DSV41_PART_OPEN_ROWS, "open rows", "open_rows"},
    {DSV41_PART_LOGITS, "logits", "logits"},
    {DSV41_PART_SAMPLER, "sampler", "sampler"},
    {DSV41_PART_HOST_DATA, "host data", "host_data"},
};

}  // namespace

ExitCode exit_code_of(int32_t status) {
  switch (status) {
    case DSV41_NOT_FOUND:
    case DSV41_PERMISSION:
    case DSV41_IO: return kNoAccess;
    case DSV41_NOT_SNAPSHOT:
    case DSV41_IO_SHORT:
    case DSV41_CHECKSUM:
    case DSV41_CORRUPT: return kDamaged;
    case DSV41_FORMAT_VERSION:
    case DSV41_CODEC_UNAVAILABLE: return kTooNew;
    case DSV41_LOCKED: return kLocked;
    default: return status < 0 ? kFailed : kGood;
  }
}

void print_json(const Json& value) {
  std::printf("%s\n", value.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
}

std::string kind_text(uint32_t kind) {
  switch (kind) {
    case DSV41_SNAPSHOT_PREFIX: return "prefix";
    case DSV41_SNAPSHOT_FULL: return "full";
    default: return "kind " + std::to_string(kind);
  }
}

std::string parts_text(uint32_t parts) {
  std::string text;
  for (const PartName& name : kPartNames)
    if (parts & name.bit) text += (text.empty() ? "" : ", ") + std::string(name.text);
  return text.empty() ? "none" : text;
}

Json parts_json(uint32_t parts) {
  Json names = Json::array();
  for (const PartName& name : kPartNames)
    if (parts & name.bit) names.push_back(name.key);
  return names;
}

std::string hex_text(const uint8_t* bytes, size_t size) {
  std::string text;
  for (size_t i = 0; i < size; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", bytes[i]);
    text += digits;
  }
  return text;
}

std::string counted(uint64_t n, const char* what) { return std::to_string(n) + " " + what + (n == 1 ? "" : "s"); }

std::string bytes_text(uint64_t bytes) {
  constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  char text[48];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text;
}

std::string time_text(uint64_t unix_ns) {
  const std::time_t seconds = static_cast<std::time_t>(unix_ns / 1'000'000'000);
  std::tm parts{};
  char text[64];
  if (!gmtime_r(&seconds, &parts) || std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts) == 0)
    return "at an unknown time";
  return text;
}

std::string share_text(uint64_t stored_bytes, uint64_t raw_bytes) {
  if (raw_bytes == 0) return "none";
  char share[32];
  std::snprintf(share, sizeof share, " (%.1f %%)",
                100 * static_cast<double>(stored_bytes) / static_cast<double>(raw_bytes));
  return bytes_text(raw_bytes) + ", stored as " + bytes_text(stored_bytes) + share;
}

}  // namespace dsv41_kv
