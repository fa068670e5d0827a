#include "base/side_thread.h"

#include <new>
#include <system_error>
#include <utility>

#include "base/library_thread.h"

namespace dsv41 {

SideThread::~SideThread() {
  if (!thread_.joinable()) return;
  finish();
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void SideThread::begin(std::function<Status()> work) {
  if (!thread_.joinable() && !no_thread_) {
    try {
      thread_ = start_thread("dsv41-side", [this] { run(); });
    } catch (const std::system_error&) {
      no_thread_ = true;
    } catch (const std::bad_alloc&) {
      no_thread_ = true;
    }
  }
  if (no_thread_) {
    if (!failed_) perform(work);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  changed_.notify_all();
}

Status SideThread::wait(size_t n_left) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.size() <= n_left || failed_; });
  if (!failed_) return Status();
  changed_.wait(lock, [&] { return queue_.empty(); });
  failed_ = false;
  if (std::exchange(no_memory_, false)) throw std::bad_alloc();
  return std::exchange(status_, Status());
}

void SideThread::finish() noexcept {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.empty(); });
  failed_ = no_memory_ = false;
  status_ = Status();
}

void SideThread::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !queue_.empty() || closing_; });
    if (queue_.empty()) return;
    const std::function<Status()>& work = queue_.front();
    const bool skipped = failed_;
    lock.unlock();  // the others that are added leave the first one where it is
    if (!skipped) perform(work);
    lock.lock();
    queue_.pop_front();
    changed_.notify_all();
  }
}

void SideThread::perform(const std::function<Status()>& work) {
  Status status;
  bool no_memory = false;
  try {
    status = work();
  } catch (const std::bad_alloc&) {
    no_memory = true;
  }
  if (status.ok() && !no_memory) return;
  const std::lock_guard lock(mutex_);
  failed_ = true;
  no_memory_ = no_memory;
  status_ = std::move(status);
}

}  // namespace dsv41
