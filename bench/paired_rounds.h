// Figures as ratios of the same minute: a subject and its reference take turns, round by round; absolute figures of a shared
// machine move by far more than their ratio does. A round during which a thread of the program was preempted, or the host
// took a processor away (steal time), does not count, as long as enough others do.
//
//   ratio           best time of the reference / best time of the subject: 1 is as fast as the reference
//   ratio_median    the same of the medians
//   target          what `ratio` should be; bench/targets.tsv has those of all lines
//   best_ms, best_ns    of the subject: of a round, of a call
//   reference_ns    of a call of the reference, the best
//   rounds          that count
//   preempted       that were cut short; they count only where too few others are there
#pragma once

#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

namespace dsv41::bench {

class PairedRounds {
 public:
  // One round: both once. The subject's time is that of the iteration.
  template <class Reference, class Subject>
  void run(benchmark::State& state, Reference&& reference, Subject&& subject) {
    const Disturbance before = disturbance();
    Pair pair;
    pair.reference = seconds_of(reference);
    pair.subject = seconds_of(subject);
    state.SetIterationTime(pair.subject);
    (disturbance() == before ? quiet_ : preempted_).push_back(pair);
  }

  void report(benchmark::State& state, double target) const {
    report(state, 1, 1);
    state.counters["target"] = target;
  }

  // With several calls of each body in a round.
  void report(benchmark::State& state, int64_t n_reference, int64_t n_subject) const {
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
    const double calls = static_cast<double>(n_subject) / static_cast<double>(n_reference);
    state.counters["ratio"] = calls * nth(&Pair::reference, 0) / nth(&Pair::subject, 0);
    state.counters["ratio_median"] = calls * nth(&Pair::reference, median) / nth(&Pair::subject, median);
    state.counters["best_ms"] = nth(&Pair::subject, 0) * 1e3;
    state.counters["best_ns"] = nth(&Pair::subject, 0) * 1e9 / static_cast<double>(n_subject);
    state.counters["reference_ns"] = nth(&Pair::reference, 0) * 1e9 / static_cast<double>(n_reference);
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
  // What moves when somebody else had a processor: involuntary switches of all threads, steal time of the machine in ticks.
  struct Disturbance {
    long n_preemptions = 0;
    unsigned long long steal = 0;
    bool operator==(const Disturbance&) const = default;
  };
  static Disturbance disturbance() {
    Disturbance out;
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    out.n_preemptions = usage.ru_nivcsw;
    if (std::FILE* file = std::fopen("/proc/stat", "r")) {  // cpu user nice system idle iowait irq softirq steal
      if (std::fscanf(file, "cpu %*u %*u %*u %*u %*u %*u %*u %llu", &out.steal) != 1) out.steal = 0;
      std::fclose(file);
    }
    return out;
  }
  std::vector<Pair> quiet_, preempted_;
};

inline constexpr double kRoundSeconds = 0.02;

// How many calls of a short body take half a round.
template <class Body>
int64_t calls_per_round(Body& body) {
  for (int64_t n = 1;; n *= 2) {
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < n; ++i) body();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (seconds > kRoundSeconds / 16) {
      return std::max<int64_t>(1, static_cast<int64_t>(kRoundSeconds / 2 / seconds * static_cast<double>(n)));
    }
  }
}

// A whole line of two short bodies: each as often as takes half a round, in turns.
template <class Reference, class Subject>
void compare_in_rounds(benchmark::State& state, Reference&& reference, Subject&& subject) {
  const int64_t n_reference = calls_per_round(reference), n_subject = calls_per_round(subject);
  PairedRounds rounds;
  for (auto _ : state) {
    rounds.run(
        state,
        [&] {
          for (int64_t i = 0; i < n_reference; ++i) reference();
        },
        [&] {
          for (int64_t i = 0; i < n_subject; ++i) subject();
        });
  }
  rounds.report(state, n_reference, n_subject);
}

// A line of such rounds: half a second.
inline void in_rounds(benchmark::internal::Benchmark* line) {
  line->Unit(benchmark::kMillisecond)->UseManualTime()->Iterations(25);
}

}  // namespace dsv41::bench
