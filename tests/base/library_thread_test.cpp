#include "base/library_thread.h"

#include <doctest/doctest.h>
#include <pthread.h>

#include <string>

namespace dsv41::test {
namespace {

sigset_t own_mask() {
  sigset_t mask;
  REQUIRE(pthread_sigmask(SIG_BLOCK, nullptr, &mask) == 0);
  return mask;
}

TEST_SUITE("base/library_thread") {
  TEST_CASE("a thread has its name and none of the host's signals, and who starts it keeps his mask") {
    sigset_t usr2, host_mask;
    sigemptyset(&usr2);
    sigaddset(&usr2, SIGUSR2);
    REQUIRE(pthread_sigmask(SIG_BLOCK, &usr2, &host_mask) == 0);
    sigset_t mask;
    char name[16] = {};
    std::thread thread = start_thread("dsv41-test", [&] {
      pthread_sigmask(SIG_BLOCK, nullptr, &mask);
      pthread_getname_np(pthread_self(), name, sizeof name);
    });
    thread.join();
    CHECK(std::string(name) == "dsv41-test");
    for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGALRM, SIGCHLD, SIGPIPE}) {
      CAPTURE(signal);
      CHECK(sigismember(&mask, signal) == 1);
    }
    for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF}) {
      CAPTURE(signal);
      CHECK(sigismember(&mask, signal) == 0);
    }
    const sigset_t after = own_mask();
    CHECK(sigismember(&after, SIGUSR2) == 1);
    CHECK(sigismember(&after, SIGTERM) == sigismember(&host_mask, SIGTERM));
    REQUIRE(pthread_sigmask(SIG_SETMASK, &host_mask, nullptr) == 0);
  }
}

}  // namespace
}  // namespace dsv41::test
