#include "backend/cpu/thread_pool.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "base/float_state.h"

namespace dsv41::test {
namespace {

using backend::ThreadPool;

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

  TEST_CASE("pools come and go without a job") {
    for (int i = 0; i < 50; ++i) ThreadPool pool(4, true);
  }

#if defined(__x86_64__)
  TEST_CASE("the floating-point state of the host is put back") {
    const unsigned before = _mm_getcsr();
    _mm_setcsr(0x7f80);  // round toward zero, nothing masked off but flags
    {
      FloatState state(true);
      CHECK(_mm_getcsr() == 0x9fc0u);
    }
    CHECK(_mm_getcsr() == 0x7f80u);
    _mm_setcsr(before);
  }
#endif
}

}  // namespace
}  // namespace dsv41::test
