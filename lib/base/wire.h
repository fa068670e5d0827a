// Little-endian coding of numbers and byte strings: what files and records are made of.
//
// WireReader never reads beyond its bytes: a read past the end gives zero and makes ok() false for good, so that a
// decoder reads a whole struct and asks once.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace dsv41 {

static_assert(std::endian::native == std::endian::little, "files are little-endian, and so are the hosts so far");

// No bool: reading a byte other than 0 and 1 into one is undefined.
template <class T>
inline constexpr bool kIsWireNumber = (std::is_integral_v<T> && !std::is_same_v<T, bool>) || std::is_enum_v<T>;

class WireWriter {
 public:
  template <class T>
  void put(T value) {
    static_assert(kIsWireNumber<T>);
    put_bytes(std::as_bytes(std::span(&value, 1)));
  }
  void put_bytes(std::span<const std::byte> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  void put_zeros(size_t n) { bytes_.insert(bytes_.end(), n, std::byte{0}); }

  size_t size() const { return bytes_.size(); }
  std::span<const std::byte> bytes() const { return bytes_; }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  T get() {
    static_assert(kIsWireNumber<T>);
    T value{};
    const std::span<const std::byte> from = get_bytes(sizeof value);
    if (!from.empty()) std::memcpy(&value, from.data(), sizeof value);
    return value;
  }
  // A view of the next n bytes; empty, and ok() is false from then on, when there are fewer.
  std::span<const std::byte> get_bytes(size_t n) {
    if (!ok_ || n > bytes_.size()) {
      ok_ = false;
      return {};
    }
    const std::span<const std::byte> taken = bytes_.first(n);
    bytes_ = bytes_.subspan(n);
    return taken;
  }
  bool get_into(std::span<std::byte> out) {
    const std::span<const std::byte> from = get_bytes(out.size());
    if (ok_ && !out.empty()) std::memcpy(out.data(), from.data(), out.size());
    return ok_;
  }
  bool get_zeros(size_t n) {
    for (std::byte b : get_bytes(n)) ok_ = ok_ && b == std::byte{0};
    return ok_;
  }

  bool ok() const { return ok_; }
  size_t n_left() const { return bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

}  // namespace dsv41
