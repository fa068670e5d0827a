// The terminal: line editing with history (libedit), Ctrl-C, a progress bar, dimmed text.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct dsv41_cancel;

namespace dsv41_chat {

// --- Ctrl-C
// -------------------------------------------------------------------------------------------------------------

// From now on SIGINT triggers `cancel` (see watch_interrupts) and is remembered, instead of ending the program. A third
// SIGINT that nothing has taken notice of ends it: the way out when a call does not return.
void install_interrupt_handler();
// The token that SIGINT triggers; nullptr for none. It must live until it is replaced.
void watch_interrupts(dsv41_cancel* cancel);
// True if SIGINT came since the last call.
bool take_interrupt();

// --- Output
// -------------------------------------------------------------------------------------------------------------

bool stdin_is_terminal();
bool stderr_is_terminal();

// Text on stderr, dimmed where stderr is a terminal that can (and NO_COLOR is not set).
void print_dim(std::string_view text);

// A bar on stderr, drawn only on a terminal and only for work that takes longer than a moment; gone when done or
// destroyed.
class ProgressBar {
 public:
  explicit ProgressBar(std::string title) : title_(std::move(title)) {}
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void update(uint64_t done, uint64_t total, std::string_view unit);
  void clear();

 private:
  std::string title_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  bool drawn_ = false;
};

// --- Input
// --------------------------------------------------------------------------------------------------------------

enum class ReadResult { kLine, kEnd, kInterrupted };

class LineEditor {
 public:
  // `history_file`: loaded now, written on destruction; empty for none.
  explicit LineEditor(std::string history_file);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // One line without its line feed. kEnd: Ctrl-D or the end of the input; kInterrupted: Ctrl-C, the line is dropped.
  ReadResult read(const std::string& prompt, std::string* line);
  void remember(const std::string& line);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dsv41_chat
