// The header in every language version that hosts use, with pedantic errors; and its example, compiled and run.
#include <doctest/doctest.h>

#include <fstream>
#include <string>

#include "abi/public_header.h"

namespace dsv41::test {
namespace {

const std::string kFolder = DSV41_BINARY_DIR "/abi_test";

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  REQUIRE(file.good());
}

TEST_SUITE("abi/header_compile") {
  TEST_CASE("the header compiles pedantically in every C and C++ version") {
    REQUIRE(run_command("mkdir -p " + kFolder).exit_status == 0);
    write_file(kFolder + "/include_twice.c", "#include <dsv41/dsv41.h>\n#include <dsv41/dsv41.h>\n");
    const std::string flags =
        " -pedantic-errors -Wall -Wextra -Werror -Wconversion -fsyntax-only -I" DSV41_SOURCE_DIR "/include ";
    for (const char* standard : {"c90", "c99", "c11", "c17"}) {
      CAPTURE(standard);
      const CommandResult result =
          run_command(std::string(DSV41_C_COMPILER) + " -std=" + standard + flags + kFolder + "/include_twice.c");
      CHECK_MESSAGE(result.exit_status == 0, result.output);
    }
    for (const char* standard : {"c++98", "c++11", "c++14", "c++17", "c++20"}) {
      CAPTURE(standard);
      const CommandResult result = run_command(std::string(DSV41_CXX_COMPILER) + " -x c++ -std=" + standard + flags +
                                               kFolder + "/include_twice.c");
      CHECK_MESSAGE(result.exit_status == 0, result.output);
    }
  }

  TEST_CASE("the RAII wrapper compiles as C++17 and C++20") {
    REQUIRE(run_command("mkdir -p " + kFolder).exit_status == 0);
    write_file(kFolder + "/include_wrapper.cpp", "#include <dsv41/dsv41.hpp>\n#include <dsv41/dsv41.hpp>\n");
    for (const char* standard : {"c++17", "c++20"}) {
      CAPTURE(standard);
      const CommandResult result = run_command(std::string(DSV41_CXX_COMPILER) + " -std=" + standard +
                                               " -pedantic-errors -Wall -Wextra -Werror -Wconversion -fsyntax-only -I" +
                                               DSV41_SOURCE_DIR "/include " + kFolder + "/include_wrapper.cpp");
      CHECK_MESSAGE(result.exit_status == 0, result.output);
    }
  }

#ifdef DSV41_LIBRARY
  TEST_CASE("the example in the header's head compiles against the shared library and answers") {
    REQUIRE(run_command("mkdir -p " + kFolder).exit_status == 0);
    const std::string program = PublicHeader::read().example();
    CHECK(program.find("int main(") != program.npos);
    write_file(kFolder + "/example.c", program);
    const CommandResult built =
        run_command(std::string(DSV41_C_COMPILER) +
                    " -std=c99 -pedantic-errors -Wall -Wextra -Werror -I" DSV41_SOURCE_DIR "/include " + kFolder +
                    "/example.c -o " + kFolder + "/example " DSV41_LIBRARY " -Wl,-rpath,$(dirname " DSV41_LIBRARY ")");
    REQUIRE_MESSAGE(built.exit_status == 0, built.output);
    const CommandResult answered = run_command(kFolder + "/example " DSV41_SOURCE_DIR "/samples/nano");
    CHECK(answered.exit_status == 0);
    CHECK(answered.output == "4 + 5 = 9.");
    const CommandResult failed = run_command(kFolder + "/example " DSV41_SOURCE_DIR "/samples/no-such-folder");
    CHECK(failed.exit_status == 1);
    CHECK(failed.output.find("dsv41_model_open: ") == 0);
    CHECK(failed.output.find("no-such-folder") != failed.output.npos);
  }
#endif
}

}  // namespace
}  // namespace dsv41::test
