// Threads that each read one piece after the other: the engine that works everywhere.
#include <unistd.h>

#include <new>
#include <system_error>
#include <thread>

#include "base/library_thread.h"
#include "base/read_queue.h"

namespace dsv41 {
namespace {

class PreadThreads final : public ReadThreads {
 public:
  explicit PreadThreads(ReadQueue& queue) : queue_(queue) {}
  ~PreadThreads() override {
    queue_.close();
    for (std::thread& thread : threads_) thread.join();
  }

  // As many of `n` as the system gives; false: none.
  bool start(int n) {
    threads_.reserve(static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) {
      Result<HostMapping> bounce = HostMapping::create(kBounceBytes);
      if (!bounce.ok()) break;
      bounces_.push_back(std::move(bounce).value());
      try {
        threads_.push_back(start_thread("dsv41-read", [this, bounce = bounces_.back().data()] { run(bounce); }));
      } catch (const std::system_error&) {
        break;
      }
    }
    return !threads_.empty();
  }

  void wake() override {}  // they wait at the queue itself

 private:
  void run(std::byte* bounce) {
    ReadQueue::Operation operation;
    operation.bounce = bounce;
    while (queue_.wait_and_take(&operation)) {
      int64_t result;
      do {
        result = ::pread(operation.fd, operation.to, operation.bytes, static_cast<off_t>(operation.offset));
        if (result < 0) result = -errno;
      } while (!queue_.answer(&operation, result));
    }
  }

  ReadQueue& queue_;
  std::vector<HostMapping> bounces_;
  std::vector<std::thread> threads_;
};

}  // namespace

Result<std::unique_ptr<ReadThreads>> start_read_threads(ReadQueue& queue) {
  auto threads = std::make_unique<PreadThreads>(queue);
  if (!threads->start(queue.options().depth)) return Status(Code::kNO_MEMORY, "no thread for reading from disk");
  return std::unique_ptr<ReadThreads>(std::move(threads));
}

}  // namespace dsv41
