#include "backend/cpu/thread_pool.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <new>
#include <numeric>

#include "base/float_state.h"
#include "support/flush_denormals.h"
#include "support/sanitizers.h"

namespace dsv41::test {
namespace {

using backend::ThreadPool;
using std::chrono::milliseconds;

// Waits until the condition holds, half a minute at most. Returns whether it does.
template <class Condition>
bool comes_true(const Condition& condition) {
  for (int i = 0; i < 30000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return false;
}

int64_t thread_cpu_ns(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// The sum of 0 to n - 1, taken by the pool.
int64_t sum_by(ThreadPool& pool, int64_t n) {
  std::atomic<int64_t> sum{0};
  pool.run(n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) sum.fetch_add(i, std::memory_order_relaxed);
  });
  return sum.load();
}

TEST_SUITE("backend/thread_pool") {
  TEST_CASE("every item is done exactly once, for any number of threads and grain") {
    for (int n_threads : {1, 2, 3, 8}) {
      ThreadPool pool(n_threads, false);
      CHECK(pool.n_threads() == n_threads);
      for (int64_t n : {0, 1, 2, 7, 64, 1009}) {
        for (int64_t grain : {0, 1, 5, 2000}) {
          std::vector<int> done(static_cast<size_t>(n), 0);
          pool.run(n, grain, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) ++done[static_cast<size_t>(i)];
          });
          CHECK(std::all_of(done.begin(), done.end(), [](int count) { return count == 1; }));
        }
      }
    }
  }

  TEST_CASE("what a body throws on any thread ends the job and reaches the caller, and the next job runs") {
    for (int n_threads : {1, 3}) {
      ThreadPool pool(n_threads, false);
      for (int64_t bad = 0; bad < 40; ++bad) {
        CAPTURE(bad);
        CHECK_THROWS_AS(pool.run(40, 1,
                                 [&](int64_t begin, int64_t end) {
                                   if (begin <= bad && bad < end) throw std::bad_alloc();
                                 }),
                        std::bad_alloc);
        CHECK(sum_by(pool, 100) == 4950);
      }
      // On all threads at once.
      CHECK_THROWS_AS(pool.run(40, 1, [](int64_t, int64_t) { throw std::bad_alloc(); }), std::bad_alloc);
      CHECK(sum_by(pool, 100) == 4950);
    }
  }

  TEST_CASE("many short jobs from several threads at once all finish") {
    ThreadPool pool(3, false);
    std::vector<std::thread> hosts;
    std::vector<int64_t> sums(4, 0);
    for (size_t h = 0; h < sums.size(); ++h) {
      hosts.emplace_back([&, h] {
        for (int round = 0; round < 500; ++round) {
          std::vector<int64_t> values(37, 0);
          pool.run(37, 1, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) values[static_cast<size_t>(i)] = i;
          });
          sums[h] += std::accumulate(values.begin(), values.end(), int64_t{0});
        }
      });
    }
    for (std::thread& host : hosts) host.join();
    for (int64_t sum : sums) CHECK(sum == 500 * 37 * 36 / 2);
  }

  TEST_CASE("the jobs of two callers run at the same time, with a worker each") {
    ThreadPool pool(3, false);
    std::atomic<int> n_started{0};
    std::atomic<bool> met{true};
    const auto job = [&] {
      pool.run(2, 1, [&](int64_t, int64_t) {
        n_started.fetch_add(1);
        if (!comes_true([&] { return n_started.load() == 4; })) met.store(false);
      });
    };
    std::thread other(job);
    job();
    other.join();
    CHECK(met.load());
  }

  TEST_CASE("more callers than the pool keeps jobs all finish") {
    ThreadPool pool(4, false);
    std::vector<int64_t> sums(9, 0);
    std::vector<std::thread> hosts;
    for (int64_t& sum : sums) {
      hosts.emplace_back([&] {
        for (int i = 0; i < 200; ++i) sum += sum_by(pool, 20);
      });
    }
    for (std::thread& host : hosts) host.join();
    for (int64_t sum : sums) CHECK(sum == 200 * 190);
  }

  TEST_CASE("workers without a job go to sleep, and wake for the next one") {
    ThreadPool pool(3, false);
    for (int round = 0; round < 3; ++round) {
      CAPTURE(round);
      REQUIRE(comes_true([&] { return pool.n_sleeping() == 2; }));
      const int64_t before = thread_cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
      std::this_thread::sleep_for(milliseconds(30));
      CHECK(thread_cpu_ns(CLOCK_PROCESS_CPUTIME_ID) - before < 10'000'000);  // two that spin would take 60 ms
      std::atomic<int> n_started{0};
      std::atomic<bool> met{true};
      pool.run(3, 1, [&](int64_t, int64_t) {
        n_started.fetch_add(1);
        if (!comes_true([&] { return n_started.load() == 3; })) met.store(false);
      });
      CHECK(met.load());
    }
  }

  TEST_CASE("a caller that waits long for a worker uses no processor") {
    ThreadPool pool(2, false);
    const std::thread::id caller = std::this_thread::get_id();
    std::atomic<int> n_started{0};
    const int64_t before = thread_cpu_ns(CLOCK_THREAD_CPUTIME_ID);
    pool.run(2, 1, [&](int64_t, int64_t) {
      n_started.fetch_add(1);
      comes_true([&] { return n_started.load() == 2; });
      if (std::this_thread::get_id() != caller) std::this_thread::sleep_for(milliseconds(200));
    });
    CHECK(n_started.load() == 2);
    CHECK(thread_cpu_ns(CLOCK_THREAD_CPUTIME_ID) - before < 100'000'000);
  }

  TEST_CASE("several pools with more threads than processors finish and fall asleep") {
    std::vector<std::unique_ptr<ThreadPool>> pools;
    for (int i = 0; i < 3; ++i) pools.push_back(std::make_unique<ThreadPool>(8, false));
    std::vector<std::thread> hosts;
    std::vector<int64_t> sums(pools.size(), 0);
    for (size_t i = 0; i < pools.size(); ++i) {
      hosts.emplace_back([&, i] {
        for (int round = 0; round < 50; ++round) sums[i] += sum_by(*pools[i], 100);
      });
    }
    for (std::thread& host : hosts) host.join();
    for (size_t i = 0; i < pools.size(); ++i) {
      CHECK(sums[i] == 50 * 4950);
      CHECK(comes_true([&] { return pools[i]->n_sleeping() == 7; }));
    }
  }

#if !DSV41_THREAD_SANITIZER  // it keeps a list of threads, which fork() makes wrong
  TEST_CASE("the child of a fork works alone and leaves") {
    auto pool = std::make_unique<ThreadPool>(3, false);
    CHECK(sum_by(*pool, 100) == 4950);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      alarm(60);
      int n_pieces = 0;
      pool->run(100, 1, [&](int64_t, int64_t) { ++n_pieces; });
      const bool right =
          sum_by(*pool, 100) == 4950 && n_pieces == 1;  // it shares nothing with workers that are not there
      pool.reset();
      _exit(right ? 0 : 1);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    CHECK(sum_by(*pool, 100) == 4950);
  }
#endif

  TEST_CASE("pools come and go without a job") {
    for (int i = 0; i < 50; ++i) ThreadPool pool(4, true);
  }

  TEST_CASE("the floating-point state of the host is put back") {
    const uint64_t before = float_control();
    set_float_control(kTowardZero);
    {
      FloatState state(true);
      CHECK(float_control() == kKernelControl);
    }
    CHECK(float_control() == kTowardZero);
    set_float_control(before);
  }
}

}  // namespace
}  // namespace dsv41::test
