// AsyncReader: many pieces of files read side by side, into memory that the caller lends, while the caller computes.
//
// start() hands pieces over and returns; wait() returns when all pieces of a batch are there. Between the two stand a queue
// and an engine: a ring of the kernel (io_uring) with one thread that feeds it, or, where the kernel or its policy refuses
// rings or the library was built without liburing, threads that each read one piece at a time. Both keep the same number of
// reads in flight and give the same bytes.
//
// Reads go past the page cache where the file system can do that (O_DIRECT): what is kept is the caller's business, the rate
// is higher and steadier than through page faults, and memory of the machine is not filled with copies. Such reads begin and
// end at multiples of kReadAlignment, so more is read than was asked for:
//   in place   the piece lies in memory as in the file (to % kReadAlignment == offset % kReadAlignment), and the memory around
//              it up to the next multiples is the caller's too; what was there is lost
//   else       the piece is copied from a buffer of the reader; at most kBounceBytes - kReadAlignment bytes
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/cancel.h"
#include "base/status.h"

namespace dsv41 {

inline constexpr uint64_t kReadAlignment = 4096;
inline constexpr uint64_t kBounceBytes = 4 * kReadAlignment;

enum class ReadEngine : uint8_t {
  kAuto,     // the ring where the kernel gives one, else threads
  kRing,     // io_uring or UNSUPPORTED
  kThreads,  // preads
};

struct ReadPiece {
  int file = 0;  // of add_file
  uint64_t offset = 0;
  uint64_t bytes = 0;
  std::byte* to = nullptr;  // valid until the batch is done
  bool in_place = false;
};

class ReadQueue;

// Pieces that are waited for together. One start() at a time; it may be used again when it is done.
class ReadBatch {
 public:
  ReadBatch() = default;
  ReadBatch(const ReadBatch&) = delete;
  ReadBatch& operator=(const ReadBatch&) = delete;

 private:
  friend class ReadQueue;
  // Guarded by the mutex of the queue.
  uint64_t n_left_ = 0;  // pieces, cut as the queue cuts them
  Status failure_;       // the first one
  std::condition_variable done_;
};

struct ReadStats {
  uint64_t reads = 0;       // calls that the system answered
  uint64_t bytes_read = 0;  // by these, margins included
};

struct ReaderOptions {
  ReadEngine engine = ReadEngine::kAuto;
  int depth = 32;  // reads in flight
  uint64_t bytes_in_flight = uint64_t{16} << 20;
  bool direct = true;  // past the page cache where that can be done
  // Tests: may change what the system answered (bytes or -errno) to the read at `offset`; on the engine's threads.
  std::function<int64_t(uint64_t offset, int64_t answer)> change_answer;
  bool refuse_ring = false;  // tests: as a kernel whose policy forbids rings
};

// The engine's threads, from create() to destruction.
class ReadThreads {
 public:
  virtual ~ReadThreads() = default;
  virtual void wake() = 0;  // there is something new in the queue
};

// Any thread. Destroyed after its batches are done.
class AsyncReader {
 public:
  // UNSUPPORTED: no ring, and that was asked for. NO_MEMORY: no thread or no buffer.
  static Result<std::unique_ptr<AsyncReader>> create(const ReaderOptions& options);
  ~AsyncReader();

  // The number for ReadPiece::file. CHECKPOINT when the file is not `size` bytes long (it changed since it was looked at);
  // NOT_FOUND, PERMISSION, IO.
  Result<int> add_file(const std::string& path, uint64_t size);
  // Returns at once; pieces are read in their order, as many at a time as the options say.
  void start(std::span<const ReadPiece> pieces, ReadBatch* batch);
  bool is_done(const ReadBatch& batch) const;
  // The first failure of the batch: IO or IO_SHORT (the file ended early) with the path. CANCELLED: its reads go on.
  Status wait(ReadBatch& batch, const CancelFlag* cancel);
  // Pieces that nobody has begun to read are left out; returns when the batch is done. wait() then gives CANCELLED if any was.
  void drop(ReadBatch& batch);

  bool uses_ring() const { return uses_ring_; }
  ReadStats stats() const;

 private:
  AsyncReader() = default;
  std::unique_ptr<ReadQueue> queue_;
  std::unique_ptr<ReadThreads> threads_;  // destroyed first
  bool uses_ring_ = false;
};

}  // namespace dsv41
