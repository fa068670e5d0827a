#include "base/json.h"

#include <doctest/doctest.h>

namespace dsv41::test {
namespace {

TEST_SUITE("base/json") {
  TEST_CASE("a document comes out as it was written, keys in order") {
    const std::string text =
        R"({"z": [1, -2, 3.50, true, false, null], "a": {"text": "é\n\"\\ ｜", "empty": {}}, "m": 18446744073709551615})";
    const Result<Json> json = Json::parse(text);
    REQUIRE_MESSAGE(json.ok(), json.status().message());
    CHECK(json->dump() == text);
    CHECK(json->members()[0].first == "z");
    CHECK(json->find("a")->find("empty")->is_object());
    CHECK(json->find("b") == nullptr);
  }

  TEST_CASE("members are found in small and in large objects") {
    std::string text = "{";
    for (int i = 0; i < 100; ++i) text += (i ? ", \"k" : "\"k") + std::to_string(i) + "\": " + std::to_string(i);
    const Json json = Json::parse(text + "}").value();
    for (int i = 0; i < 100; ++i) {
      int64_t value = -1;
      REQUIRE(json.find("k" + std::to_string(i)) != nullptr);
      CHECK(json.find("k" + std::to_string(i))->to_int64(&value));
      CHECK(value == i);
    }
    CHECK(json.find("k100") == nullptr);
  }

  TEST_CASE("an integer is given only when it fits and is whole") {
    const std::pair<const char*, bool> rows[] = {{"0", true},
                                                 {"-9223372036854775808", true},
                                                 {"9223372036854775807", true},
                                                 {"9223372036854775808", false},
                                                 {"16.0", true},
                                                 {"16.5", false},
                                                 {"1e300", false},
                                                 {"true", false},
                                                 {"\"1\"", false}};
    for (const auto& [text, fits] : rows) {
      CAPTURE(text);
      int64_t value = 0;
      CHECK(Json::parse(text)->to_int64(&value) == fits);
    }
  }

  TEST_CASE("what is not one JSON document is refused with a short printable message") {
    const std::string rows[] = {"",
                                "{",
                                "[1,]",
                                "{\"a\" 1}",
                                "1 2",
                                "nul",
                                "'a'",
                                "1e400",
                                "\"\xff\"",
                                "\"\xed\xa0\x80\"",
                                std::string("\0", 1),
                                "{\"a\": 1, \"b\": 2, \"a\": 3}",
                                std::string(65, '[') + std::string(65, ']'),
                                std::string(1 << 20, '['),
                                "\"" + std::string(1 << 20, 'x'),
                                "\"" + std::string(1000, 'x') + "\xff\""};
    for (const std::string& row : rows) {
      CAPTURE(row.substr(0, 40));
      const Status status = Json::parse(row).status();
      CHECK(status.code() == Code::kINVALID_ARG);
      CHECK(status.message().size() < 400);
      for (char c : status.message()) CHECK((c >= 0x20 && c <= 0x7e));
    }
    CHECK(Json::parse(std::string(64, '[') + std::string(64, ']')).ok());
  }
}

}  // namespace
}  // namespace dsv41::test
