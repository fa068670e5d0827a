#include "chat_terminal.h"

#include <dsv41/dsv41.h>
#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cwchar>

namespace dsv41_chat {
namespace {

std::atomic<dsv41_cancel*> g_cancel{nullptr};
std::atomic<int> g_interrupts{0};  // SIGINTs that nothing has taken notice of
static_assert(std::atomic<dsv41_cancel*>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

constexpr int kMostInterrupts = 3;
constexpr int kInterruptedExit = 130;

void on_sigint(int) {
  if (g_interrupts.fetch_add(1) + 1 >= kMostInterrupts) _exit(kInterruptedExit);
  dsv41_cancel_trigger(g_cancel.load());
}

bool can_dim() {
  const char* term = std::getenv("TERM");
  const char* no_color = std::getenv("NO_COLOR");
  return stderr_is_terminal() && term && std::strcmp(term, "dumb") != 0 && !(no_color && *no_color);
}

size_t terminal_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

void install_interrupt_handler() {
  struct sigaction action {};
  action.sa_handler = on_sigint;  // no SA_RESTART: reading a line ends with EINTR
  sigaction(SIGINT, &action, nullptr);
}

void watch_interrupts(dsv41_cancel* cancel) { g_cancel.store(cancel); }

bool take_interrupt() { return g_interrupts.exchange(0) > 0; }

bool stdin_is_terminal() { return isatty(STDIN_FILENO) == 1; }
bool stderr_is_terminal() { return isatty(STDERR_FILENO) == 1; }

void print_dim(std::string_view text) {
  static const bool dim = can_dim();
  if (dim) std::fputs("\033[2m", stderr);
  std::fwrite(text.data(), 1, text.size(), stderr);
  if (dim) std::fputs("\033[0m", stderr);
  std::fflush(stderr);
}

void ProgressBar::update(uint64_t done, uint64_t total, std::string_view unit) {
  constexpr auto kMoment = std::chrono::milliseconds(300);
  if (!stderr_is_terminal() || std::chrono::steady_clock::now() - start_ < kMoment || total == 0) return;
  const std::string figures = " " + std::to_string(done) + "/" + std::to_string(total) + " " + std::string(unit);
  const size_t width = terminal_width();
  const size_t rest = title_.size() + figures.size() + 4;
  std::string bar;
  if (width > rest + 8) {
    const size_t cells = std::min<size_t>(width - rest, 40);
    const size_t full =
        static_cast<size_t>(static_cast<double>(done) / static_cast<double>(total) * static_cast<double>(cells));
    bar = " [" + std::string(std::min(full, cells), '#') + std::string(cells - std::min(full, cells), '.') + "]";
  }
  std::fprintf(stderr, "\r\033[K%s%s%s", title_.c_str(), bar.c_str(), figures.c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void ProgressBar::clear() {
  if (drawn_) std::fputs("\r\033[K", stderr);
  if (drawn_) std::fflush(stderr);
  drawn_ = false;
}

// libedit with a reader of our own: its own one retries a read that a signal ended, so Ctrl-C would not come through.
struct LineEditor::State {
  EditLine* edit = nullptr;
  History* history = nullptr;
  HistEvent event{};
  std::string history_file;
  std::string prompt;

  static State& of(EditLine* edit) {
    void* data = nullptr;
    el_get(edit, EL_CLIENTDATA, &data);
    return *static_cast<State*>(data);
  }

  static char* give_prompt(EditLine* edit) { return of(edit).prompt.data(); }

  // 1: a character; 0: end of input; -1: interrupted or failed.
  static int read_character(EditLine*, wchar_t* out) {
    std::mbstate_t state{};
    for (;;) {
      char byte = 0;
      const ssize_t n = wait_for_input() ? ::read(STDIN_FILENO, &byte, 1) : -1;
      if (n <= 0) return static_cast<int>(n);
      const size_t used = std::mbrtowc(out, &byte, 1, &state);
      if (used == static_cast<size_t>(-2)) continue;  // more bytes to come
      if (used == static_cast<size_t>(-1)) *out = L'\xfffd';
      return 1;
    }
  }

  // False when SIGINT comes first. SIGINT is let through only while waiting, so none can slip in between the look at
  // the count and the wait.
  static bool wait_for_input() {
    sigset_t interrupt, before;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    sigprocmask(SIG_BLOCK, &interrupt, &before);
    pollfd input{STDIN_FILENO, POLLIN, 0};
    while (g_interrupts.load() == 0 && ppoll(&input, 1, nullptr, &before) < 0 && errno == EINTR) {
    }  // another signal, a resize for example
    sigprocmask(SIG_SETMASK, &before, nullptr);
    return g_interrupts.load() == 0;
  }
};

LineEditor::LineEditor(std::string history_file) : state_(std::make_unique<State>()) {
  // libedit reads UTF-8 only in a UTF-8 locale, and containers often have none set.
  std::setlocale(LC_CTYPE, "");
  if (std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
  state_->history_file = std::move(history_file);
  state_->history = history_init();
  history(state_->history, &state_->event, H_SETSIZE, 1000);
  history(state_->history, &state_->event, H_SETUNIQUE, 1);
  if (!state_->history_file.empty()) history(state_->history, &state_->event, H_LOAD, state_->history_file.c_str());
  state_->edit = el_init("dsv41-chat", stdin, stdout, stderr);
  el_set(state_->edit, EL_CLIENTDATA, state_.get());
  el_set(state_->edit, EL_EDITOR, "emacs");
  el_set(state_->edit, EL_HIST, history, state_->history);
  el_set(state_->edit, EL_PROMPT, State::give_prompt);
  el_wset(state_->edit, EL_GETCFN, State::read_character);
  el_source(state_->edit, nullptr);
}

LineEditor::~LineEditor() {
  if (!state_->history_file.empty()) history(state_->history, &state_->event, H_SAVE, state_->history_file.c_str());
  el_end(state_->edit);
  history_end(state_->history);
}

ReadResult LineEditor::read(const std::string& prompt, std::string* line) {
  state_->prompt = prompt;
  el_resize(state_->edit);
  int n_characters = 0;
  const char* text = el_gets(state_->edit, &n_characters);
  if (take_interrupt()) return ReadResult::kInterrupted;
  if (!text || n_characters <= 0) return ReadResult::kEnd;
  *line = text;
  if (!line->empty() && line->back() == '\n') line->pop_back();
  return ReadResult::kLine;
}

void LineEditor::remember(const std::string& line) { history(state_->history, &state_->event, H_ENTER, line.c_str()); }

}  // namespace dsv41_chat
