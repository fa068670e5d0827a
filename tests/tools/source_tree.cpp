#include "tools/source_tree.h"

#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace dsv41::test {
namespace {

namespace fs = std::filesystem;

bool is_text_of_interest(const std::string& name) {
  if (name == "CMakeLists.txt") return true;
  for (const char* suffix : {".h", ".hpp", ".c", ".cpp", ".cu", ".cuh", ".inc"}) {
    if (ends_with(name, suffix)) return true;
  }
  return false;
}

bool is_name_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// Copies `text` into blanks from [from, to), keeping line ends.
void blank(std::string& text, size_t from, size_t to) {
  for (size_t i = from; i < to && i < text.size(); ++i) {
    if (text[i] != '\n') text[i] = ' ';
  }
}

// Index after the literal that opens at `open` with `quote`.
size_t end_of_literal(std::string_view text, size_t open, char quote) {
  size_t i = open + 1;
  while (i < text.size() && text[i] != quote && text[i] != '\n') i += text[i] == '\\' ? 2 : 1;
  return i + 1;
}

// Index after the raw string whose quote is at `open`: R"delimiter( ... )delimiter".
size_t end_of_raw_string(std::string_view text, size_t open) {
  const size_t paren = text.find('(', open);
  if (paren == std::string_view::npos) return text.size();
  const std::string closing = ")" + std::string(text.substr(open + 1, paren - open - 1)) + "\"";
  const size_t end = text.find(closing, paren);
  return end == std::string_view::npos ? text.size() : end + closing.size();
}

bool is_raw_string(std::string_view text, size_t quote) {
  if (quote == 0 || text[quote - 1] != 'R') return false;
  return quote == 1 || !is_name_char(text[quote - 2]) || text[quote - 2] == '8' || text[quote - 2] == 'u';
}

std::string without_comments(std::string_view text, bool literals_too) {
  std::string out(text);
  size_t i = 0;
  while (i < text.size()) {
    size_t end = i + 1;
    bool erase = false;
    if (text.substr(i, 2) == "//") {
      end = text.find('\n', i);
      erase = true;
    } else if (text.substr(i, 2) == "/*") {
      end = text.find("*/", i + 2);
      if (end != std::string_view::npos) end += 2;
      erase = true;
    } else if (text[i] == '"') {
      end = is_raw_string(text, i) ? end_of_raw_string(text, i) : end_of_literal(text, i, '"');
      erase = literals_too;
    } else if (text[i] == '\'' && (i == 0 || !is_name_char(text[i - 1]))) {  // else a digit separator
      end = end_of_literal(text, i, '\'');
      erase = literals_too;
    }
    if (end == std::string_view::npos || end > text.size()) end = text.size();
    if (erase) blank(out, i, end);
    i = end;
  }
  return out;
}

}  // namespace

bool starts_with(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

bool ends_with(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

std::string folder_of(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? "" : std::string(path.substr(0, slash));
}

std::string file_name_of(std::string_view path) { return std::string(path.substr(path.rfind('/') + 1)); }

std::string normal_path(std::string_view path) { return fs::path(path).lexically_normal().generic_string(); }

SourceTree read_source_tree(const std::string& root) {
  SourceTree tree;
  for (const char* top : {"lib", "kernels", "include", "samples", "bindings", "tests", "bench"}) {
    const fs::path folder = fs::path(root) / top;
    if (!fs::is_directory(folder)) continue;
    for (fs::recursive_directory_iterator it(folder), end; it != end; ++it) {
      if (it->is_directory() && it->path().filename() == "golden") {
        it.disable_recursion_pending();
      } else if (it->is_regular_file() && is_text_of_interest(it->path().filename().string())) {
        std::ifstream file(it->path(), std::ios::binary);
        tree[fs::relative(it->path(), root).generic_string()] =
            std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
      }
    }
  }
  return tree;
}

std::string without_comments_and_literals(std::string_view text) { return without_comments(text, true); }

std::vector<Include> includes_of(std::string_view text) {
  std::vector<Include> includes;
  const std::string code = without_comments(text, false);
  int line = 0;
  for (size_t start = 0; start < code.size();) {
    ++line;
    size_t end = code.find('\n', start);
    if (end == std::string::npos) end = code.size();
    const std::string row = code.substr(start, end - start);
    start = end + 1;
    size_t i = row.find_first_not_of(" \t");
    if (i == std::string::npos || row[i] != '#') continue;
    i = row.find_first_not_of(" \t", i + 1);
    if (i == std::string::npos || row.compare(i, 7, "include") != 0) continue;
    const size_t open = row.find_first_of("\"<", i);
    if (open == std::string::npos) continue;
    const size_t close = row.find(row[open] == '<' ? '>' : '"', open + 1);
    if (close == std::string::npos) continue;
    includes.push_back({row.substr(open + 1, close - open - 1), line, row[open] == '"'});
  }
  return includes;
}

std::string join(const Faults& faults) {
  std::string text;
  for (const std::string& fault : faults) text += fault + "\n";
  return text;
}

}  // namespace dsv41::test
