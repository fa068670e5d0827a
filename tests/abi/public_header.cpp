#include "abi/public_header.h"

#include <sys/wait.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <regex>
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

PublicHeader PublicHeader::read_file() {
  PublicHeader header;
  std::ifstream file(DSV41_SOURCE_DIR "/include/dsv41/dsv41.h", std::ios::binary);
  header.text_.assign(std::istreambuf_iterator<char>(file), {});
  header.code_ = without_comments(header.text_);
  const std::regex function("\\nDSV41_API ([^;(]*?)(dsv41_\\w+)\\(([^;]*)\\);");
  for (std::sregex_iterator it(header.code_.begin(), header.code_.end(), function), end; it != end; ++it) {
    std::vector<std::string> parameters = split((*it)[3], ',');
    if (parameters == std::vector<std::string>{"void"}) parameters.clear();
    header.functions_.push_back({squeeze((*it)[1]), (*it)[2], parameters});
  }
  const std::regex record("typedef struct (dsv41_\\w+) \\{([^}]*)\\}");
  for (std::sregex_iterator it(header.code_.begin(), header.code_.end(), record), end; it != end; ++it) {
    header.structs_.push_back({(*it)[1], split((*it)[2], ';')});
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
  std::smatch match;
  if (std::regex_search(declaration, match, std::regex("\\(\\*(\\w+)\\)\\("))) return match[1];
  if (std::regex_search(declaration, match, std::regex("(\\w+)(\\[\\d+\\])?$"))) return match[1];
  return "";
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
