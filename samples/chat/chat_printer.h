// ReplyPrinter: a reply as it comes, the answer on stdout and the reasoning on stderr.
#pragma once

#include <string_view>

namespace dsv41_chat {

class ReplyPrinter {
 public:
  ReplyPrinter() = default;
  ~ReplyPrinter() { finish(); }
  ReplyPrinter(const ReplyPrinter&) = delete;
  ReplyPrinter& operator=(const ReplyPrinter&) = delete;

  void print(std::string_view text, bool reasoning);
  // Ends the line that the reply left open.
  void finish();

 private:
  enum class Last { kNothing, kReasoning, kAnswer };
  Last last_ = Last::kNothing;
};

}  // namespace dsv41_chat
