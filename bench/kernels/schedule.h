// What a kernel would take on more threads than this machine has: its pieces, cut as the thread pool would cut them for n
// threads, run and timed one after the other, and then dealt out to n simulated threads that each take the next one when they
// are free. Memory is as fast for each of n threads as for one here; what the schedule shows is how well the work splits, not
// what a memory bus allows.
#pragma once

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <queue>
#include <string>
#include <vector>

#include "backend/cpu/thread_pool.h"
#include "base/parallel.h"

namespace dsv41::bench {

struct Schedule {
  double work_us = 0;      // on one thread
  double serial_us = 0;    // of these, not spread over threads
  double makespan_us = 0;  // on n threads
  double longest_us = 0;   // serial parts and the longest piece of each job: what no number of threads goes below
};

class TracingParallel final : public Parallel {
 public:
  explicit TracingParallel(int n_threads) : n_threads_(n_threads) {}

  void run(int64_t n_items, int64_t grain, RangeBody body) override {
    const double start = now_us();
    if (last_end_us_ > 0) total_.serial_us += std::max(0.0, start - last_end_us_ - kClockUs);
    grain = std::max<int64_t>(1, grain);
    std::vector<double> pieces;
    for (int64_t begin = 0; begin < n_items;) {
      const int64_t end = begin + backend::next_piece(n_items - begin, grain, n_threads_);
      const double before = now_us();
      body(begin, end);
      pieces.push_back(std::max(0.0, now_us() - before - kClockUs));
      begin = end;
    }
    if (pieces.size() == 1) {
      total_.serial_us += pieces[0];
    } else {
      deal_out(pieces);
    }
    last_end_us_ = now_us();
  }
  int n_threads() const override { return n_threads_; }

  Schedule per_iteration(int64_t n) const {
    const double scale = 1.0 / static_cast<double>(std::max<int64_t>(n, 1));
    return {(total_.work_us + total_.serial_us) * scale, total_.serial_us * scale,
            (total_.makespan_us + total_.serial_us) * scale, (total_.longest_us + total_.serial_us) * scale};
  }

 private:
  // Half of BM_PoolForkJoin until a worker begins, half until the caller knows that it has ended; a contended counter.
  static constexpr double kStartUs = 0.35, kEndUs = 0.35, kClaimUs = 0.05;
  static constexpr double kClockUs = 0.2;  // of one look at the thread's clock

  // Time of this thread: being preempted does not count.
  static double now_us() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
  }

  void deal_out(const std::vector<double>& pieces) {
    std::priority_queue<double, std::vector<double>, std::greater<>> free_at;
    free_at.push(0);
    for (int i = 1; i < n_threads_; ++i) free_at.push(kStartUs);
    double counter_free = 0, end = 0, longest = 0;
    for (double piece : pieces) {
      const double claimed = std::max(free_at.top(), counter_free) + kClaimUs;
      free_at.pop();
      counter_free = claimed;
      free_at.push(claimed + piece);
      end = std::max(end, claimed + piece);
      longest = std::max(longest, piece);
      total_.work_us += piece;
    }
    total_.makespan_us += end + kEndUs;
    total_.longest_us += longest;
  }

  const int n_threads_;
  Schedule total_;
  double last_end_us_ = 0;
};

// The schedules of this process so far, by line ("linear/wq_b/1 row") and number of threads.
inline std::map<std::pair<std::string, int>, Schedule>& schedules() {
  static std::map<std::pair<std::string, int>, Schedule> all;
  return all;
}

}  // namespace dsv41::bench
