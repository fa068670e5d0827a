// Figures as ratios of the same minute: a subject and its reference take turns, round by round; absolute figures of a shared
// machine move by far more than their ratio does. A round during which the thread was preempted does not count, as long as
// enough others do.
//
//   ratio           best time of the reference / best time of the subject: 1 is as fast as the reference
//   ratio_median    the same of the medians
//   target          what `ratio` should be
//   rounds          that count
//   preempted       that were cut short by the scheduler; they count only where too few others are there
#pragma once

#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <vector>

namespace dsv41::bench {

class PairedRounds {
 public:
  // One round: both once. The subject's time is that of the iteration.
  template <class Reference, class Subject>
  void run(benchmark::State& state, Reference&& reference, Subject&& subject) {
    const int64_t before = n_preemptions();
    Pair pair;
    pair.reference = seconds_of(reference);
    pair.subject = seconds_of(subject);
    state.SetIterationTime(pair.subject);
    (n_preemptions() == before ? quiet_ : preempted_).push_back(pair);
  }

  void report(benchmark::State& state, double target) const {
    const bool enough = quiet_.size() >= kLeastRounds;
    std::vector<Pair> pairs = quiet_;
    if (!enough) pairs.insert(pairs.end(), preempted_.begin(), preempted_.end());
    if (pairs.empty()) return;
    const auto nth = [&](double Pair::*time, size_t n) {
      std::vector<double> times;
      for (const Pair& pair : pairs) times.push_back(pair.*time);
      std::nth_element(times.begin(), times.begin() + static_cast<ptrdiff_t>(n), times.end());
      return times[n];
    };
    const size_t median = pairs.size() / 2;
    state.counters["ratio"] = nth(&Pair::reference, 0) / nth(&Pair::subject, 0);
    state.counters["ratio_median"] = nth(&Pair::reference, median) / nth(&Pair::subject, median);
    state.counters["target"] = target;
    state.counters["best_ms"] = nth(&Pair::subject, 0) * 1e3;
    state.counters["rounds"] = static_cast<double>(pairs.size());
    state.counters["preempted"] = static_cast<double>(preempted_.size());
  }

 private:
  static constexpr size_t kLeastRounds = 3;
  struct Pair {
    double reference = 0, subject = 0;
  };
  template <class Body>
  static double seconds_of(Body& body) {
    const auto start = std::chrono::steady_clock::now();
    body();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  static int64_t n_preemptions() {
    rusage usage{};
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nivcsw;
  }
  std::vector<Pair> quiet_, preempted_;
};

}  // namespace dsv41::bench
