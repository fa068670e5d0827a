#include "tools/tree_rules.h"

#include <doctest/doctest.h>

namespace dsv41::test {
namespace {

const SourceTree& the_tree() {
  static const SourceTree kTree = read_source_tree(DSV41_SOURCE_DIR);
  return kTree;
}

// One file of a made-up tree that includes another, and whether the edge is allowed.
struct EdgeCase {
  const char* from;
  const char* line;
  const char* to;
  bool allowed;
};

const EdgeCase kEdgeCases[] = {
    {"lib/kv/a.h", "#include \"base/b.h\"", "lib/base/b.h", true},
    {"lib/kv/a.h", "#include \"backend/b.h\"", "lib/backend/b.h", true},
    {"lib/kv/a.h", "#include \"kernels/norm/b.h\"", "kernels/norm/b.h", false},
    {"lib/kv/a.h", "#include \"model/b.h\"", "lib/model/b.h", false},
    {"lib/kv/a.h", "#include \"../model/b.h\"", "lib/model/b.h", false},
    {"lib/kv/a.h", "  #  include <model/b.h>", "lib/model/b.h", false},
    {"lib/kv/a.h", "// #include \"model/b.h\"", "lib/model/b.h", true},
    {"lib/kv/a.h", "const char* s = \"/*\";\n#include \"model/b.h\"", "lib/model/b.h", false},
    {"lib/model/a.h", "#include \"kv/b.h\"", "lib/kv/b.h", false},
    {"lib/model/a.h", "#include \"session/b.h\"", "lib/session/b.h", false},
    {"lib/text/a.h", "#include \"tensor/b.h\"", "lib/tensor/b.h", false},
    {"lib/base/a.h", "#include \"tensor/b.h\"", "lib/tensor/b.h", false},
    {"lib/session/a.h", "#include \"kv/b.h\"", "lib/kv/b.h", true},
    {"lib/session/a.h", "#include \"dsv41/dsv41.h\"", "include/dsv41/dsv41.h", false},
    {"lib/api/a.h", "#include <dsv41/dsv41.h>", "include/dsv41/dsv41.h", true},
    {"lib/api/a.h", "#include \"session/b.h\"", "lib/session/b.h", true},
    {"lib/session/a.h", "#include \"api/b.h\"", "lib/api/b.h", false},
    {"lib/extras/a.h", "", "lib/base/b.h", false},
    {"kernels/norm/a.h", "#include \"tensor/b.h\"", "lib/tensor/b.h", true},
    {"kernels/norm/a.h", "#include \"backend/b.h\"", "lib/backend/b.h", false},
    {"kernels/norm/a_cpu.cpp", "#include <cuda_runtime.h>", "lib/base/b.h", false},
    {"kernels/norm/a_cuda.cu", "#include <cuda_runtime.h>", "lib/base/b.h", true},
    {"kernels/norm/a.h", "#include \"norm/missing.h\"", "lib/base/b.h", false},
    {"include/dsv41/a.h", "#include \"base/b.h\"", "lib/base/b.h", false},
    {"samples/chat/a.cpp", "#include <dsv41/dsv41.h>", "include/dsv41/dsv41.h", true},
    {"samples/chat/a.cpp", "#include \"base/b.h\"", "lib/base/b.h", false},
    {"tests/abi/a.c", "#include \"dsv41/dsv41.h\"", "include/dsv41/dsv41.h", true},
    {"tests/abi/a.c", "#include \"session/b.h\"", "lib/session/b.h", false},
    {"tests/kv/a.cpp", "#include \"kv/b.h\"", "lib/kv/b.h", true},
    {"tests/kv/a.cpp", "#include \"dsv41/dsv41.h\"", "include/dsv41/dsv41.h", false},
};

TEST_SUITE("tools/tree_rules") {
  TEST_CASE("the tree is where the test looks for it") {
    CHECK(the_tree().count("lib/base/status.h") == 1);
    CHECK(the_tree().count("kernels/norm/rms_norm_ref.cpp") == 1);
    CHECK(the_tree().count("tests/tools/tree_rules_test.cpp") == 1);
  }

  TEST_CASE("every include follows an allowed edge") { CHECK(join(include_edge_faults(the_tree())) == ""); }

  TEST_CASE("every source is listed by name and no two files share a name") {
    CHECK(join(source_list_faults(the_tree())) == "");
  }

  TEST_CASE("lib and kernels never exit, print or read the environment, and start threads in one place") {
    CHECK(join(forbidden_call_faults(the_tree())) == "");
  }

  TEST_CASE("an include edge that the table does not allow is named with file and line") {
    for (const EdgeCase& row : kEdgeCases) {
      CAPTURE(row.from);
      CAPTURE(row.line);
      const Faults faults = include_edge_faults({{row.from, row.line}, {row.to, ""}});
      CHECK(faults.size() == (row.allowed ? 0u : 1u));
    }
    const Faults faults = include_edge_faults({{"lib/kv/a.h", "\n#include \"model/b.h\""}, {"lib/model/b.h", ""}});
    CHECK(join(faults) == "lib/kv/a.h:2: kv may not include model (lib/model/b.h)\n");
  }

  TEST_CASE("a source that no list names, a glob and a doubled file name are noticed") {
    const std::string list = "dsv41_room(kv\n  a.cpp\n  deep/b.cpp\n  # c.cpp\n)";
    CHECK(
        source_list_faults({{"lib/kv/CMakeLists.txt", list}, {"lib/kv/a.cpp", ""}, {"lib/kv/deep/b.cpp", ""}}).empty());
    CHECK(join(source_list_faults({{"lib/kv/CMakeLists.txt", list}, {"lib/kv/c.cpp", ""}})) ==
          "lib/kv/c.cpp:1: is in no CMakeLists.txt\n");
    CHECK(join(source_list_faults({{"lib/kv/CMakeLists.txt", list}, {"lib/model/a.cpp", ""}})) ==
          "lib/model/a.cpp:1: is in no CMakeLists.txt\n");
    CHECK(source_list_faults({{"lib/CMakeLists.txt", "file(GLOB sources *.cpp)"}}).size() == 1);
    CHECK(join(source_list_faults({{"lib/kv/a.h", ""}, {"lib/model/a.h", ""}})) ==
          "lib/model/a.h:1: has the file name of lib/kv/a.h\n");
  }

  TEST_CASE("a forbidden call is noticed in code and not in comments, literals or members") {
    const auto faults = [](const char* text) { return forbidden_call_faults({{"lib/kv/a.cpp", text}}).size(); };
    CHECK(faults("std::abort();") == 1);
    CHECK(faults("exit (1);") == 1);
    CHECK(faults("std::cerr << 1;") == 1);
    CHECK(faults("#include <iostream>") == 1);
    CHECK(faults("int n = 1'000; getenv(\"HOME\"); // '") == 1);
    CHECK(faults("// exit(1)\n/* abort() */ f(\"printf(x)\", R\"a(exit(1))\")a\", 'x');") == 0);
    CHECK(faults("task.abort(); task->exit(); snprintf(b, n, f); int exit_code;") == 0);
    CHECK(faults(
              "thread_ = std::thread(run); std::vector<std::thread> threads; for (std::thread& thread : threads) {}") ==
          1);
    CHECK(forbidden_call_faults({{"samples/chat/a.cpp", "exit(1);"}}).empty());
  }
}

}  // namespace
}  // namespace dsv41::test
