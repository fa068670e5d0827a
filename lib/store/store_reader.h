// StoreReader: calls that read from a volume, with a deadline. A call that takes longer is given up: whoever asked
// goes on without it, and the call, which owns all that it writes to, ends whenever it likes and is counted.
//
// Without a deadline the calls run where they are made and there are no threads. With one they run on up to
// kMostThreads threads, which start when they are needed; calls that hang keep theirs, so a disk that is dead costs
// each caller its deadline and no more threads than that.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/cancel.h"
#include "base/status.h"

namespace dsv41::store {

class StoreReader {
 public:
  static constexpr size_t kMostThreads = 4;

  // leave_behind: the destructor does not wait for calls that were given up; else it does.
  StoreReader(uint64_t deadline_ns, bool leave_behind);
  ~StoreReader();
  StoreReader(const StoreReader&) = delete;
  StoreReader& operator=(const StoreReader&) = delete;

  // What `call` answers, or DEADLINE or CANCELLED, after which it may go on: it must keep alive all that it uses. Any
  // thread, many at once.
  Status run(std::function<Status()> call, const CancelFlag* cancel);
  // Calls that ended after they had been given up.
  uint64_t late_completions() const;

 private:
  struct Job;
  struct State;
  static void work(std::shared_ptr<State> state, size_t thread);
  bool ensure_thread();

  const uint64_t deadline_ns_;
  const bool leave_behind_;
  std::shared_ptr<State> state_;      // threads that are left behind keep it
  std::vector<std::thread> threads_;  // guarded by the state's mutex
};

}  // namespace dsv41::store
