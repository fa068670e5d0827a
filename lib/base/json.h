// Json: a parsed JSON document, for config, tokenizer, safetensors headers and chat requests.
//
// nlohmann/json does the lexing through its SAX interface; the handler here builds this small tree, keeps the order of
// keys, and refuses what hostile files use: duplicate keys, nesting beyond kMaxDepth, trailing bytes, numbers out of
// range. Memory is bounded by a small multiple of the input. Not thread-bound; values are immutable after parsing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace dsv41 {

class Json {
 public:
  enum class Kind : uint8_t { kNull, kBool, kInt, kUint, kDouble, kString, kArray, kObject };
  using Member = std::pair<std::string, Json>;
  static constexpr int kMaxDepth = 64;

  // Fails with INVALID_ARG and a message that names the byte position. Callers choose the code that fits their file.
  static Result<Json> parse(std::string_view text);

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::kNull; }
  bool is_bool() const { return kind_ == Kind::kBool; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_array() const { return kind_ == Kind::kArray; }
  bool is_object() const { return kind_ == Kind::kObject; }
  bool is_number() const { return kind_ == Kind::kInt || kind_ == Kind::kUint || kind_ == Kind::kDouble; }
  bool is_integer() const { return kind_ == Kind::kInt || kind_ == Kind::kUint; }

  // Accessors assert the kind; ask first.
  bool as_bool() const;
  double as_double() const;
  const std::string& as_string() const;
  const std::vector<Json>& items() const;      // array
  const std::vector<Member>& members() const;  // object, in file order
  // Integer value if it fits int64_t (an integral double such as 16.0 counts), else nothing.
  bool to_int64(int64_t* out) const;
  // Member of an object by key (nullptr if absent or not an object). Linear for small objects, binary search otherwise.
  const Json* find(std::string_view key) const;

  // The text form that Python's json.dumps(value, ensure_ascii=False) gives: ", " and ": " as separators, non-ASCII
  // unescaped, key order kept, numbers as they were spelled in the input.
  std::string dump() const;

 private:
  friend class JsonBuilder;
  void dump_to(std::string& out) const;

  Kind kind_ = Kind::kNull;
  bool bool_ = false;
  int64_t int_ = 0;
  uint64_t uint_ = 0;
  double double_ = 0;
  std::string text_;  // string value, or the spelling of a number
  std::vector<Json> items_;
  std::vector<Member> members_;
  std::vector<uint32_t> by_key_;  // member indices sorted by key
};

// `text` as a JSON string literal with quotes, non-ASCII unescaped (as Json::dump writes it).
std::string json_quote(std::string_view text);

}  // namespace dsv41
