#include "base/byte_stream.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/side_thread.h"

namespace dsv41 {
namespace {

constexpr size_t kPieceBytes = 1 << 20;  // one write; from large pages O_DIRECT gains nothing from larger ones
constexpr size_t kRingPieces = 8;
constexpr uint64_t kDirectAlignment = 4096;
constexpr size_t kLargePageBytes = size_t{2} << 20;
constexpr int kMostNames = 8;

Result<std::string> draw_temporary_name(const std::string& path) {
  uint64_t random = 0;
  ssize_t n = 0;
  do {
    n = ::getrandom(&random, sizeof random, 0);  // never in part: that takes more than 256 bytes
  } while (n < 0 && errno == EINTR);
  if (n != sizeof random) return Status(Code::kIO, "the system gives no random bytes", errno);
  std::string name = path + ".tmp-";
  for (int shift = 60; shift >= 0; shift -= 4) name += "0123456789abcdef"[random >> shift & 15];
  return name;
}

// Pieces are filled while those before them are written by a second thread, which the first full piece starts: eight of
// them ahead of it at most, so that neither the disk nor the owner waits for every hiccup of the other. What the file system
// sees is what one thread would do: write after write, each begun when the one before has succeeded.
class FileSink final : public ByteSink {
 public:
  FileSink(FileSystem& files, const std::string& path, Durability durability)
      : files_(files), path_(path), durability_(durability) {}

  ~FileSink() override {
    try {
      abandon();
    } catch (const std::bad_alloc&) {  // the text of a failure that nobody would read
    }
  }

  Status open() {
    DSV41_TRY_ASSIGN(first_, HostMapping::create(kPieceBytes));
    piece_ = first_.data();
    for (int i = 1;; ++i) {
      DSV41_TRY_ASSIGN(std::string name, draw_temporary_name(path_));
      Result<std::unique_ptr<File>> file = files_.open(name, FileSystem::Mode::kCreateDirect);
      if (file.ok()) {
        temporary_ = std::move(name);
        file_ = std::move(file).value();
        return {};
      }
      if (file.status().code() != Code::kEXISTS || i == kMostNames) return std::move(file).status();
    }
  }

  Status write(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const size_t n = std::min(bytes.size(), kPieceBytes - n_in_piece_);
      std::memcpy(piece_ + n_in_piece_, bytes.data(), n);
      n_in_piece_ += n;
      bytes = bytes.subspan(n);
      if (n_in_piece_ == kPieceBytes) DSV41_TRY(hand_over());
    }
    return {};
  }

  Status commit() override {
    DSV41_TRY(side_.wait());
    DSV41_TRY(flush());
    if (durability_ == Durability::kFull) DSV41_TRY(file_->sync_data());
    file_.reset();
    DSV41_TRY(files_.rename(temporary_, path_));
    temporary_.clear();
    if (durability_ == Durability::kFull) DSV41_TRY(files_.sync_folder(folder_of(path_)));
    return {};
  }

  void abandon() override {
    side_.finish();
    file_.reset();
    if (temporary_.empty()) return;
    static_cast<void>(files_.unlink(std::exchange(temporary_, {})));
  }

 private:
  Status flush() {
    DSV41_TRY(file_->write_at(offset_, {piece_, n_in_piece_}));
    offset_ += n_in_piece_;
    n_in_piece_ = 0;
    return {};
  }

  // The full piece to the second thread; without memory for others, it is written here.
  Status hand_over() {
    if (ring_.size() == 0) {
      Result<HostMapping> made = HostMapping::create(kRingPieces * kPieceBytes);
      if (!made.ok()) return flush();
      ring_ = std::move(made).value();
    }
    side_.begin([this, offset = offset_, piece = piece_] { return file_->write_at(offset, {piece, kPieceBytes}); });
    offset_ += kPieceBytes;
    n_in_piece_ = 0;
    DSV41_TRY(side_.wait(kRingPieces - 1));  // the next place in the ring is free
    piece_ = ring_.data() + next_ * kPieceBytes;
    next_ = (next_ + 1) % kRingPieces;
    return {};
  }

  FileSystem& files_;
  const std::string path_;
  const Durability durability_;
  HostMapping first_, ring_;    // the first piece; those behind it, in turn, once there are any
  std::byte* piece_ = nullptr;  // that is being filled
  size_t next_ = 0;             // place in the ring of the one behind it
  size_t n_in_piece_ = 0;
  uint64_t offset_ = 0;    // in the file, of the piece's first byte
  std::string temporary_;  // empty when there is no such file (any more)
  std::unique_ptr<File> file_;
  SideThread side_;  // last: it goes first
};

class FileSource final : public ByteSource {
 public:
  FileSource(std::string path, std::unique_ptr<File> file, uint64_t size)
      : path_(std::move(path)), file_(std::move(file)), size_(size) {}
  uint64_t size() const override { return size_; }
  Status read_at(uint64_t offset, std::span<std::byte> out) override {
    if (is_inside(offset, out.size())) {
      DSV41_TRY_ASSIGN(const size_t n_read, file_->read_at(offset, out));
      if (n_read == out.size()) return {};
    }
    return too_short(offset, out.size());
  }

  // From the multiple below on, to the one above: what can be read past the page cache.
  Result<std::span<const std::byte>> fetch(uint64_t offset, size_t n, FetchMemory& memory) override {
    if (!is_inside(offset, n)) return too_short(offset, n);
    const size_t n_before = offset % kDirectAlignment;
    const size_t n_all = (n_before + n + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment;
    DSV41_TRY_ASSIGN(const std::span<std::byte> room, memory.room(n_all));
    DSV41_TRY_ASSIGN(const size_t n_read, file_->read_at(offset - n_before, room));
    if (n_read < n_before + n) return too_short(offset, n);
    return std::span<const std::byte>(room.subspan(n_before, n));
  }
  bool reads_at_once() const override { return true; }

 private:
  bool is_inside(uint64_t offset, size_t n) const { return offset <= size_ && n <= size_ - offset; }
  Status too_short(uint64_t offset, size_t n) const {
    return Status(Code::kIO_SHORT, path_ + ": has no " + std::to_string(n) + " bytes at " + std::to_string(offset));
  }

  const std::string path_;
  const std::unique_ptr<File> file_;
  const uint64_t size_;
};

}  // namespace

void FetchMemory::renew(size_t n) {
  wanted_ = n;
  n_used_ = 0;
}

Result<std::span<std::byte>> FetchMemory::room(size_t n) {
  if (wanted_ == 0) n_used_ = 0;
  const size_t n_taken = (n + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment;
  if (n_used_ == 0 && std::max(wanted_, n_taken) > memory_.size()) {
    memory_ = HostMapping();  // first: not both at once
    const size_t n_all = std::max(wanted_, n_taken);
    const size_t n_large = (n_all + kLargePageBytes - 1) / kLargePageBytes * kLargePageBytes;
    DSV41_TRY_ASSIGN(memory_, HostMapping::create(n_all < kLargePageBytes / 8 ? n_all : n_large));
  }
  if (n_taken > memory_.size() - n_used_) return Status(Code::kNO_MEMORY, "no room left to fetch into");
  const std::span<std::byte> room(memory_.data() + n_used_, n);
  n_used_ += n_taken;
  return room;
}

Result<std::span<const std::byte>> ByteSource::fetch(uint64_t offset, size_t n, FetchMemory& memory) {
  DSV41_TRY_ASSIGN(const std::span<std::byte> room, memory.room(n));
  DSV41_TRY(read_at(offset, room));
  return std::span<const std::byte>(room);
}

Result<std::unique_ptr<ByteSink>> create_file_sink(FileSystem& files, const std::string& path, Durability durability) {
  std::unique_ptr<FileSink> sink = std::make_unique<FileSink>(files, path, durability);
  DSV41_TRY(sink->open());
  return std::unique_ptr<ByteSink>(std::move(sink));
}

Result<std::unique_ptr<ByteSource>> open_file_source(FileSystem& files, const std::string& path) {
  DSV41_TRY_ASSIGN(std::unique_ptr<File> file, files.open(path, FileSystem::Mode::kReadDirect));
  DSV41_TRY_ASSIGN(const uint64_t size, file->size());
  return std::unique_ptr<ByteSource>(std::make_unique<FileSource>(path, std::move(file), size));
}

Status SpanSink::write(std::span<const std::byte> bytes) {
  const uint64_t begin = n_written_;
  n_written_ += bytes.size();
  if (n_written_ > memory_.size()) {
    return Status(Code::kBUFFER_TOO_SMALL, "the buffer of " + std::to_string(memory_.size()) + " bytes is too small");
  }
  if (!bytes.empty()) std::memcpy(memory_.data() + begin, bytes.data(), bytes.size());
  return {};
}

Status VectorSink::write(std::span<const std::byte> bytes) {
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  return {};
}

Status CountingSink::write(std::span<const std::byte> bytes) {
  n_written_ += bytes.size();
  return {};
}

Status SpanSource::check(uint64_t offset, size_t n) const {
  if (offset <= bytes_.size() && n <= bytes_.size() - offset) return {};
  return Status(Code::kIO_SHORT, "ends after " + std::to_string(bytes_.size()) + " bytes");
}

Result<std::span<const std::byte>> SpanSource::fetch(uint64_t offset, size_t n, FetchMemory&) {
  DSV41_TRY(check(offset, n));
  return bytes_.subspan(offset, n);
}

Status SpanSource::read_at(uint64_t offset, std::span<std::byte> out) {
  DSV41_TRY(check(offset, out.size()));
  if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
  return {};
}

}  // namespace dsv41
