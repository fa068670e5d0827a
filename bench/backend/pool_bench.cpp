// What it costs to spread a job over the threads of a pool, beside a machine's own price of two threads that answer each
// other (paired_rounds.h).
//
//   BM_PoolForkJoin/threads:2        a job of two items, each of which waits for the other to have started, so that both
//                                    threads take part; reference: a word that two spinning threads hand to and fro
//   BM_PoolForkJoin/serial_us:N      a job of 64 items that takes N us on one thread; reference: it on one thread. `ratio`
//                                    is how many times faster the pool is
//   BM_PoolForkJoin/foreign, ...     the same beside another busy thread for each processor but one
//   BM_PoolForkJoin/runtimes:3, ...  the same beside two other pools of all processors that run such jobs without end
//   BM_PoolIdle                      processor time a second of a pool that has nothing to do, in us
#include <benchmark/benchmark.h>
#include <time.h>

#include <memory>
#include <thread>

#include "backend/cpu/thread_pool.h"
#include "paired_rounds.h"

namespace dsv41::bench {
namespace {

using backend::ThreadPool;

constexpr int kRoundTrips = 20000;  // a round

// Both sides only ever wait for the other's last word.
void hand_to_and_fro() {
  std::atomic<int> word{0};
  std::thread other([&] {
    for (int i = 0; i < kRoundTrips; ++i) {
      while (word.load(std::memory_order_acquire) != 2 * i + 1) {
      }
      word.store(2 * i + 2, std::memory_order_release);
    }
  });
  for (int i = 0; i < kRoundTrips; ++i) {
    word.store(2 * i + 1, std::memory_order_release);
    while (word.load(std::memory_order_acquire) != 2 * i + 2) {
    }
  }
  other.join();
}

void BM_PoolForkJoin(benchmark::State& state) {
  ThreadPool pool(2, true);
  PairedRounds rounds;
  const auto fork_and_join = [&] {
    for (int i = 0; i < kRoundTrips; ++i) {
      std::atomic<int> n_started{0};
      pool.run(2, 1, [&](int64_t, int64_t) {
        n_started.fetch_add(1);
        while (n_started.load(std::memory_order_acquire) != 2) {
        }
      });
    }
  };
  for (auto _ : state) rounds.run(state, hand_to_and_fro, fork_and_join);
  rounds.report(state, 1.0 / 5);
  state.counters["best_ns"] = state.counters["best_ms"] * 1e6 / kRoundTrips;
}
BENCHMARK(BM_PoolForkJoin)->Name("BM_PoolForkJoin/threads:2")->UseManualTime()->Iterations(30);

// ---- Jobs with work in them

constexpr int64_t kItems = 64;

// A chain of multiplications: the time depends on nothing else.
uint64_t multiply(int64_t n) {
  uint64_t value = 3;
  for (int64_t i = 0; i < n; ++i) value = value * value + 1;
  benchmark::DoNotOptimize(value);
  return value;
}

double multiplications_per_us() {
  static const double rate = [] {
    double best = 0;
    for (int i = 0; i < 20; ++i) {
      const auto start = std::chrono::steady_clock::now();
      multiply(1 << 17);
      best = std::max(
          best, (1 << 17) / (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() * 1e6));
    }
    return best;
  }();
  return rate;
}

// Threads that do the same thing until the end of their life.
class Background {
 public:
  template <class Work>
  Background(int n, const Work& work) {
    for (int i = 0; i < n; ++i) {
      threads_.emplace_back([this, work] {
        while (!stop_.load(std::memory_order_relaxed)) work();
      });
    }
  }
  ~Background() {
    stop_.store(true);
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

enum class Company : uint8_t { kNone, kForeign, kRuntimes };

void jobs_in_company(benchmark::State& state, Company company, double target) {
  const int n_threads = backend::usable_processors();
  const auto per_item = static_cast<int64_t>(static_cast<double>(state.range(0)) * multiplications_per_us() / kItems);
  const auto body = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) multiply(per_item);
  };
  const int64_t n_jobs = 20000 / state.range(0);  // 20 ms a round
  ThreadPool pool(n_threads, true);
  std::unique_ptr<Background> others;
  if (company == Company::kForeign) {
    others = std::make_unique<Background>(std::max(1, n_threads - 1), [] { multiply(1000); });
  } else if (company == Company::kRuntimes) {
    others = std::make_unique<Background>(2, [n_threads, body] {
      ThreadPool own(n_threads, true);
      for (int i = 0; i < 1000; ++i) own.run(kItems, 1, body);
    });
  }
  PairedRounds rounds;
  for (auto _ : state) {
    rounds.run(
        state,
        [&] {
          for (int64_t i = 0; i < n_jobs; ++i) body(0, kItems);
        },
        [&] {
          for (int64_t i = 0; i < n_jobs; ++i) pool.run(kItems, 1, body);
        });
  }
  rounds.report(state, target);
  state.counters["threads"] = n_threads;
}

// On free processors N threads are N times as fast, but for the dispatch; in company a third of one thread's speed is the
// least.
void register_jobs(const char* name, Company company, double target) {
  benchmark::RegisterBenchmark(name, jobs_in_company, company, target)
      ->ArgName("serial_us")
      ->Arg(10)
      ->Arg(100)
      ->Arg(1000)
      ->UseManualTime()
      ->Iterations(20);
}

const bool registered = [] {
  register_jobs("BM_PoolForkJoin", Company::kNone, 0.9 * backend::usable_processors());
  register_jobs("BM_PoolForkJoin/foreign", Company::kForeign, 1.0 / 3);
  register_jobs("BM_PoolForkJoin/runtimes:3", Company::kRuntimes, 1.0 / 3);
  return true;
}();

void BM_PoolIdle(benchmark::State& state) {
  ThreadPool pool(backend::usable_processors(), true);
  pool.run(kItems, 1, [](int64_t begin, int64_t end) { multiply(end - begin); });
  const auto process_us = [] {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
  };
  double used_us = 0;
  for (auto _ : state) {
    const double before = process_us();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    used_us += process_us() - before;
  }
  state.counters["us_per_second"] = used_us / (0.5 * static_cast<double>(state.iterations()));
}
BENCHMARK(BM_PoolIdle)->UseRealTime()->Iterations(1);

}  // namespace
}  // namespace dsv41::bench
