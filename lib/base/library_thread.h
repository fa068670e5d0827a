// Threads of the library inside a host's process: they bear a name that debuggers and `top` show, and take none of the host's
// signals, whose handlers would otherwise run on them or leave the host's own sigwait without an answer. What a thread
// brings upon itself (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS) and a profiler's SIGPROF stay as the host has
// them.
#pragma once

#include <csignal>
#include <thread>
#include <utility>

namespace dsv41 {

// While it lives: threads that the calling thread makes inherit its mask.
class SignalsBlocked {
 public:
  SignalsBlocked() noexcept;
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

void name_this_thread(const char* name) noexcept;

// `name`: static, at most 15 bytes. std::system_error as std::thread has it, std::bad_alloc.
template <class Body>
std::thread start_thread(const char* name, Body body) {
  const SignalsBlocked blocked;
  return std::thread([name, body = std::move(body)] {
    name_this_thread(name);
    body();
  });
}

}  // namespace dsv41
