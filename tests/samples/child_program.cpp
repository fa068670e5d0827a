#include "samples/child_program.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <stdexcept>

namespace dsv41::test {
namespace {

[[noreturn]] void execute(const std::vector<std::string>& arguments) {
  std::vector<char*> pointers;
  for (const std::string& argument : arguments) pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);
  execv(pointers[0], pointers.data());
  _exit(127);
}

int exit_code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

struct Pipe {
  Pipe() {
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
  }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  void close_end(int i) {
    if (ends[i] >= 0) close(ends[i]);
    ends[i] = -1;
  }
  int ends[2] = {-1, -1};
};

// Appends what can be read; false at the end.
bool read_from(int file, std::string* text) {
  char buffer[4096];
  const ssize_t n = read(file, buffer, sizeof buffer);
  if (n > 0) text->append(buffer, static_cast<size_t>(n));
  return n > 0;
}

}  // namespace

ProgramOutput run_program(const std::vector<std::string>& arguments, const std::string& input) {
  Pipe in, out, err;
  const pid_t process = fork();
  if (process < 0) throw std::runtime_error("fork failed");
  if (process == 0) {
    dup2(in.ends[0], STDIN_FILENO);
    dup2(out.ends[1], STDOUT_FILENO);
    dup2(err.ends[1], STDERR_FILENO);
    execute(arguments);
  }
  in.close_end(0);
  out.close_end(1);
  err.close_end(1);
  // A program that ends early closes its stdin: that is an answer, not our end.
  signal(SIGPIPE, SIG_IGN);
  ProgramOutput result;
  size_t written = 0;
  while (out.ends[0] >= 0 || err.ends[0] >= 0) {
    if (written == input.size()) in.close_end(1);
    pollfd files[3] = {{out.ends[0], POLLIN, 0}, {err.ends[0], POLLIN, 0}, {in.ends[1], POLLOUT, 0}};
    if (poll(files, 3, -1) < 0 && errno != EINTR) break;
    if (files[0].revents && !read_from(out.ends[0], &result.out)) out.close_end(0);
    if (files[1].revents && !read_from(err.ends[0], &result.err)) err.close_end(0);
    if (files[2].revents) {
      const ssize_t n = write(in.ends[1], input.data() + written, input.size() - written);
      written = n < 0 ? input.size() : written + static_cast<size_t>(n);
    }
  }
  int status = 0;
  waitpid(process, &status, 0);
  result.exit_code = exit_code_of(status);
  return result;
}

PtyProgram::PtyProgram(const std::vector<std::string>& arguments) {
  winsize size{};
  size.ws_col = 200;
  size.ws_row = 50;
  process_ = forkpty(&terminal_, nullptr, nullptr, &size);
  if (process_ < 0) throw std::runtime_error("forkpty failed");
  if (process_ == 0) {
    setenv("TERM", "xterm", 1);
    execute(arguments);
  }
}

PtyProgram::~PtyProgram() {
  if (process_ > 0) {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  if (terminal_ >= 0) close(terminal_);
}

void PtyProgram::type(const std::string& text) {
  for (size_t written = 0; written < text.size();) {
    const ssize_t n = write(terminal_, text.data() + written, text.size() - written);
    if (n <= 0) return;
    written += static_cast<size_t>(n);
  }
}

bool PtyProgram::wait_for_line_editor() {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < end) {
    termios modes{};
    if (tcgetattr(terminal_, &modes) == 0 && (modes.c_lflag & ICANON) == 0) return true;
    poll(nullptr, 0, 5);
  }
  return false;
}

// Moves what is complete from raw_ to screen_: ESC [ parameters letter is dropped, so are carriage returns.
bool PtyProgram::read_some() {
  pollfd file{terminal_, POLLIN, 0};
  if (poll(&file, 1, 100) < 0 && errno != EINTR) return false;
  if (file.revents == 0) return true;
  if (!read_from(terminal_, &raw_)) return false;
  size_t i = 0;
  while (i < raw_.size()) {
    if (raw_[i] == '\x1b') {
      size_t end = i + 2;
      if (i + 1 < raw_.size() && raw_[i + 1] == '[')
        while (end < raw_.size() && !std::isalpha(static_cast<unsigned char>(raw_[end]))) ++end;
      else
        --end;
      if (end >= raw_.size()) break;
      i = end + 1;
      continue;
    }
    if (raw_[i] != '\r') screen_ += raw_[i];
    ++i;
  }
  raw_.erase(0, i);
  return true;
}

bool PtyProgram::expect(const std::string& text) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  for (bool open = true;; open = read_some()) {
    const size_t at = screen_.find(text, matched_);
    if (at != std::string::npos) {
      before_match_ = screen_.substr(matched_, at - matched_);
      matched_ = at + text.size();
      return true;
    }
    if (!open || std::chrono::steady_clock::now() > end) return false;
  }
}

int PtyProgram::exit_code() {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  int status = 0;
  while (waitpid(process_, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > end) return -1;
    read_some();  // a full terminal would hold the program
  }
  process_ = -1;
  return exit_code_of(status);
}

}  // namespace dsv41::test
