// A forked process that works until it is killed, for tests of what a `kill -9` leaves on a real disk. It tells through a
// pipe how far it is; a message is there as a whole or not at all, and one that was told before the kill is read.
//
// The parent must have no other threads when it forks.
#pragma once

#include <doctest/doctest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

namespace dsv41::test {

// How often a test kills; DSV41_TEST_KILLS=n.
inline uint64_t n_kills(uint64_t otherwise) {
  const char* chosen = std::getenv("DSV41_TEST_KILLS");
  return chosen ? std::strtoull(chosen, nullptr, 10) : otherwise;
}

// The child's end of the pipe.
template <class Message>
class Teller {
  static_assert(sizeof(Message) <= PIPE_BUF && std::is_trivially_copyable_v<Message>);

 public:
  explicit Teller(int pipe) : pipe_(pipe) {}
  void tell(const Message& message) const {
    if (::write(pipe_, &message, sizeof message) != ssize_t{sizeof message}) ::_exit(3);
  }

 private:
  int pipe_;
};

// When the child is killed: so long after it was forked, or after the first message for which `is_awaited` says so.
template <class Message>
struct KillTime {
  std::chrono::microseconds delay{0};
  bool (*is_awaited)(const Message&) = nullptr;
};
template <class Message>
KillTime<Message> random_kill_time(std::mt19937_64& random) {
  return {std::chrono::microseconds(1000 + random() % 59000), nullptr};
}

// Runs work(teller), which must not end by itself, in a child, kills that, and returns what it has told.
template <class Message, class Work>
std::vector<Message> run_until_killed(const KillTime<Message>& when, Work work) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::minutes kLongest{2};  // until the awaited message
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::close(ends[0]);
    work(Teller<Message>(ends[1]));
    ::_exit(4);
  }
  ::close(ends[1]);
  std::vector<std::byte> bytes;
  bool is_awaiting = when.is_awaited != nullptr;
  Clock::time_point end = Clock::now() + (is_awaiting ? Clock::duration(kLongest) : Clock::duration(when.delay));
  size_t n_seen = 0;
  // False: no message can come any more.
  const auto read_some = [&] {
    std::byte piece[4096];
    const ssize_t n = ::read(ends[0], piece, sizeof piece);
    if (n > 0) bytes.insert(bytes.end(), piece, piece + n);
    return n > 0;
  };
  const auto message = [&](size_t i) {
    Message read;
    std::memcpy(&read, bytes.data() + i * sizeof read, sizeof read);
    return read;
  };
  for (bool goes_on = true; goes_on && Clock::now() < end;) {
    const auto rest = std::chrono::duration_cast<std::chrono::nanoseconds>(end - Clock::now()).count();
    const timespec patience = {static_cast<time_t>(rest / 1000000000), static_cast<long>(rest % 1000000000)};
    pollfd readable = {ends[0], POLLIN, 0};
    if (rest <= 0 || ::ppoll(&readable, 1, &patience, nullptr) <= 0) continue;
    goes_on = read_some();
    for (; is_awaiting && (n_seen + 1) * sizeof(Message) <= bytes.size(); ++n_seen) {
      if (!when.is_awaited(message(n_seen))) continue;
      is_awaiting = false;
      end = Clock::now() + when.delay;
    }
  }
  ::kill(child, SIGKILL);
  while (read_some()) {
  }
  ::close(ends[0]);
  int how = 0;
  REQUIRE(::waitpid(child, &how, 0) == child);
  // Not of its own accord: 3 and 4 are told above, others by its work.
  const int exit_code = WIFEXITED(how) ? WEXITSTATUS(how) : -1;
  REQUIRE(exit_code == -1);
  REQUIRE(WIFSIGNALED(how));
  REQUIRE(WTERMSIG(how) == SIGKILL);
  REQUIRE_FALSE(is_awaiting);
  std::vector<Message> told;
  for (size_t i = 0; (i + 1) * sizeof(Message) <= bytes.size(); ++i) told.push_back(message(i));
  return told;
}

}  // namespace dsv41::test
