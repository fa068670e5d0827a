// The kernel's ring of reads, fed and emptied by one thread. The thread sleeps in the ring only: a read of an event counter
// that is always in flight wakes it when the queue has something new.
#include "base/read_queue.h"

#ifdef DSV41_HAS_LIBURING

#include <liburing.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <system_error>
#include <thread>

#include "base/library_thread.h"

namespace dsv41 {
namespace {

constexpr std::chrono::milliseconds kRetryPause(1);

// Has the kernel rings, may this process have one, and can it read with plain addresses (Linux 5.6)?
bool can_read(io_uring* ring) {
  io_uring_probe* probe = io_uring_get_probe_ring(ring);
  const bool can = probe && io_uring_opcode_supported(probe, IORING_OP_READ);
  if (probe) io_uring_free_probe(probe);
  return can;
}

class RingThread final : public ReadThreads {
 public:
  explicit RingThread(ReadQueue& queue) : queue_(queue) {}
  ~RingThread() override {
    if (thread_.joinable()) {
      queue_.close();
      wake();
      thread_.join();
    }
    if (has_ring_) io_uring_queue_exit(&ring_);
  }

  Status start() {
    const int depth = queue_.options().depth;
    const int error =
        queue_.options().refuse_ring ? -EPERM : io_uring_queue_init(static_cast<unsigned>(depth) + 1, &ring_, 0);
    if (error < 0) return Status(Code::kUNSUPPORTED, "the system refuses io_uring", -error);
    has_ring_ = true;
    if (!can_read(&ring_)) return Status(Code::kUNSUPPORTED, "io_uring of this system is too old");
    news_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC));
    if (!news_.is_open()) return Status(Code::kUNSUPPORTED, "no event counter for io_uring", errno);
    DSV41_TRY_ASSIGN(bounce_, HostMapping::create(static_cast<uint64_t>(depth) * kBounceBytes));
    operations_.resize(static_cast<size_t>(depth));
    for (size_t i = 0; i < operations_.size(); ++i) {
      operations_[i].bounce = bounce_.data() + i * kBounceBytes;
      free_.push_back(&operations_[i]);
    }
    try {
      thread_ = start_thread("dsv41-ring", [this] { run(); });
    } catch (const std::system_error&) {
      return Status(Code::kUNSUPPORTED, "no thread for io_uring");
    }
    return {};
  }

  void wake() override {
    const uint64_t one = 1;
    static_cast<void>(retry_interrupted([&] { return ::write(news_.get(), &one, sizeof one); }));
  }

 private:
  void run() {
    listen();
    while (!queue_.is_closed() || free_.size() < operations_.size()) {
      fill();
      // What could not be handed over for want of memory stays in the ring for the next time.
      const int error = io_uring_submit_and_wait(&ring_, 1);
      if (error < 0 && error != -EINTR) std::this_thread::sleep_for(kRetryPause);
      reap();
    }
  }

  // One slot of the ring is for this.
  void listen() {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    io_uring_prep_read(entry, news_.get(), &news_count_, sizeof news_count_, 0);
    io_uring_sqe_set_data(entry, nullptr);
  }

  void fill() {
    while (!free_.empty() && queue_.take(free_.back())) {
      ReadQueue::Operation* operation = free_.back();
      free_.pop_back();
      submit(operation);
    }
  }

  void submit(ReadQueue::Operation* operation) {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);  // as many entries as operations: there is one
    io_uring_prep_read(entry, operation->fd, operation->to, static_cast<unsigned>(operation->bytes), operation->offset);
    io_uring_sqe_set_data(entry, operation);
  }

  void reap() {
    io_uring_cqe* done = nullptr;
    while (io_uring_peek_cqe(&ring_, &done) == 0) {
      auto* operation = static_cast<ReadQueue::Operation*>(io_uring_cqe_get_data(done));
      const int result = done->res;
      io_uring_cqe_seen(&ring_, done);
      if (!operation) {
        listen();
      } else if (queue_.answer(operation, result)) {
        free_.push_back(operation);
      } else {
        submit(operation);
      }
    }
  }

  ReadQueue& queue_;
  io_uring ring_{};
  bool has_ring_ = false;
  FileDescriptor news_;
  uint64_t news_count_ = 0;
  HostMapping bounce_;
  std::vector<ReadQueue::Operation> operations_;
  std::vector<ReadQueue::Operation*> free_;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<ReadThreads>> start_ring(ReadQueue& queue) {
  auto ring = std::make_unique<RingThread>(queue);
  DSV41_TRY(ring->start());
  return std::unique_ptr<ReadThreads>(std::move(ring));
}

}  // namespace dsv41

#else

namespace dsv41 {

Result<std::unique_ptr<ReadThreads>> start_ring(ReadQueue&) {
  return Status(Code::kUNSUPPORTED, "built without liburing");
}

}  // namespace dsv41

#endif
