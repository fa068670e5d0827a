// The chat program in a test: how it is started, how a test talks with it, a folder for its files.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "samples/child_program.h"

namespace dsv41::test {

inline const std::string kNano = std::string(DSV41_SOURCE_DIR) + "/samples/nano";

// A folder of its own for each test case, gone afterwards.
struct Scratch {
  Scratch();
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  // Writes a file and gives its path.
  std::string write(const std::string& name, const std::string& text) const;
  std::filesystem::path path;
};

// dsv41-chat with these options, on a small context and without history.
std::vector<std::string> chat_command(const std::vector<std::string>& arguments, const std::string& model = kNano);

// Gives what the program says until it prompts: whole lines, without the branch's name in the prompt.
std::string wait_for_prompt(PtyProgram& program);
// Types a line at the prompt and gives what the program says until it prompts again.
std::string say(PtyProgram& program, const std::string& line);
// The talk up to its first prompt; gives what was said behind the greeting.
std::string start(PtyProgram& program);
void quit(PtyProgram& program);

ProgramOutput kv_tool(const std::vector<std::string>& arguments);

std::string bytes_of(const std::string& path);
void write_bytes(const std::string& path, const std::string& bytes);
bool contains(const std::string& text, const std::string& part);

}  // namespace dsv41::test
