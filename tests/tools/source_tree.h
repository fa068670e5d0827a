// SourceTree: the repository's source files and build lists in memory, for the tests that hold the tree to its own
// rules. A test may also make one up, to see that a rule notices what it forbids.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace dsv41::test {

// Path from the root with '/' ("lib/base/json.h") -> content. Sources, headers, .inc and CMakeLists.txt files only.
using SourceTree = std::map<std::string, std::string>;

// Reads the folders that hold code (lib, kernels, include, samples, bindings, tests, bench) below `root`, golden data
// left out.
SourceTree read_source_tree(const std::string& root);

bool starts_with(std::string_view text, std::string_view prefix);
bool ends_with(std::string_view text, std::string_view suffix);
// "lib/base/json.h" -> "lib/base"; "" for a file of the root.
std::string folder_of(std::string_view path);
std::string file_name_of(std::string_view path);
// "lib/base/../kv/./a.h" -> "lib/kv/a.h"
std::string normal_path(std::string_view path);

// The text with comments, string and character literals replaced by spaces; line ends stay, so that lines keep their
// numbers.
std::string without_comments_and_literals(std::string_view text);

struct Include {
  std::string path;  // as written
  int line = 0;
  bool quoted = false;  // "..." and not <...>
};
// Every #include line that is not inside a comment.
std::vector<Include> includes_of(std::string_view text);

// One line a fault, "file:line: what is wrong"; empty when the tree keeps the rule.
using Faults = std::vector<std::string>;
std::string join(const Faults& faults);

}  // namespace dsv41::test
