#include "base/async_reader.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cassert>
#include <cstring>

#include "base/read_queue.h"

namespace dsv41 {
namespace {

// Larger pieces are cut: several reads in flight are faster than one (bench/README.md), and others get their turn.
constexpr uint64_t kMostReadBytes = uint64_t{1} << 20;
constexpr std::chrono::milliseconds kCancelPoll(2);

uint64_t round_down(uint64_t value) { return value / kReadAlignment * kReadAlignment; }
uint64_t round_up(uint64_t value) { return round_down(value + kReadAlignment - 1); }

// Opening a pipe without a writer must not wait, but reads must: a ring would answer EAGAIN.
FileDescriptor open_for_reading(const std::string& path, int flags) {
  FileDescriptor file(
      retry_interrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | flags); }));
  if (file.is_open()) static_cast<void>(::fcntl(file.get(), F_SETFL, O_RDONLY | flags));
  return file;
}

// Cuts where reads would begin anyway, so that no two of them write the same page.
void cut(const ReadPiece& piece, std::vector<ReadPiece>* out) {
  const uint64_t end = piece.offset + piece.bytes;
  for (uint64_t at = piece.offset; at < end;) {
    const uint64_t next = piece.in_place ? std::min(end, round_down(at) + kMostReadBytes) : end;
    out->push_back({piece.file, at, next - at, piece.to + (at - piece.offset), piece.in_place});
    at = next;
  }
}

}  // namespace

// ---- The queue

Result<int> ReadQueue::add_file(const std::string& path, uint64_t size) {
  DSV41_TRY(check_path(path));
  auto file = std::make_unique<OpenFile>();
  file->path = path;
  file->plain = open_for_reading(path, 0);
  if (!file->plain.is_open()) return os_failure(path, "cannot open", errno);
  struct stat info = {}, direct_info = {};
  if (::fstat(file->plain.get(), &info) != 0) return os_failure(path, "cannot stat", errno);
  if (!S_ISREG(info.st_mode) || static_cast<uint64_t>(info.st_size) != size) {
    return Status(Code::kCHECKPOINT, path + ": is not the file of " + std::to_string(size) + " bytes that it was");
  }
  // What is read here is scattered: reading ahead would fetch what nobody wants.
  static_cast<void>(::posix_fadvise(file->plain.get(), 0, 0, POSIX_FADV_RANDOM));
#ifdef O_DIRECT
  if (options_.direct) file->direct = open_for_reading(path, O_DIRECT);
  // Another file may have taken the name meanwhile.
  file->is_direct = file->direct.is_open() && ::fstat(file->direct.get(), &direct_info) == 0 &&
                    direct_info.st_dev == info.st_dev && direct_info.st_ino == info.st_ino;
#endif
  const std::lock_guard lock(mutex_);
  files_.push_back(std::move(file));
  return static_cast<int>(files_.size()) - 1;
}

void ReadQueue::start(std::span<const ReadPiece> pieces, ReadBatch* batch) {
  Job job{batch, {}};
  for (const ReadPiece& piece : pieces) {
    assert(piece.in_place ? reinterpret_cast<uintptr_t>(piece.to) % kReadAlignment == piece.offset % kReadAlignment
                          : piece.bytes + kReadAlignment <= kBounceBytes);
    cut(piece, &job.pieces);
  }
  const std::lock_guard lock(mutex_);
  assert(batch->n_left_ == 0);
  const uint64_t n_pieces = job.pieces.size();
  if (n_pieces > 0) jobs_.push_back(std::move(job));
  batch->n_left_ = n_pieces;
  batch->failure_ = Status();
  if (n_pieces > 0) changed_.notify_all();
}

bool ReadQueue::is_done(const ReadBatch& batch) const {
  const std::lock_guard lock(mutex_);
  return batch.n_left_ == 0;
}

Status ReadQueue::wait(ReadBatch& batch, const CancelFlag* cancel) {
  std::unique_lock lock(mutex_);
  while (batch.n_left_ > 0) {
    if (cancel && cancel->triggered()) return Status(Code::kCANCELLED, "cancelled while reading from disk");
    if (cancel) {
      batch.done_.wait_for(lock, kCancelPoll);
    } else {
      batch.done_.wait(lock);
    }
  }
  return batch.failure_;
}

void ReadQueue::drop(ReadBatch& batch) {
  std::unique_lock lock(mutex_);
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    if (job->batch == &batch) {
      if (batch.failure_.ok()) batch.failure_ = Status(Code::kCANCELLED, "left out");
      finish_pieces(&batch, job->pieces.size() - job->n_taken);
      job = jobs_.erase(job);
    } else {
      ++job;
    }
  }
  batch.done_.wait(lock, [&] { return batch.n_left_ == 0; });
}

ReadStats ReadQueue::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

bool ReadQueue::may_start() const {
  if (closed_ || jobs_.empty() || n_in_flight_ >= options_.depth) return false;
  const Job& job = jobs_.front();
  return n_in_flight_ == 0 || bytes_in_flight_ + job.pieces[job.n_taken].bytes <= options_.bytes_in_flight;
}

bool ReadQueue::take_locked(Operation* operation) {
  if (!may_start()) return false;
  Job& job = jobs_.front();
  operation->batch = job.batch;
  operation->piece = job.pieces[job.n_taken];
  operation->file = files_[static_cast<size_t>(operation->piece.file)].get();
  if (++job.n_taken == job.pieces.size()) jobs_.pop_front();
  n_in_flight_ += 1;
  bytes_in_flight_ += operation->piece.bytes;
  return true;
}

bool ReadQueue::take(Operation* operation) {
  {
    const std::lock_guard lock(mutex_);
    if (!take_locked(operation)) return false;
  }
  prepare(operation);
  return true;
}

bool ReadQueue::wait_and_take(Operation* operation) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return closed_ || may_start(); });
    if (closed_) return false;
    take_locked(operation);
    if (may_start()) changed_.notify_one();
  }
  prepare(operation);
  return true;
}

void ReadQueue::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

bool ReadQueue::is_closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

// ---- An operation

void ReadQueue::prepare(Operation* operation) const {
  const ReadPiece& piece = operation->piece;
  const uint64_t end = piece.offset + piece.bytes;
  operation->direct = operation->file->is_direct.load(std::memory_order_relaxed);
  operation->begin = operation->direct ? round_down(piece.offset) : piece.offset;
  operation->length = (operation->direct ? round_up(end) : end) - operation->begin;
  operation->needed = end - operation->begin;
  const bool bounces = operation->direct && !piece.in_place;
  operation->base = bounces ? operation->bounce : piece.to - (piece.offset - operation->begin);
  operation->n_read = 0;
  set_call(operation);
}

// Past the page cache only from a page on: what a short read has left is read the other way.
void ReadQueue::set_call(Operation* operation) const {
  const bool direct = operation->direct && operation->n_read == 0;
  operation->fd = direct ? operation->file->direct.get() : operation->file->plain.get();
  operation->offset = operation->begin + operation->n_read;
  operation->bytes = (direct ? operation->length : operation->needed) - operation->n_read;
  operation->to = operation->base + operation->n_read;
}

bool ReadQueue::answer(Operation* operation, int64_t result) {
  if (options_.change_answer) result = options_.change_answer(operation->offset, result);
  {
    const std::lock_guard lock(mutex_);
    stats_.reads += 1;
    if (result > 0) stats_.bytes_read += static_cast<uint64_t>(result);
  }
  if (result == -EINTR || result == -EAGAIN) return false;
  if (result == -EINVAL && operation->direct && operation->n_read == 0) {
    // The file system opens files for this and refuses to read them so.
    operation->file->is_direct.store(false, std::memory_order_relaxed);
    prepare(operation);
    return false;
  }
  const std::string& path = operation->file->path;
  if (result < 0) {
    finish(operation, os_failure(path, "cannot read", static_cast<int>(-result)));
    return true;
  }
  if (result == 0) {
    finish(operation, Status(Code::kIO_SHORT, path + ": ended at byte " + std::to_string(operation->offset)));
    return true;
  }
  operation->n_read += static_cast<uint64_t>(result);
  if (operation->n_read < operation->needed) {
    set_call(operation);
    return false;
  }
  finish(operation, Status());
  return true;
}

void ReadQueue::finish(Operation* operation, Status outcome) {
  const ReadPiece& piece = operation->piece;
  std::byte* const there = operation->base + (piece.offset - operation->begin);
  if (outcome.ok() && there != piece.to) std::memcpy(piece.to, there, piece.bytes);
  const std::lock_guard lock(mutex_);
  n_in_flight_ -= 1;
  bytes_in_flight_ -= piece.bytes;
  if (!outcome.ok() && operation->batch->failure_.ok()) operation->batch->failure_ = std::move(outcome);
  finish_pieces(operation->batch, 1);
  if (may_start()) changed_.notify_one();
}

void ReadQueue::finish_pieces(ReadBatch* batch, uint64_t n) {
  batch->n_left_ -= n;
  if (batch->n_left_ == 0) batch->done_.notify_all();
}

// ---- The reader

Result<std::unique_ptr<AsyncReader>> AsyncReader::create(const ReaderOptions& options) {
  std::unique_ptr<AsyncReader> reader(new AsyncReader);
  reader->queue_ = std::make_unique<ReadQueue>(options);
  if (options.engine != ReadEngine::kThreads) {
    Result<std::unique_ptr<ReadThreads>> ring = start_ring(*reader->queue_);
    if (ring.ok()) {
      reader->threads_ = std::move(ring).value();
      reader->uses_ring_ = true;
      return reader;
    }
    if (options.engine == ReadEngine::kRing) return std::move(ring).status();
  }
  DSV41_TRY_ASSIGN(reader->threads_, start_read_threads(*reader->queue_));
  return reader;
}

AsyncReader::~AsyncReader() {
  queue_->close();
  threads_.reset();
}

Result<int> AsyncReader::add_file(const std::string& path, uint64_t size) { return queue_->add_file(path, size); }

void AsyncReader::start(std::span<const ReadPiece> pieces, ReadBatch* batch) {
  queue_->start(pieces, batch);
  threads_->wake();
}

bool AsyncReader::is_done(const ReadBatch& batch) const { return queue_->is_done(batch); }
Status AsyncReader::wait(ReadBatch& batch, const CancelFlag* cancel) { return queue_->wait(batch, cancel); }
void AsyncReader::drop(ReadBatch& batch) { queue_->drop(batch); }
ReadStats AsyncReader::stats() const { return queue_->stats(); }

}  // namespace dsv41
