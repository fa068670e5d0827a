// Words and JSON for what the header gives as numbers, and the exit codes of dsv41-kv.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace dsv41_kv {

using Json = nlohmann::ordered_json;

enum ExitCode : int {
  kGood = 0,
  kFailed = 1,    // anything that has no code of its own
  kUsage = 2,     // wrong options
  kNoAccess = 3,  // not there, no permission, or reading failed
  kDamaged = 4,   // damaged, cut off, or no snapshot at all
  kTooNew = 5,    // written in a format or with a codec that this program does not know
  kLocked = 6,    // another program writes the store
};

// The exit code that stands for a status of the library.
ExitCode exit_code_of(int32_t status);

// On stdout, for people too.
void print_json(const Json& value);

std::string kind_text(uint32_t kind);    // DSV41_SNAPSHOT_*
std::string parts_text(uint32_t parts);  // DSV41_PART_* bits, "tokens, global KV"
Json parts_json(uint32_t parts);
std::string hex_text(const uint8_t* bytes, size_t size);
std::string counted(uint64_t n, const char* what);                  // "1 page", "2 pages"
std::string bytes_text(uint64_t bytes);                             // "1.5 MiB"
std::string time_text(uint64_t unix_ns);                            // "2026-11-30 08:15:02 UTC"
std::string share_text(uint64_t stored_bytes, uint64_t raw_bytes);  // "890.0 KiB, stored as 700.0 KiB (78.7 %)"

}  // namespace dsv41_kv
