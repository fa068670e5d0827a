// What the built libdsv41.so shows to a loader, read with nm and readelf.
#include <doctest/doctest.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>
#include <string>

namespace dsv41::test {
namespace {

using Names = std::set<std::string>;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE_MESSAGE(file.good(), path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string output_of(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string text;
  char part[4096];
  for (size_t n = 0; (n = fread(part, 1, sizeof part, pipe)) > 0;) text.append(part, n);
  REQUIRE_MESSAGE(pclose(pipe) == 0, command);
  return text;
}

// Every match of the expression's first group.
Names matches(const std::string& text, const char* expression) {
  const std::regex pattern(expression);
  Names names;
  for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it) names.insert((*it)[1]);
  return names;
}

// Symbol names in nm's output, without the version behind '@'.
Names symbols(const char* options) {
  Names names;
  std::istringstream lines(output_of(std::string("nm -D ") + options + " '" DSV41_LIBRARY "'"));
  for (std::string line; std::getline(lines, line);) {
    const std::string name = line.substr(line.rfind(' ') + 1);
    names.insert(name.substr(0, name.find('@')));
  }
  return names;
}

Names minus(const Names& a, const Names& b) {
  Names rest;
  for (const std::string& name : a) {
    if (b.count(name) == 0) rest.insert(name);
  }
  return rest;
}

std::string join(const Names& names) {
  std::string text;
  for (const std::string& name : names) text += name + " ";
  return text;
}

Names listed_names() {
  std::string map = read_file(DSV41_SOURCE_DIR "/cmake/dsv41.map");
  map.erase(0, map.find("*/"));
  return matches(map, "([A-Za-z0-9_]+);");
}

TEST_SUITE("tools/symbols") {
  TEST_CASE("the version script lists exactly the functions that the header declares") {
    const Names declared =
        matches(read_file(DSV41_SOURCE_DIR "/include/dsv41/dsv41.h"), "\nDSV41_API [^;(]*?(dsv41_\\w+)\\(");
    CHECK(declared.count("dsv41_version_string") == 1);
    CHECK(join(minus(declared, listed_names())) == "");
    CHECK(join(minus(listed_names(), declared)) == "");
  }

  TEST_CASE("the library exports exactly the names of the version script") {
    const Names exported = symbols("--defined-only");
    CHECK(join(minus(exported, listed_names())) == "");
    CHECK(join(minus(listed_names(), exported)) == "");
  }

  TEST_CASE("the library's loader name is libdsv41.so.0") {
    const std::string dynamic = output_of("LC_ALL=C readelf -d '" DSV41_LIBRARY "'");
    CHECK(join(matches(dynamic, "soname: \\[(.*)\\]")) == "libdsv41.so.0 ");
  }

#ifndef DSV41_SANITIZED
  TEST_CASE("the library needs the C and C++ run time and nothing else") {
    const Names run_time = {"libstdc++.so.6", "libgcc_s.so.1",        "libm.so.6",
                            "libc.so.6",      "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"};
    const Names needed = matches(output_of("LC_ALL=C readelf -d '" DSV41_LIBRARY "'"), "NEEDED.*\\[(.*)\\]");
    CHECK(needed.count("libc.so.6") == 1);
    CHECK(join(minus(needed, run_time)) == "");
  }

  TEST_CASE("the library imports nothing that ends the process, prints, or reads the environment") {
    const Names imported = symbols("--undefined-only");
    CHECK(imported.count("memcpy") == 1);
    for (const char* name :
         {"exit",    "_exit",   "_Exit",     "quick_exit", "abort",        "__assert_fail", "raise",
          "printf",  "fprintf", "vprintf",   "vfprintf",   "__printf_chk", "__fprintf_chk", "__vfprintf_chk",
          "dprintf", "puts",    "fputs",     "putchar",    "putc",         "fputc",         "perror",
          "stdout",  "stderr",  "_ZSt4cout", "_ZSt4cerr",  "_ZSt4clog",    "getenv",        "secure_getenv",
          "setenv",  "putenv",  "environ",   "signal",     "sigaction",    "system",        "popen"}) {
      CAPTURE(name);
      CHECK(imported.count(name) == 0);
    }
  }
#endif
}

}  // namespace
}  // namespace dsv41::test
