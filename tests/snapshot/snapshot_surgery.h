// Changes single fields of a snapshot file and makes its checksums hold again, so that tests and the fuzzer get behind
// them. Written from FORMAT.md with its offsets as numbers: it shares nothing with the code under test but XXH3.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <vector>

namespace dsv41::test {

using Bytes = std::vector<std::byte>;

template <class T>
T field_at(std::span<const std::byte> file, uint64_t offset) {
  if (offset > file.size() || sizeof(T) > file.size() - offset) throw std::out_of_range("a field beyond the file");
  T value;
  std::memcpy(&value, file.data() + offset, sizeof value);
  return value;
}
template <class T>
void set_field(std::span<std::byte> file, uint64_t offset, T value) {
  if (offset > file.size() || sizeof(T) > file.size() - offset) throw std::out_of_range("a field beyond the file");
  std::memcpy(file.data() + offset, &value, sizeof value);
}

// Offsets of what the tail leads to; the file must have a tail that leads somewhere.
uint64_t tail_offset(std::span<const std::byte> file);
uint64_t section_entry(std::span<const std::byte> file, uint32_t section);
uint64_t chunk_entry(std::span<const std::byte> file, uint32_t chunk);
// Of a chunk's stored bytes, counted from the sizes of those before it.
uint64_t chunk_offset(std::span<const std::byte> file, uint32_t chunk);

enum Checksums : uint32_t {
  kHeadChecksum = 1,
  kChunkChecksums = 2,
  kFileHash = 4,
  kSectionChecksums = 8,  // of each section's chunk entries
  kTableChecksum = 16,
  kAllChecksums = 31,
};
// Sets these as far as the file's numbers lead to bytes that are there; any bytes may be given.
void repair(std::span<std::byte> file, uint32_t checksums = kAllChecksums);
// Sets both magics, the version, and what the tail says of sizes, where the file has room for head and tail: the table ends
// at the tail then, if its counts allow.
void fit_sizes(std::span<std::byte> file);

}  // namespace dsv41::test
