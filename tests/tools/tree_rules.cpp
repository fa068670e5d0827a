#include "tools/tree_rules.h"

#include <cctype>
#include <set>

namespace dsv41::test {
namespace {

using Names = std::set<std::string>;

// Room -> rooms it may include besides itself and base.
const std::map<std::string, Names>& allowed_rooms() {
  static const std::map<std::string, Names> kRooms = {
      {"base", {}},
      {"tensor", {}},
      {"kernels", {"tensor"}},
      {"backend", {"kernels", "tensor"}},
      {"model", {"backend", "tensor"}},
      {"kv", {"backend", "tensor"}},
      {"text", {}},
      {"snapshot", {}},
      {"store", {}},
      {"session", {"model", "kv", "text", "snapshot", "store"}},
      {"api", {"session", "model", "kv", "text", "snapshot", "store", "backend", "kernels", "tensor", "public"}},
      // Outside the library: not rooms, but they obey the same table.
      {"public", {}},
      {"samples", {"public"}},
      {"bindings", {"public"}},
      {"abi tests", {"public", "tests"}},
  };
  return kRooms;
}

// The room a file belongs to; "tests" for tests and benches, which may look inside every room.
std::string room_of(const std::string& path) {
  if (starts_with(path, "include/")) return "public";
  if (starts_with(path, "kernels/")) return "kernels";
  if (starts_with(path, "samples/")) return "samples";
  if (starts_with(path, "bindings/")) return "bindings";
  if (starts_with(path, "tests/abi/") || starts_with(path, "tests/tools/install_consume/")) return "abi tests";
  if (starts_with(path, "tests/") || starts_with(path, "bench/")) return "tests";
  const size_t slash = path.find('/', 4);
  return slash == std::string::npos ? path : path.substr(4, slash - 4);  // lib/<room>/...
}

bool may_include(const std::string& path, const std::string& from, const std::string& to) {
  if (from == to) return true;
  // Tests and benches reach everything inside; of the public header only those of the C API know.
  if (from == "tests") return to != "public" || starts_with(path, "tests/api/") || starts_with(path, "bench/api/");
  const auto row = allowed_rooms().find(from);
  if (row == allowed_rooms().end()) return false;
  const bool outside = from == "public" || row->second.count("public") != 0;
  if (to == "base") return from == "api" || !outside;
  return row->second.count(to) != 0;
}

// The file of the tree that an include line means, or "" for a header of the system.
std::string resolve(const SourceTree& tree, const std::string& from, const Include& include) {
  std::vector<std::string> places = {"", "lib/", "include/", "tests/"};
  if (include.quoted) places.insert(places.begin(), folder_of(from) + "/");
  for (const std::string& place : places) {
    const std::string path = normal_path(place + include.path);
    if (tree.count(path) != 0) return path;
  }
  return "";
}

bool is_cuda_header(const std::string& path) {
  const std::string name = file_name_of(path);
  return starts_with(name, "cuda") || starts_with(name, "cublas") || starts_with(path, "cub/") ||
         starts_with(path, "cute/") || starts_with(path, "cutlass/");
}

std::string place(const std::string& path, int line) { return path + ":" + std::to_string(line) + ": "; }

bool is_source(const std::string& path) {
  return ends_with(path, ".c") || ends_with(path, ".cpp") || ends_with(path, ".cu");
}

bool is_name_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// The words of a CMakeLists.txt outside comments, "${CMAKE_CURRENT_SOURCE_DIR}/" taken off their front.
Names words_of_list(const std::string& text) {
  Names words;
  std::string word;
  bool comment = false;
  for (char c : text + "\n") {
    if (c == '#') comment = true;
    const bool separator = comment || std::isspace(static_cast<unsigned char>(c)) || c == '(' || c == ')' || c == '"';
    if (!separator) word += c;
    if (separator && !word.empty()) {
      const std::string here = "${CMAKE_CURRENT_SOURCE_DIR}/";
      words.insert(starts_with(word, here) ? word.substr(here.size()) : word);
      word.clear();
    }
    if (c == '\n') comment = false;
  }
  return words;
}

bool is_listed(const std::map<std::string, Names>& lists, const std::string& path) {
  for (std::string folder = folder_of(path);; folder = folder_of(folder)) {
    const auto list = lists.find(folder);
    const std::string relative = folder.empty() ? path : path.substr(folder.size() + 1);
    if (list != lists.end() && list->second.count(relative) != 0) return true;
    if (folder.empty()) return false;
  }
}

}  // namespace

Faults include_edge_faults(const SourceTree& tree) {
  Faults faults;
  for (const auto& [path, text] : tree) {
    if (ends_with(path, "CMakeLists.txt")) continue;
    const std::string from = room_of(path);
    if (starts_with(path, "lib/") && allowed_rooms().count(from) == 0) {
      faults.push_back(place(path, 1) + "lib has no room of this name");
      continue;
    }
    const bool cuda_allowed = starts_with(path, "lib/backend/cuda/") || ends_with(path, "_cuda.cu") ||
                              starts_with(path, "tests/") || starts_with(path, "bench/");
    for (const Include& include : includes_of(text)) {
      const std::string target = resolve(tree, path, include);
      if (target.empty()) {
        if (!cuda_allowed && is_cuda_header(include.path)) {
          faults.push_back(place(path, include.line) + "CUDA header " + include.path + " outside the CUDA backend");
        } else if (include.quoted && (starts_with(path, "lib/") || starts_with(path, "kernels/"))) {
          faults.push_back(place(path, include.line) + include.path + " is not in the tree");
        }
        continue;
      }
      const std::string to = room_of(target);
      if (!may_include(path, from, to)) {
        faults.push_back(place(path, include.line) + from + " may not include " + to + " (" + target + ")");
      }
    }
  }
  return faults;
}

Faults source_list_faults(const SourceTree& tree) {
  Faults faults;
  std::map<std::string, Names> lists;
  std::map<std::string, std::string> first_with_name;
  for (const auto& [path, text] : tree) {
    if (file_name_of(path) == "CMakeLists.txt") {
      lists[folder_of(path)] = words_of_list(text);
      for (const char* glob : {"GLOB", "GLOB_RECURSE"}) {
        if (lists[folder_of(path)].count(glob) != 0)
          faults.push_back(place(path, 1) + "sources are listed by name, not by glob");
      }
      continue;
    }
    const auto [first, fresh] = first_with_name.emplace(file_name_of(path), path);
    if (!fresh) faults.push_back(place(path, 1) + "has the file name of " + first->second);
  }
  for (const auto& [path, text] : tree) {
    if (is_source(path) && !is_listed(lists, path)) faults.push_back(place(path, 1) + "is in no CMakeLists.txt");
  }
  return faults;
}

Faults forbidden_call_faults(const SourceTree& tree) {
  static const Names kCalls = {"exit",    "_exit",  "_Exit",         "quick_exit",    "abort",    "terminate",
                               "raise",   "printf", "fprintf",       "vprintf",       "vfprintf", "dprintf",
                               "puts",    "fputs",  "putchar",       "fputc",         "putc",     "perror",
                               "psignal", "getenv", "secure_getenv", "setenv",        "putenv",   "unsetenv",
                               "system",  "popen",  "thread",        "pthread_create"};
  static const Names kStreams = {"cout", "cerr", "clog", "wcout", "wcerr", "stdout", "stderr", "environ"};
  static const char* const kStartsThreads = "lib/base/library_thread.h";
  static const Names kHeaders = {"iostream", "print", "syslog.h"};
  Faults faults;
  for (const auto& [path, text] : tree) {
    if (!starts_with(path, "lib/") && !starts_with(path, "kernels/")) continue;
    if (ends_with(path, "CMakeLists.txt")) continue;
    for (const Include& include : includes_of(text)) {
      if (kHeaders.count(include.path) != 0) {
        faults.push_back(place(path, include.line) + "includes <" + include.path + ">");
      }
    }
    const std::string code = without_comments_and_literals(text);
    int line = 1;
    for (size_t i = 0; i < code.size();) {
      if (!is_name_char(code[i])) {
        line += code[i++] == '\n';
        continue;
      }
      size_t end = i;
      while (end < code.size() && is_name_char(code[end])) ++end;
      const std::string word = code.substr(i, end - i);
      const size_t next = code.find_first_not_of(" \t\n", end);
      const bool call = next != std::string::npos && code[next] == '(';
      // A member of that name is somebody's own function.
      const bool member = i > 0 && (code[i - 1] == '.' || (i > 1 && code[i - 2] == '-' && code[i - 1] == '>'));
      const bool allowed = member || (word == "thread" && path == kStartsThreads);
      if (!allowed && ((call && kCalls.count(word) != 0) || kStreams.count(word) != 0)) {
        faults.push_back(place(path, line) + "uses " + word);
      }
      i = end;
    }
  }
  return faults;
}

}  // namespace dsv41::test
