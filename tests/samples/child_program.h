// Programs run as a user runs them: by pipes, or on a pseudo terminal that a test types on.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace dsv41::test {

struct ProgramOutput {
  int exit_code = -1;  // 128 + signal number when a signal ended it
  std::string out;
  std::string err;
};

// Runs a program to its end, with `input` as its stdin.
ProgramOutput run_program(const std::vector<std::string>& arguments, const std::string& input = "");

class PtyProgram {
 public:
  static constexpr std::chrono::seconds kPatience{60};

  // stdin, stdout and stderr of the program are a terminal of 200 columns.
  explicit PtyProgram(const std::vector<std::string>& arguments);
  ~PtyProgram();  // ends the program if it still runs
  PtyProgram(const PtyProgram&) = delete;
  PtyProgram& operator=(const PtyProgram&) = delete;

  void type(const std::string& text);
  void type_line(const std::string& text) { type(text + "\r"); }
  void press_ctrl_c() { type("\x03"); }
  // Waits until the program reads single keys: what is typed before is echoed twice, by the terminal and by the editor.
  bool wait_for_line_editor();
  // Reads until `text` has come after the place of the last match; false when it does not within kPatience or the
  // program ends. Escape sequences are left out of what is compared.
  bool expect(const std::string& text);
  // What came between the last two matches.
  const std::string& before_match() const { return before_match_; }
  // Everything so far, for messages.
  const std::string& transcript() const { return screen_; }
  // Waits for the end; -1 when it does not come.
  int exit_code();

 private:
  bool read_some();

  int terminal_ = -1;
  int process_ = -1;
  std::string raw_;     // bytes that may be the start of an escape sequence
  std::string screen_;  // without escape sequences
  size_t matched_ = 0;
  std::string before_match_;
};

}  // namespace dsv41::test
