#include "base/json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace dsv41 {
namespace {

constexpr size_t kLinearSearchLimit = 8;

// The library's messages quote the text read so far, which may be long and need not be UTF-8.
std::string printable(std::string text) {
  constexpr size_t kMaxBytes = 200;
  if (text.size() > kMaxBytes) text.replace(kMaxBytes, std::string::npos, "..");
  for (char& c : text) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return text;
}

}  // namespace

// SAX handler: builds the tree with an explicit stack of open containers.
class JsonBuilder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Json root;
  std::string error;

  bool null() override { return put(Json()); }
  bool boolean(bool value) override {
    Json json;
    json.kind_ = Json::Kind::kBool;
    json.bool_ = value;
    return put(std::move(json));
  }
  bool number_integer(number_integer_t value) override {
    Json json;
    json.kind_ = Json::Kind::kInt;
    json.int_ = value;
    json.text_ = std::to_string(value);
    return put(std::move(json));
  }
  bool number_unsigned(number_unsigned_t value) override {
    Json json;
    json.kind_ = Json::Kind::kUint;
    json.uint_ = value;
    json.text_ = std::to_string(value);
    return put(std::move(json));
  }
  bool number_float(number_float_t value, const string_t& spelling) override {
    if (!std::isfinite(value)) return fail("number out of range: " + printable(spelling));
    Json json;
    json.kind_ = Json::Kind::kDouble;
    json.double_ = value;
    json.text_ = spelling;
    return put(std::move(json));
  }
  bool string(string_t& value) override {
    Json json;
    json.kind_ = Json::Kind::kString;
    json.text_ = std::move(value);
    return put(std::move(json));
  }
  bool binary(binary_t&) override { return fail("binary value"); }
  bool start_object(std::size_t) override { return open(Json::Kind::kObject); }
  bool start_array(std::size_t) override { return open(Json::Kind::kArray); }
  bool key(string_t& value) override {
    keys_.back() = std::move(value);
    return true;
  }
  bool end_object() override {
    if (!index_keys(stack_.back())) return false;
    return close();
  }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    return fail("at byte " + std::to_string(position) + ": " + printable(e.what()));
  }

 private:
  bool fail(std::string text) {
    if (error.empty()) error = std::move(text);
    return false;
  }

  bool put(Json json) {
    if (stack_.empty()) {
      root = std::move(json);
    } else if (stack_.back().kind_ == Json::Kind::kArray) {
      stack_.back().items_.push_back(std::move(json));
    } else {
      stack_.back().members_.emplace_back(std::move(keys_.back()), std::move(json));
    }
    return true;
  }

  bool open(Json::Kind kind) {
    if (stack_.size() >= Json::kMaxDepth) return fail("nested deeper than " + std::to_string(Json::kMaxDepth));
    stack_.emplace_back();
    stack_.back().kind_ = kind;
    keys_.emplace_back();
    return true;
  }

  bool close() {
    Json json = std::move(stack_.back());
    stack_.pop_back();
    keys_.pop_back();
    return put(std::move(json));
  }

  bool index_keys(Json& object) {
    auto& members = object.members_;
    std::vector<uint32_t> order(members.size());
    for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return members[a].first < members[b].first; });
    for (size_t i = 1; i < order.size(); ++i) {
      if (members[order[i - 1]].first == members[order[i]].first) {
        return fail("duplicate key \"" + printable(members[order[i]].first) + "\"");
      }
    }
    if (members.size() > kLinearSearchLimit) object.by_key_ = std::move(order);
    return true;
  }

  std::vector<Json> stack_;
  std::vector<std::string> keys_;
};

Result<Json> Json::parse(std::string_view text) {
  JsonBuilder builder;
  const bool ok = nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  if (!ok || !builder.error.empty()) {
    return Status(Code::kINVALID_ARG,
                  "JSON " + (builder.error.empty() ? std::string("cannot be parsed") : builder.error));
  }
  return std::move(builder.root);
}

bool Json::as_bool() const {
  assert(is_bool());
  return bool_;
}

double Json::as_double() const {
  assert(is_number());
  if (kind_ == Kind::kInt) return static_cast<double>(int_);
  if (kind_ == Kind::kUint) return static_cast<double>(uint_);
  return double_;
}

const std::string& Json::as_string() const {
  assert(is_string());
  return text_;
}

const std::vector<Json>& Json::items() const {
  assert(is_array());
  return items_;
}

const std::vector<Json::Member>& Json::members() const {
  assert(is_object());
  return members_;
}

bool Json::to_int64(int64_t* out) const {
  constexpr double kLimit = 9007199254740992.0;  // 2^53: beyond it a double is no exact integer
  if (kind_ == Kind::kInt) {
    *out = int_;
    return true;
  }
  if (kind_ == Kind::kUint) {
    *out = static_cast<int64_t>(uint_);
    return uint_ <= static_cast<uint64_t>(INT64_MAX);
  }
  if (kind_ == Kind::kDouble && double_ == std::floor(double_) && std::abs(double_) <= kLimit) {
    *out = static_cast<int64_t>(double_);
    return true;
  }
  return false;
}

const Json* Json::find(std::string_view key) const {
  if (kind_ != Kind::kObject) return nullptr;
  if (by_key_.empty()) {
    for (const Member& member : members_) {
      if (member.first == key) return &member.second;
    }
    return nullptr;
  }
  auto at = std::lower_bound(by_key_.begin(), by_key_.end(), key,
                             [&](uint32_t i, std::string_view k) { return members_[i].first < k; });
  if (at == by_key_.end() || members_[*at].first != key) return nullptr;
  return &members_[*at].second;
}

std::string Json::dump() const {
  std::string out;
  dump_to(out);
  return out;
}

void Json::dump_to(std::string& out) const {
  switch (kind_) {
    case Kind::kNull: out += "null"; return;
    case Kind::kBool: out += bool_ ? "true" : "false"; return;
    case Kind::kInt:
    case Kind::kUint:
    case Kind::kDouble: out += text_; return;
    case Kind::kString: out += json_quote(text_); return;
    case Kind::kArray:
      out += '[';
      for (size_t i = 0; i < items_.size(); ++i) {
        if (i) out += ", ";
        items_[i].dump_to(out);
      }
      out += ']';
      return;
    case Kind::kObject:
      out += '{';
      for (size_t i = 0; i < members_.size(); ++i) {
        if (i) out += ", ";
        out += json_quote(members_[i].first);
        out += ": ";
        members_[i].second.dump_to(out);
      }
      out += '}';
      return;
  }
}

std::string json_quote(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (unsigned char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      default:
        if (c < 0x20) {
          out += "\\u00";
          out += kHex[c >> 4];
          out += kHex[c & 15];
        } else {
          out += static_cast<char>(c);
        }
    }
  }
  out += '"';
  return out;
}

}  // namespace dsv41
