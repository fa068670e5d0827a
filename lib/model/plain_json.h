// PlainJson: reads JSON in the form in which programs write the heads and indexes of checkpoints: strings of printable ASCII
// without escapes, numbers that are sizes. No tree is built: a checkpoint of 96,085 tensors has 600,000 values.
//
// Each function takes what it names off the front, white space before it included, and says whether it was there. False means
// "read it with Json", which also knows what is wrong: what is read here, Json reads too, and the same.
#pragma once

#include <cstdint>
#include <string_view>

namespace dsv41::model {

class PlainJson {
 public:
  explicit PlainJson(std::string_view text) : rest_(text) {}

  bool take(char c) {
    skip_space();
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }

  // Points into the text.
  bool take_string(std::string_view* out) {
    if (!take('"')) return false;
    const size_t size = rest_.find('"');
    if (size == std::string_view::npos) return false;
    *out = rest_.substr(0, size);
    rest_.remove_prefix(size + 1);
    unsigned n_other = 0;
    for (char c : *out) n_other += c < 0x20 || c > 0x7e || c == '\\';
    return n_other == 0;
  }
  bool take_string(std::string_view expected) {
    std::string_view text;
    return take_string(&text) && text == expected;
  }
  // "KEY":
  bool take_key(std::string_view* out) { return take_string(out) && take(':'); }
  bool take_key(std::string_view expected) { return take_string(expected) && take(':'); }

  bool take_size(uint64_t* out) {
    constexpr size_t kMaxDigits = 18;
    skip_space();
    size_t n = 0;
    for (*out = 0; n < rest_.size() && n <= kMaxDigits && rest_[n] >= '0' && rest_[n] <= '9'; ++n)
      *out = *out * 10 + static_cast<uint64_t>(rest_[n] - '0');
    if (n == 0 || n > kMaxDigits || (n > 1 && rest_.front() == '0')) return false;
    rest_.remove_prefix(n);
    return true;
  }

  // OPEN item , item .. CLOSE, where `item` takes one and says whether it was there.
  template <class Item>
  bool take_list(char open, char close, Item&& item) {
    if (!take(open)) return false;
    if (take(close)) return true;
    do {
      if (!item()) return false;
    } while (take(','));
    return take(close);
  }

  bool at_end() {
    skip_space();
    return rest_.empty();
  }

 private:
  void skip_space() {
    while (!rest_.empty() && is_space(rest_.front())) rest_.remove_prefix(1);
  }
  static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

  std::string_view rest_;
};

}  // namespace dsv41::model
