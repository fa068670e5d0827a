// Structs that cross the C API: reading options and filling results whatever struct_size the caller was compiled with.
//
// A size must be a multiple of the struct's alignment, so that no pointer or 64-bit field is cut in half, and at least
// kMinBytes. Absent input fields are zero, which every options struct takes as the default.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "dsv41/dsv41.h"

namespace dsv41::api {

inline constexpr uint32_t kMinBytes = 8;
inline constexpr uint32_t kMaxBytes = 1 << 16;

// Failures apart, so that the checks are a few instructions of each call.
[[gnu::cold, gnu::noinline]] inline Status wrong_struct_size(std::string_view name, uint32_t size, size_t own_size) {
  return Status(Code::kSTRUCT_SIZE, std::string(name) + ".struct_size is " + std::to_string(size) +
                                        "; this library's is " + std::to_string(own_size));
}
[[gnu::cold, gnu::noinline]] inline Status null_argument(std::string_view name) {
  return Status(Code::kINVALID_ARG, std::string(name) + " is NULL");
}

template <class T>
Status check_struct_size(const T* value, std::string_view name) {
  const uint32_t size = value->struct_size;
  if (size >= kMinBytes && size <= kMaxBytes && size % alignof(T) == 0) return {};
  return wrong_struct_size(name, size, sizeof(T));
}

inline bool all_zero(const void* data, size_t bytes) {
  const auto* p = static_cast<const unsigned char*>(data);
  return std::all_of(p, p + bytes, [](unsigned char byte) { return byte == 0; });
}

// *out: the caller's struct, missing fields zero. `in` null: all zero.
template <class T>
Status read_struct(const T* in, std::string_view name, T* out) {
  std::memset(out, 0, sizeof *out);
  out->struct_size = sizeof *out;
  if (!in) return {};
  DSV41_TRY(check_struct_size(in, name));
  const size_t known = std::min<size_t>(in->struct_size, sizeof *out);
  if (!all_zero(reinterpret_cast<const char*>(in) + known, in->struct_size - known)) {
    return Status(Code::kSTRUCT_SIZE,
                  std::string(name) + " has a field that this library does not know and that is not zero");
  }
  std::memcpy(out, in, known);
  out->struct_size = sizeof *out;
  bool reserved_is_zero = true;
  if constexpr (requires { out->reserved; }) reserved_is_zero = all_zero(out->reserved, sizeof out->reserved);
  if constexpr (requires { out->reserved0; }) reserved_is_zero = reserved_is_zero && out->reserved0 == 0;
  if (!reserved_is_zero) return Status(Code::kINVALID_ARG, std::string(name) + ": reserved fields must be zero");
  return {};
}

// To be asked before a call does anything, so that a bad result struct changes nothing.
template <class T>
Status check_output(const T* out, std::string_view name) {
  if (!out) return null_argument(name);
  return check_struct_size(out, name);
}

// The same for a result that the caller may leave out.
template <class T>
Status check_optional_output(const T* out, std::string_view name) {
  return out ? check_struct_size(out, name) : Status();
}

// Fills *out (checked; null: nothing) up to the caller's size, which stays.
template <class T>
void write_struct(const T& value, T* out) {
  if (!out) return;
  const uint32_t size = out->struct_size;
  std::memcpy(out, &value, std::min<size_t>(size, sizeof value));
  out->struct_size = size;
}

// The same by `fill`, which gets a struct of zeros, for calls of a few nanoseconds: where the caller's struct is as large as
// ours, it is that one. To be copied, what was just stored in parts would first have to arrive in the cache.
template <class T, class Fill>
void fill_struct(T* out, Fill&& fill) {
  T own;
  T* const fields = out->struct_size == sizeof own ? out : &own;
  *fields = T{};
  fill(*fields);
  if (fields == &own) return write_struct(own, out);
  out->struct_size = sizeof own;
}

template <size_t n>
void write_text(std::string_view text, char (&field)[n]) {
  const size_t size = std::min(text.size(), n - 1);
  std::memcpy(field, text.data(), size);
  std::memset(field + size, 0, n - size);
}

// An option that is 1 for yes and 0 for no; anything else is a mistake.
inline Status read_flag(uint32_t value, std::string_view name, bool* out) {
  if (value > 1) return Status(Code::kINVALID_ARG, "options." + std::string(name) + " is neither 0 nor 1");
  *out = value != 0;
  return {};
}

template <class T>
Status check_pointer(const T* pointer, std::string_view name) {
  return pointer ? Status() : null_argument(name);
}

// Input (pointer, count): null is allowed for count 0 only; the bytes must fit the address space.
template <class T>
Status check_span(const T* data, size_t n, std::string_view name) {
  if (!data && n > 0) return null_argument(name);
  if (n > PTRDIFF_MAX / sizeof(T)) return Status(Code::kINVALID_ARG, std::string(name) + " is larger than memory");
  return {};
}

// Output (buffer, capacity, n): asking for the size, too small, or filled.
template <class T>
Status check_buffer(const T* buffer, size_t capacity, const size_t* n) {
  DSV41_TRY(check_pointer(n, "n"));
  return check_span(buffer, capacity, "buffer");
}

// *n: what exists. BUFFER_TOO_SMALL unless it fits or was only asked for.
inline Status check_capacity(size_t n_existing, size_t capacity, size_t* n) {
  *n = n_existing;
  if (capacity == 0 || capacity >= n_existing) return {};
  return Status(Code::kBUFFER_TOO_SMALL, "the buffer holds " + std::to_string(capacity) + " elements, " +
                                             std::to_string(n_existing) + " are needed");
}

template <class T>
Status write_buffer(std::span<const T> values, T* buffer, size_t capacity, size_t* n) {
  DSV41_TRY(check_capacity(values.size(), capacity, n));
  if (capacity > 0 && !values.empty()) std::memcpy(buffer, values.data(), values.size_bytes());
  return {};
}

}  // namespace dsv41::api
