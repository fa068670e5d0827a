#include "abi/public_header.h"

#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <sstream>

namespace dsv41::test {
namespace {

std::string without_comments(const std::string& text) {
  std::string code = text;
  for (size_t begin = 0; (begin = code.find("/*", begin)) != code.npos;) {
    const size_t end = code.find("*/", begin) + 2;
    for (size_t i = begin; i < end; ++i) {
      if (code[i] != '\n') code[i] = ' ';
    }
    begin = end;
  }
  return code;
}

std::string squeeze(const std::string& text) {
  std::istringstream words(text);
  std::string out;
  for (std::string word; words >> word;) out += (out.empty() ? "" : " ") + word;
  return out;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    part = squeeze(part);
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

}  // namespace

// Found by hand: std::regex recurses once per character, too deep for a struct of a hundred lines under a sanitizer.
PublicHeader PublicHeader::read_file() {
  PublicHeader header;
  std::ifstream file(DSV41_SOURCE_DIR "/include/dsv41/dsv41.h", std::ios::binary);
  header.text_.assign(std::istreambuf_iterator<char>(file), {});
  const std::string& code = header.code_ = without_comments(header.text_);

  const std::string function = "\nDSV41_API ", record = "\ntypedef struct ";
  for (size_t at = 0; (at = code.find(function, at)) != code.npos; ++at) {
    const size_t begin = at + function.size(), open = code.find('(', begin), close = code.find(");", open);
    const size_t name = code.find_last_of(" *", open) + 1;
    std::vector<std::string> parameters = split(code.substr(open + 1, close - open - 1), ',');
    if (parameters == std::vector<std::string>{"void"}) parameters.clear();
    header.functions_.push_back(
        {squeeze(code.substr(begin, name - begin)), code.substr(name, open - name), parameters});
  }
  for (size_t at = 0; (at = code.find(record, at)) != code.npos; ++at) {
    const size_t begin = at + record.size(), open = code.find_first_of("{;", begin);
    if (code[open] != '{') continue;  // an opaque handle
    const size_t close = code.find('}', open);
    header.structs_.push_back(
        {squeeze(code.substr(begin, open - begin)), split(code.substr(open + 1, close - open - 1), ';')});
  }
  return header;
}

const PublicHeader& PublicHeader::read() {
  static const PublicHeader header = read_file();
  return header;
}

std::string PublicHeader::example() const {
  std::istringstream lines(text_);
  std::string program, line;
  bool inside = false;
  while (std::getline(lines, line)) {
    if (line.find("#include <dsv41/dsv41.h>") != line.npos) inside = true;
    if (inside) {
      if (line.size() < 7) break;  // " *": the end of the program
      program += line.substr(7) + "\n";
    }
  }
  return program;
}

std::string declared_name(const std::string& declaration) {
  const size_t pointer = declaration.find("(*");
  if (pointer != declaration.npos) return declaration.substr(pointer + 2, declaration.find(')', pointer) - pointer - 2);
  const size_t end = std::min(declaration.find('['), declaration.size());
  const size_t begin = declaration.find_last_of(" *", end) + 1;
  return declaration.substr(begin, end - begin);
}

CommandResult run_command(const std::string& command) {
  CommandResult result;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (!pipe) return result;
  char part[4096];
  for (size_t n = 0; (n = fread(part, 1, sizeof part, pipe)) > 0;) result.output.append(part, n);
  const int status = pclose(pipe);
  result.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

}  // namespace dsv41::test
