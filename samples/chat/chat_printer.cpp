#include "chat_printer.h"

#include <cstdio>

#include "chat_terminal.h"

namespace dsv41_chat {

void ReplyPrinter::print(std::string_view text, bool reasoning) {
  if (reasoning) {
    print_dim(text);
    last_ = Last::kReasoning;
    return;
  }
  if (last_ == Last::kReasoning) finish();
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  last_ = Last::kAnswer;
}

void ReplyPrinter::finish() {
  if (last_ == Last::kReasoning) std::fputc('\n', stderr);
  if (last_ == Last::kAnswer) std::fputc('\n', stdout);
  std::fflush(stdout);
  last_ = Last::kNothing;
}

}  // namespace dsv41_chat
