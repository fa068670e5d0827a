// Where the bytes of a file go and come from, whatever lies behind: a file, a buffer, the host's callbacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/host_mapping.h"
#include "base/status.h"

namespace dsv41 {

// Takes bytes in order. After a failure only abandon() is allowed.
class ByteSink {
 public:
  virtual ~ByteSink() = default;
  virtual Status write(std::span<const std::byte> bytes) = 0;
  // Everything is durable (as far as the sink promises) and visible under its name afterwards.
  virtual Status commit() = 0;
  // Nothing of it is left. Called at most once, never after a successful commit.
  virtual void abandon() = 0;
};

// Memory that a source reads into: kept and grown, large pages where it is large. A disk that reads past the page cache
// takes half as long into those (measured: virtio, 112 MiB, 44 to 47 ms by 1 to 8 MiB a read; into small ones 93).
class FetchMemory {
 public:
  // What a fetch of n bytes may take.
  static constexpr size_t n_for(size_t n) { return n + 2 * 4096; }
  // What was there is lost; fetches that take n bytes together (n_for) may follow. A single one may do without.
  void renew(size_t n);
  // For sources: n bytes at the start of a page, behind those given out before. NO_MEMORY.
  Result<std::span<std::byte>> room(size_t n);

 private:
  HostMapping memory_;
  size_t wanted_ = 0, n_used_ = 0;
};

// Bytes at any offset. The size does not change while the source is used. One thread at a time, if it does not say more.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual uint64_t size() const = 0;
  // Fills `out`; IO_SHORT when [offset, offset + out.size()) does not lie inside.
  virtual Status read_at(uint64_t offset, std::span<std::byte> out) = 0;
  // The same n bytes where they lie in memory already, or in `memory` until that is renewed. For large pieces.
  virtual Result<std::span<const std::byte>> fetch(uint64_t offset, size_t n, FetchMemory& memory);
  // Whether fetches may run on several threads at once, each with memory of its own.
  virtual bool reads_at_once() const { return false; }
};

// What a save to a path promises.
enum class Durability : uint8_t {
  kFull,  // fsync of the file, rename, fsync of the folder: after commit it survives a power cut
  kNone,  // rename only: whole or old for every process, but a power cut may lose it
};

// Writes to a temporary file beside `path` ("<path>.tmp-<random>"), which takes its place at commit: readers see the old
// file or the new one. A sink that is neither committed nor abandoned removes its file when it is destroyed. Bytes are
// collected and written in pieces of 1 MiB past the page cache where the file system can (whole files are seldom read
// back soon, and caching them costs more time than writing). A file of more than one piece is written by a thread of the
// sink's own, beside the caller's: it takes 8 MiB more, and a failure comes out of a later call. When only the last step
// of a commit fails, the fsync of the folder, the new file stands at `path`, whole, and abandon() leaves it there.
Result<std::unique_ptr<ByteSink>> create_file_sink(FileSystem& files, const std::string& path, Durability durability);
// Fetches go past the page cache where that lacks the bytes.
Result<std::unique_ptr<ByteSource>> open_file_source(FileSystem& files, const std::string& path);

// Over memory that the caller keeps: writes beyond the span's end fail with BUFFER_TOO_SMALL and copy nothing, but are
// counted: a writer that goes on learns the size that is needed.
class SpanSink final : public ByteSink {
 public:
  explicit SpanSink(std::span<std::byte> memory) : memory_(memory) {}
  Status write(std::span<const std::byte> bytes) override;
  Status commit() override { return Status(); }
  void abandon() override {}
  uint64_t n_written() const { return n_written_; }

 private:
  std::span<std::byte> memory_;
  uint64_t n_written_ = 0;
};

class VectorSink final : public ByteSink {
 public:
  Status write(std::span<const std::byte> bytes) override;
  Status commit() override { return Status(); }
  void abandon() override { bytes_.clear(); }
  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// Only counts: the size of what would be written.
class CountingSink final : public ByteSink {
 public:
  Status write(std::span<const std::byte> bytes) override;
  Status commit() override { return Status(); }
  void abandon() override {}
  uint64_t n_written() const { return n_written_; }

 private:
  uint64_t n_written_ = 0;
};

class SpanSource final : public ByteSource {
 public:
  explicit SpanSource(std::span<const std::byte> bytes) : bytes_(bytes) {}
  uint64_t size() const override { return bytes_.size(); }
  Status read_at(uint64_t offset, std::span<std::byte> out) override;
  Result<std::span<const std::byte>> fetch(uint64_t offset, size_t n, FetchMemory& memory) override;
  bool reads_at_once() const override { return true; }

 private:
  Status check(uint64_t offset, size_t n) const;
  std::span<const std::byte> bytes_;
};

}  // namespace dsv41
