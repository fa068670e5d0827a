// What may stand in the public header, and that its lists are complete.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <regex>
#include <set>
#include <string>

#include "abi/public_header.h"
#include "dsv41/dsv41.h"

namespace dsv41::test {
namespace {

bool starts_with(const std::string& text, const std::string& head) { return text.rfind(head, 0) == 0; }
bool ends_with(const std::string& text, const std::string& tail) {
  return text.size() >= tail.size() && text.compare(text.size() - tail.size(), tail.size(), tail) == 0;
}

// Words in `code` that the ABI forbids; "" when there are none.
std::string forbidden_word(const std::string& code) {
  std::smatch match;
  const std::regex words(
      "\\b(bool|_Bool|FILE|wchar_t|va_list|long|unsigned|short|size_type|std)\\b|\\.\\.\\.|:|enum \\w+ *\\{");
  return std::regex_search(code, match, words) ? match[0].str() : "";
}

TEST_SUITE("abi/header_rules") {
  TEST_CASE("the ABI has no bool, enum type, bit-field, varargs, FILE or C++ type") {
    const PublicHeader& header = PublicHeader::read();
    CHECK(forbidden_word(header.code()) == "");
    CHECK(forbidden_word("uint32_t flag : 1;") != "");
    CHECK(forbidden_word("enum dsv41_mode {") != "");
    CHECK(forbidden_word("void f(const char *format, ...);") != "");
  }

  TEST_CASE("structs are passed by pointer and returned never") {
    const PublicHeader& header = PublicHeader::read();
    const std::regex by_value("(const )?dsv41_(\\w+) \\w+(\\[\\d+\\])?");
    for (const HeaderFunction& function : header.functions()) {
      CAPTURE(function.name);
      for (const std::string& parameter : function.parameters) {
        CAPTURE(parameter);
        std::smatch match;
        if (std::regex_match(parameter, match, by_value)) CHECK(match[2] == "status");
      }
      std::smatch match;
      if (std::regex_match(function.result, match, std::regex("(const )?dsv41_(\\w+)"))) CHECK(match[2] == "status");
    }
    for (const HeaderStruct& record : header.structs()) {
      CAPTURE(record.name);
      for (const std::string& field : record.fields) {
        CAPTURE(field);
        std::smatch match;
        if (std::regex_match(field, match, by_value)) CHECK(ends_with(match[2], "_fn"));
      }
    }
  }

  TEST_CASE("every function that returns a status takes an error struct last, and no other does") {
    for (const HeaderFunction& function : PublicHeader::read().functions()) {
      CAPTURE(function.name);
      const bool fallible = function.result == "dsv41_status";
      const bool takes_error = !function.parameters.empty() && function.parameters.back() == "dsv41_error* error";
      CHECK(fallible == (takes_error && function.name != "dsv41_error_init"));
    }
  }

  TEST_CASE("structs begin with struct_size, but for the frozen ones") {
    const std::set<std::string> frozen = {"dsv41_logit_bias",  "dsv41_metric_desc", "dsv41_layout_entry",
                                          "dsv41_plan_field",  "dsv41_page_desc",   "dsv41_range",
                                          "dsv41_host_section"};
    size_t n_structs = 0;
    for (const HeaderStruct& record : PublicHeader::read().structs()) {
      CAPTURE(record.name);
      REQUIRE(!record.fields.empty());
      CHECK((record.fields.front() == "uint32_t struct_size") == (frozen.count(record.name) == 0));
      ++n_structs;
    }
    CHECK(n_structs > 20);
  }

  TEST_CASE("options structs end with reserved space") {
    for (const HeaderStruct& record : PublicHeader::read().structs()) {
      if (!ends_with(record.name, "_options") && record.name != "dsv41_input") continue;
      CAPTURE(record.name);
      CHECK(starts_with(record.fields.back(), "uint64_t reserved["));
    }
  }

  TEST_CASE("every struct that a host fills or receives has an init function") {
    const PublicHeader& header = PublicHeader::read();
    std::set<std::string> names;
    for (const HeaderFunction& function : header.functions()) names.insert(function.name);
    // What only callbacks receive needs none.
    const std::set<std::string> without = {
        "dsv41_progress",   "dsv41_token_event", "dsv41_logit_bias", "dsv41_metric_desc",  "dsv41_layout_entry",
        "dsv41_plan_field", "dsv41_page_desc",   "dsv41_range",      "dsv41_host_section", "dsv41_api"};
    for (const HeaderStruct& record : header.structs()) {
      CAPTURE(record.name);
      CHECK((names.count(record.name + "_init") == 1) == (without.count(record.name) == 0));
    }
  }

  TEST_CASE("every declaration is documented with its since-version") {
    const std::string& text = PublicHeader::read().text();
    const size_t first = text.find("dsv41_abi_version(void)");
    for (size_t at = text.rfind("\nDSV41_API", first); at != text.npos; at = text.find("\nDSV41_API", at + 1)) {
      const size_t name_end = text.find('(', at);
      const std::string declaration = text.substr(at + 1, name_end - at - 1);
      CAPTURE(declaration);
      if (declaration.find("_release") != declaration.npos) continue;  // convention 1
      // The comment above the declaration, or above the first of neighbours that share one.
      const size_t comment_end = text.rfind("*/", at);
      const size_t comment_begin = text.rfind("/*", comment_end);
      const std::string comment = text.substr(comment_begin, comment_end - comment_begin);
      CHECK(std::regex_search(comment, std::regex("Since[\\s*]+0\\.1")));
    }
  }

  TEST_CASE("the table of functions has every function in the header's order, and they are the exported ones") {
    const PublicHeader& header = PublicHeader::read();
    std::vector<std::string> want;
    for (const HeaderFunction& function : header.functions()) {
      if (function.name != "dsv41_get_api") want.push_back(function.name.substr(6));
    }
    const auto record = std::ranges::find(header.structs(), "dsv41_api", &HeaderStruct::name);
    REQUIRE(record != header.structs().end());
    std::vector<std::string> got;
    for (size_t i = 2; i < record->fields.size(); ++i) got.push_back(declared_name(record->fields[i]));
    CHECK(want == got);

    const dsv41_api* api = dsv41_get_api(DSV41_HEADER_ABI);
    REQUIRE(api != nullptr);
    CHECK(api->struct_size == sizeof(dsv41_api));
    CHECK(api->table_version == dsv41_abi_version());
    CHECK(std::string(api->version_string()) == dsv41_version_string());
    const bool same = api->generate == dsv41_generate && api->metric_value == dsv41_metric_value;
    CHECK(same);
    const auto* slots = reinterpret_cast<void* const*>(&api->error_init);  // the first function
    REQUIRE(offsetof(dsv41_api, error_init) + got.size() * sizeof(void*) == sizeof(dsv41_api));
    for (size_t i = 0; i < got.size(); ++i) {
      CAPTURE(got[i]);
      CHECK(slots[i] != nullptr);
    }
  }

  TEST_CASE("the table is refused to a host that is newer than the library") {
    CHECK(dsv41_get_api(DSV41_HEADER_ABI + 1) == nullptr);
    CHECK(dsv41_get_api(DSV41_HEADER_ABI + 0x10000) == nullptr);
    CHECK(dsv41_get_api(0xffffffffu) == nullptr);
  }

  TEST_CASE("an unknown capability is 0") {
    for (uint32_t id : {0u, 3u, 15u, 20u, 31u, 42u, 1000u, 0x7fffffffu, 0xffffffffu}) {
      CAPTURE(id);
      CHECK(dsv41_has_capability(id) == 0);
    }
    CHECK(dsv41_has_capability(DSV41_CAP_BACKEND_CPU) == 1);
    CHECK(dsv41_has_capability(DSV41_CAP_BACKEND_REF) == 1);
    for (uint32_t id = DSV41_CAP_DECODER_FULL; id <= DSV41_CAP_ZSTD; ++id) CHECK(dsv41_has_capability(id) == 1);
  }

  TEST_CASE("library and header tell the same version") {
    CHECK(dsv41_abi_version() == DSV41_HEADER_ABI);
    CHECK(dsv41_version_string() == std::to_string(DSV41_VERSION_MAJOR) + "." + std::to_string(DSV41_VERSION_MINOR) +
                                        "." + std::to_string(DSV41_VERSION_PATCH));
    CHECK(std::string(DSV41_PROJECT_VERSION) == dsv41_version_string());
  }
}

}  // namespace
}  // namespace dsv41::test
