// ProblemList: collects what is wrong with a file or folder, so that a person sees all of it at once. Keeps the first
// kMaxListed lines and counts the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/status.h"

namespace dsv41::model {

class ProblemList {
 public:
  static constexpr int64_t kMaxListed = 20;
  static constexpr size_t kMaxLineBytes = 300;

  bool empty() const { return n_ == 0; }
  bool wants_text() const { return n_ < kMaxListed; }  // false: count() does, no need to compose a line

  void add(std::string line) {
    if (line.size() > kMaxLineBytes) {
      size_t end = kMaxLineBytes;
      while (end > 0 && (line[end] & 0xc0) == 0x80) --end;  // not inside a UTF-8 character
      line.resize(end);
      line += "..";
    }
    if (wants_text()) text_ += (n_ ? "\n  " : "") + std::move(line);
    ++n_;
  }
  void count() { ++n_; }

  // Ok when empty. One problem: its line; several: a count and one indented line each.
  Status to_status(Code code) const {
    if (n_ == 0) return {};
    if (n_ == 1) return Status(code, text_);
    std::string message = std::to_string(n_) + " problems:\n  " + text_;
    if (n_ > kMaxListed) message += "\n  and " + std::to_string(n_ - kMaxListed) + " more";
    return Status(code, std::move(message));
  }

 private:
  int64_t n_ = 0;
  std::string text_;
};

}  // namespace dsv41::model
