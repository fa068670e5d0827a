// SideThread: a second thread that works through what its owner gives it while the owner does something else: a file's bytes
// are written or fetched beside the thread that makes or uses them. It is started with the first work. Where the system has
// no thread to give, begin() does the work itself: slower, never a failure.
//
// One owner, who calls from one thread at a time. Work is done in the order in which it was begun; behind work that failed
// nothing more is done.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "base/status.h"

namespace dsv41 {

class SideThread {
 public:
  SideThread() = default;
  SideThread(const SideThread&) = delete;
  SideThread& operator=(const SideThread&) = delete;
  // As finish().
  ~SideThread();

  // What `work` uses must live until it is done.
  void begin(std::function<Status()> work);
  // Waits until no more than n_left pieces of work are not done yet. The first failure of all so far; std::bad_alloc that
  // work threw comes out here. Once told, it is forgotten.
  Status wait(size_t n_left = 0);
  // Waits for all; what came of it is lost.
  void finish() noexcept;

 private:
  void run();
  void perform(const std::function<Status()>& work);

  std::thread thread_;
  bool no_thread_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by the mutex.
  std::deque<std::function<Status()>> queue_;  // the first one is being done
  bool closing_ = false, failed_ = false, no_memory_ = false;
  Status status_;
};

}  // namespace dsv41
