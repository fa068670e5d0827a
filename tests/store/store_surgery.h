// Checksums of a store's files made to hold again, after a test has changed bytes under them: what a writer would have
// put there, had it written such numbers. Bytes that are too few for that stay as they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace dsv41::test {

template <class T>
T number_at(std::span<const std::byte> bytes, size_t offset) {
  T value{};
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

template <class T>
void set_number(std::span<std::byte> bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

// Of the record that begins there: body, then head.
void fix_record(std::span<std::byte> record);
// Of the segment's head, of whatever looks like a record in it, and of its index, if there is one.
void fix_segment(std::span<std::byte> segment);
// Of both copies.
void fix_store_file(std::span<std::byte> file);
void fix_catalogue(std::span<std::byte> file);

}  // namespace dsv41::test
