// ReadQueue: what both engines of an AsyncReader share: files, pieces that wait, what is in flight, and what an answer of the
// system means. An engine takes an operation, makes the call that it describes, reports the answer, and makes the next call
// where the operation is not through.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "base/async_reader.h"
#include "base/host_mapping.h"
#include "base/os_file.h"

namespace dsv41 {

class ReadQueue {
 public:
  struct OpenFile {
    std::string path;
    FileDescriptor plain, direct;
    std::atomic<bool> is_direct{false};
  };

  // One read. The first four are the next call to make.
  struct Operation {
    int fd = -1;
    uint64_t offset = 0, bytes = 0;
    std::byte* to = nullptr;

    std::byte* bounce = nullptr;  // [kBounceBytes], of the engine
    ReadPiece piece;
    ReadBatch* batch = nullptr;
    OpenFile* file = nullptr;
    bool direct = false;
    uint64_t begin = 0, length = 0;  // of the file, as it is read: with margins
    uint64_t needed = 0;             // of length, so that the piece is there
    uint64_t n_read = 0;
    std::byte* base = nullptr;  // where begin goes
  };

  explicit ReadQueue(const ReaderOptions& options) : options_(options) {}
  const ReaderOptions& options() const { return options_; }

  Result<int> add_file(const std::string& path, uint64_t size);
  void start(std::span<const ReadPiece> pieces, ReadBatch* batch);
  bool is_done(const ReadBatch& batch) const;
  Status wait(ReadBatch& batch, const CancelFlag* cancel);
  void drop(ReadBatch& batch);
  ReadStats stats() const;

  // The next operation, its call ready; false: none, or enough are in flight.
  bool take(Operation* operation);
  // Waits for one; false: close() was called.
  bool wait_and_take(Operation* operation);
  // The answer to the operation's call: bytes or -errno. True: the batch has been told. False: there is another call to make.
  bool answer(Operation* operation, int64_t result);
  void close();
  bool is_closed() const;

 private:
  struct Job {
    ReadBatch* batch;
    std::vector<ReadPiece> pieces;
    size_t n_taken = 0;
  };

  bool take_locked(Operation* operation);
  bool may_start() const;
  void prepare(Operation* operation) const;
  void set_call(Operation* operation) const;
  void finish(Operation* operation, Status outcome);
  static void finish_pieces(ReadBatch* batch, uint64_t n);

  const ReaderOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by the mutex.
  std::deque<std::unique_ptr<OpenFile>> files_;  // they stay where they are
  std::deque<Job> jobs_;
  int n_in_flight_ = 0;
  uint64_t bytes_in_flight_ = 0;
  bool closed_ = false;
  ReadStats stats_;
};

// The engines. The ring: UNSUPPORTED where there is none. Threads: NO_MEMORY where the system gives none.
Result<std::unique_ptr<ReadThreads>> start_ring(ReadQueue& queue);
Result<std::unique_ptr<ReadThreads>> start_read_threads(ReadQueue& queue);

}  // namespace dsv41
