// The text of include/dsv41/dsv41.h, taken apart far enough for the tests of its rules.
#pragma once

#include <string>
#include <vector>

namespace dsv41::test {

struct HeaderFunction {
  std::string result;                   // "dsv41_status", "void", "const char*"
  std::string name;                     // with prefix
  std::vector<std::string> parameters;  // as written; empty for (void)
};

struct HeaderStruct {
  std::string name;
  std::vector<std::string> fields;  // declarations without the semicolon
};

class PublicHeader {
 public:
  static const PublicHeader& read();  // once; kept

  const std::string& text() const { return text_; }
  const std::string& code() const { return code_; }  // comments blanked out
  const std::vector<HeaderFunction>& functions() const { return functions_; }
  const std::vector<HeaderStruct>& structs() const { return structs_; }  // in the header's order
  // The program in the head's comment.
  std::string example() const;

 private:
  static PublicHeader read_file();
  std::string text_, code_;
  std::vector<HeaderFunction> functions_;
  std::vector<HeaderStruct> structs_;
};

// Name that a field declaration declares: "x" of "uint64_t x[8]" and of "void (*x)(int)".
std::string declared_name(const std::string& declaration);

// Runs a shell command; returns its exit status and everything it wrote.
struct CommandResult {
  int exit_status = -1;
  std::string output;
};
CommandResult run_command(const std::string& command);

}  // namespace dsv41::test
