#include "base/byte_stream.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

namespace dsv41 {
namespace {

constexpr size_t kPieceBytes = 4 << 20;  // one write; O_DIRECT gains nothing from larger ones
constexpr std::align_val_t kPieceAlignment{4096};
constexpr int kMostNames = 8;

struct PieceDeleter {
  void operator()(std::byte* memory) const { ::operator delete(memory, kPieceAlignment); }
};
using Piece = std::unique_ptr<std::byte[], PieceDeleter>;

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

class FileSink final : public ByteSink {
 public:
  FileSink(FileSystem& files, const std::string& path, Durability durability)
      : files_(files),
        path_(path),
        durability_(durability),
        piece_(static_cast<std::byte*>(::operator new(kPieceBytes, kPieceAlignment))) {}

  ~FileSink() override {
    try {
      abandon();
    } catch (const std::bad_alloc&) {  // the text of a failure that nobody would read
    }
  }

  Status open() {
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
      std::memcpy(piece_.get() + n_in_piece_, bytes.data(), n);
      n_in_piece_ += n;
      bytes = bytes.subspan(n);
      if (n_in_piece_ == kPieceBytes) DSV41_TRY(flush());
    }
    return {};
  }

  Status commit() override {
    DSV41_TRY(flush());
    if (durability_ == Durability::kFull) DSV41_TRY(file_->sync_data());
    file_.reset();
    DSV41_TRY(files_.rename(temporary_, path_));
    temporary_.clear();
    if (durability_ == Durability::kFull) DSV41_TRY(files_.sync_folder(folder_of(path_)));
    return {};
  }

  void abandon() override {
    file_.reset();
    if (temporary_.empty()) return;
    static_cast<void>(files_.unlink(std::exchange(temporary_, {})));
  }

 private:
  Status flush() {
    DSV41_TRY(file_->write_at(offset_, {piece_.get(), n_in_piece_}));
    offset_ += n_in_piece_;
    n_in_piece_ = 0;
    return {};
  }

  FileSystem& files_;
  const std::string path_;
  const Durability durability_;
  const Piece piece_;
  size_t n_in_piece_ = 0;
  uint64_t offset_ = 0;    // in the file, of the piece's first byte
  std::string temporary_;  // empty when there is no such file (any more)
  std::unique_ptr<File> file_;
};

class FileSource final : public ByteSource {
 public:
  FileSource(std::string path, std::unique_ptr<File> file, uint64_t size)
      : path_(std::move(path)), file_(std::move(file)), size_(size) {}
  uint64_t size() const override { return size_; }
  Status read_at(uint64_t offset, std::span<std::byte> out) override {
    if (offset <= size_ && out.size() <= size_ - offset) {
      DSV41_TRY_ASSIGN(const size_t n_read, file_->read_at(offset, out));
      if (n_read == out.size()) return {};
    }
    return Status(Code::kIO_SHORT,
                  path_ + ": has no " + std::to_string(out.size()) + " bytes at " + std::to_string(offset));
  }

 private:
  const std::string path_;
  const std::unique_ptr<File> file_;
  const uint64_t size_;
};

}  // namespace

Result<std::unique_ptr<ByteSink>> create_file_sink(FileSystem& files, const std::string& path, Durability durability) {
  std::unique_ptr<FileSink> sink = std::make_unique<FileSink>(files, path, durability);
  DSV41_TRY(sink->open());
  return std::unique_ptr<ByteSink>(std::move(sink));
}

Result<std::unique_ptr<ByteSource>> open_file_source(FileSystem& files, const std::string& path) {
  DSV41_TRY_ASSIGN(std::unique_ptr<File> file, files.open(path, FileSystem::Mode::kRead));
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

Status SpanSource::read_at(uint64_t offset, std::span<std::byte> out) {
  if (offset > bytes_.size() || out.size() > bytes_.size() - offset) {
    return Status(Code::kIO_SHORT, "ends after " + std::to_string(bytes_.size()) + " bytes");
  }
  if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
  return {};
}

}  // namespace dsv41
