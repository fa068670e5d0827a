#include "store/store_reader.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>
#include <system_error>
#include <utility>

#include "base/library_thread.h"

namespace dsv41::store {
namespace {

// How late a cancel may be noticed: its flag cannot be waited for.
constexpr std::chrono::milliseconds kCancelPoll(5);
constexpr uint64_t kLongestDeadlineNs = 100'000'000'000'000'000;  // three years: an addition to now cannot overflow

}  // namespace

struct StoreReader::Job {
  std::function<Status()> call;
  Status result;
  bool running = false, done = false, given_up = false, out_of_memory = false;
};

struct StoreReader::State {
  std::mutex mutex;
  std::condition_variable work, done;
  std::deque<std::shared_ptr<Job>> queue;
  size_t n_idle = 0;
  uint64_t n_late = 0;
  bool closing = false;
  struct Thread {
    std::shared_ptr<Job> job;
    bool ended = false;
  };
  std::vector<Thread> threads;
};

StoreReader::StoreReader(uint64_t deadline_ns, bool leave_behind)
    : deadline_ns_(std::min(deadline_ns, kLongestDeadlineNs)),
      leave_behind_(leave_behind),
      state_(std::make_shared<State>()) {
  threads_.reserve(kMostThreads);
  state_->threads.reserve(kMostThreads);
}

StoreReader::~StoreReader() {
  std::unique_lock lock(state_->mutex);
  state_->closing = true;
  state_->work.notify_all();
  for (size_t i = 0; i < threads_.size(); ++i) {
    // Nobody waits for a call any more, so one that runs was given up.
    const State::Thread& thread = state_->threads[i];
    state_->done.wait(lock, [&] { return thread.ended || (leave_behind_ && thread.job); });
    if (!thread.ended) threads_[i].detach();
  }
  lock.unlock();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

uint64_t StoreReader::late_completions() const {
  std::lock_guard lock(state_->mutex);
  return state_->n_late;
}

Status StoreReader::run(std::function<Status()> call, const CancelFlag* cancel) {
  if (cancel && cancel->triggered()) return Status(Code::kCANCELLED, "read");
  if (deadline_ns_ == 0) return call();
  const auto job = std::make_shared<Job>();
  job->call = std::move(call);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::nanoseconds(deadline_ns_);
  std::unique_lock lock(state_->mutex);
  if (!ensure_thread()) {
    lock.unlock();
    return job->call();
  }
  state_->queue.push_back(job);
  state_->work.notify_one();

  bool cancelled = false;
  while (!job->done && !cancelled) {
    const auto now = std::chrono::steady_clock::now();
    if (now >= deadline) break;
    state_->done.wait_until(lock, cancel ? std::min(deadline, now + kCancelPoll) : deadline);
    cancelled = cancel && cancel->triggered();
  }
  if (job->done) {
    if (job->out_of_memory) throw std::bad_alloc();
    return std::move(job->result);
  }
  job->given_up = true;
  if (!job->running) state_->queue.erase(std::find(state_->queue.begin(), state_->queue.end(), job));
  return cancelled ? Status(Code::kCANCELLED, "read") : Status(Code::kDEADLINE, "read takes too long");
}

// False: there is none, and none can be had.
bool StoreReader::ensure_thread() {
  if (state_->n_idle > state_->queue.size() || threads_.size() == kMostThreads) return true;
  const size_t i = threads_.size();
  try {
    state_->threads.emplace_back();
    threads_.push_back(start_thread("dsv41-st-read", [state = state_, i] { work(state, i); }));
  } catch (const std::system_error&) {
    state_->threads.resize(i);
    return i > 0;
  } catch (const std::bad_alloc&) {
    state_->threads.resize(i);
    throw;
  }
  return true;
}

void StoreReader::work(std::shared_ptr<State> state, size_t thread) {
  std::unique_lock lock(state->mutex);
  for (;;) {
    ++state->n_idle;
    state->work.wait(lock, [&] { return state->closing || !state->queue.empty(); });
    --state->n_idle;
    if (state->queue.empty()) break;
    const std::shared_ptr<Job> job = std::move(state->queue.front());
    state->queue.pop_front();
    job->running = true;
    state->threads[thread].job = job;
    lock.unlock();
    Status result;
    bool out_of_memory = false;
    try {
      result = job->call();
    } catch (const std::bad_alloc&) {
      out_of_memory = true;
    }
    job->call = nullptr;  // what it kept goes before anybody hears that it has ended
    lock.lock();
    job->result = std::move(result);
    job->out_of_memory = out_of_memory;
    job->done = true;
    if (job->given_up) ++state->n_late;
    state->threads[thread].job = nullptr;
    state->done.notify_all();
  }
  state->threads[thread].ended = true;
  state->done.notify_all();
}

}  // namespace dsv41::store
