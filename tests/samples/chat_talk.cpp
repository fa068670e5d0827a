#include "samples/chat_talk.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <regex>

namespace dsv41::test {

Scratch::Scratch() {
  static int n_made = 0;
  const std::string name = "dsv41_chat_test_" + std::to_string(getpid()) + "_" + std::to_string(n_made++);
  path = std::filesystem::temp_directory_path() / name;
  std::filesystem::create_directories(path);
}

Scratch::~Scratch() {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

std::string Scratch::write(const std::string& name, const std::string& text) const {
  std::ofstream(path / name, std::ios::binary) << text;
  return (path / name).string();
}

std::vector<std::string> chat_command(const std::vector<std::string>& arguments, const std::string& model) {
  std::vector<std::string> command = {DSV41_CHAT, "--model", model, "--history", "", "--context", "4096"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

// Answers may hold
// a "> " too, but hardly behind nothing or a branch's name at the start of a line. The progress bars of a slow machine,
// which a terminal would have erased, are left out.
std::string wait_for_prompt(PtyProgram& program) {
  static const std::regex branch_name("(main|hats|hat|last|b|[0-9]+)?");
  static const std::regex progress_bar("reading the prompt( \\[[#.]*\\])? [0-9]+/[0-9]+ tokens");
  std::string text;
  for (;;) {
    REQUIRE_MESSAGE(program.expect("> "), program.transcript());
    text += program.before_match();
    const size_t line = text.rfind('\n') + 1;
    if (std::regex_match(text.substr(line), branch_name)) {
      REQUIRE(program.wait_for_line_editor());
      return std::regex_replace(text.substr(0, line), progress_bar, "");
    }
    text += "> ";
  }
}

std::string say(PtyProgram& program, const std::string& line) {
  program.type_line(line);
  REQUIRE_MESSAGE(program.expect(line + "\n"), program.transcript());
  return wait_for_prompt(program);
}

std::string start(PtyProgram& program) {
  REQUIRE_MESSAGE(program.expect("/help"), program.transcript());
  return wait_for_prompt(program);
}

void quit(PtyProgram& program) {
  program.type_line("/quit");
  CHECK(program.exit_code() == 0);
}

ProgramOutput kv_tool(const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {DSV41_KV};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_program(command);
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace dsv41::test
