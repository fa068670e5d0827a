// The numbers of status codes: published, pinned here, and the same in the library's list, in the header and at run
// time.
#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <string>

#include "abi/public_header.h"
#include "dsv41/dsv41.h"

namespace dsv41::test {
namespace {

struct Code {
  std::string name;
  int number;
  std::string text;
  bool operator==(const Code&) const = default;
};

const std::map<std::string, int> kPublished = {
#define DSV41_PIN_STATUS(name, number) {#name, number},
#include "abi/status_pins.inc"
#undef DSV41_PIN_STATUS
};

std::vector<Code> matches(const std::string& text, const char* expression) {
  std::vector<Code> codes;
  const std::regex pattern(expression);
  for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it) {
    codes.push_back({(*it)[1], std::stoi((*it)[2]), (*it)[3]});
  }
  return codes;
}

std::vector<Code> library_list() {
  std::ifstream file(DSV41_SOURCE_DIR "/lib/base/status_codes.inc");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  return matches(text, "DSV41_CODE\\((\\w+), (-?\\d+), \"([^\"]*)\"\\)");
}

TEST_SUITE("abi/status") {
  TEST_CASE("no published number changes or is used again") {
    std::map<std::string, int> now;
    std::map<int, std::string> names;
    for (const Code& code : library_list()) {
      now[code.name] = code.number;
      CHECK(names.emplace(code.number, code.name).second);
    }
    for (const auto& [name, number] : kPublished) {
      CAPTURE(name);
      REQUIRE(now.count(name) == 1);
      CHECK(now[name] == number);
    }
    CHECK(kPublished.size() == now.size());
  }

  TEST_CASE("the header has every code with its number and text") {
    const std::string& header = PublicHeader::read().text();
    const size_t begin = header.find("typedef int32_t dsv41_status;");
    const size_t end = header.find("};", begin);
    const std::vector<Code> codes =
        matches(header.substr(begin, end - begin), "DSV41_(\\w+) = (-?\\d+),? +/\\* ([^*]*) \\*/");
    CHECK(codes == library_list());
  }

  TEST_CASE("names and texts are told at run time") {
    for (const Code& code : library_list()) {
      CAPTURE(code.name);
      CHECK(dsv41_status_name(code.number) == code.name);
      CHECK(dsv41_status_text(code.number) == code.text);
    }
    CHECK(std::string(dsv41_status_name(12345)) == "UNKNOWN");
    CHECK(std::string(dsv41_status_text(-12345)) == "unknown status code");
  }
}

}  // namespace
}  // namespace dsv41::test
