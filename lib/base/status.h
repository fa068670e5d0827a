// Status and Result: how every fallible function inside the library answers.
//
// Status is a code and a message; an ok Status is one null pointer and costs nothing. Result<T> is a T or a Status that
// is not ok. Both are nodiscard. DSV41_TRY and DSV41_TRY_ASSIGN pass failures up without adding text; the layer that
// knows the file or tensor name adds it once, with Status::with_context. No exception crosses a room: only
// std::bad_alloc can be thrown inside, and the C shell turns it into NO_MEMORY.
#pragma once

#include <cassert>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace dsv41 {

enum class Code : int32_t {
#define DSV41_CODE(name, number, text) k##name = number,
#include "base/status_codes.inc"
#undef DSV41_CODE
};

// Name without prefix ("POOL_FULL") and one-line text of a code; "UNKNOWN" for a number that is not in the list.
const char* code_name(Code code);
const char* code_text(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(Code code, std::string message, int64_t os_error = 0)
      : detail_(std::make_unique<Detail>(Detail{code, std::move(message), os_error})) {
    assert(code != Code::kOK);
  }
  Status(Status&&) noexcept = default;
  Status& operator=(Status&&) noexcept = default;
  Status(const Status& other) { *this = other; }
  Status& operator=(const Status& other) {
    detail_ = other.detail_ ? std::make_unique<Detail>(*other.detail_) : nullptr;
    return *this;
  }

  bool ok() const { return detail_ == nullptr; }
  Code code() const { return detail_ ? detail_->code : Code::kOK; }
  std::string_view message() const { return detail_ ? std::string_view(detail_->message) : std::string_view(); }
  // errno of the failed system call or the value that a host callback returned; 0 when neither took part.
  int64_t os_error() const { return detail_ ? detail_->os_error : 0; }

  // The same failure with "context: " in front of its message.
  Status with_context(std::string_view context) && {
    if (detail_) detail_->message = std::string(context) + ": " + detail_->message;
    return std::move(*this);
  }

 private:
  struct Detail {
    Code code;
    std::string message;
    int64_t os_error;
  };
  std::unique_ptr<Detail> detail_;
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}                                    // NOLINT: implicit on purpose
  Result(Status failure) : status_(std::move(failure)) { assert(!status_.ok()); }  // NOLINT

  bool ok() const { return value_.has_value(); }
  const Status& status() const& { return status_; }
  Status&& status() && { return std::move(status_); }

  T& value() & {
    assert(ok());
    return *value_;
  }
  const T& value() const& {
    assert(ok());
    return *value_;
  }
  T&& value() && {
    assert(ok());
    return std::move(*value_);
  }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace dsv41

#define DSV41_CONCAT_(a, b) a##b
#define DSV41_CONCAT(a, b) DSV41_CONCAT_(a, b)

// Return from the enclosing function when `expr` (a Status) is not ok.
#define DSV41_TRY(expr)                            \
  do {                                             \
    ::dsv41::Status dsv41_status_ = (expr);        \
    if (!dsv41_status_.ok()) return dsv41_status_; \
  } while (false)

// Assign the value of `expr` (a Result) to `target`, or return its failure. `target` may declare a variable.
#define DSV41_TRY_ASSIGN(target, expr) DSV41_TRY_ASSIGN_(DSV41_CONCAT(dsv41_result_, __LINE__), target, expr)
#define DSV41_TRY_ASSIGN_(result, target, expr)        \
  auto result = (expr);                                \
  if (!result.ok()) return std::move(result).status(); \
  target = std::move(result).value()
