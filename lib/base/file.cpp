#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/os_file.h"

namespace dsv41 {
namespace {

// Opens for reading and finds the size. O_NONBLOCK: opening a pipe without a writer must not wait.
int open_for_reading(const std::string& path) {
  return retry_interrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); });
}

Status regular_file_size(const std::string& path, int fd, uint64_t* size) {
  DSV41_TRY(check_path(path));
  if (fd < 0) return os_failure(path, "cannot open", errno);
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return os_failure(path, "cannot stat", errno);
  if (S_ISDIR(info.st_mode)) return Status(Code::kIO, path + ": is a folder, not a file", EISDIR);
  if (!S_ISREG(info.st_mode)) return Status(Code::kIO, path + ": is not a regular file");
  *size = static_cast<uint64_t>(info.st_size);
  return {};
}

}  // namespace

Result<std::string> read_file(const std::string& path, uint64_t max_bytes) {
  const FileDescriptor file(open_for_reading(path));
  uint64_t size = 0;
  DSV41_TRY(regular_file_size(path, file.get(), &size));
  if (size > max_bytes) {
    return Status(Code::kLIMIT,
                  path + ": " + std::to_string(size) + " bytes, more than the limit of " + std::to_string(max_bytes));
  }
  std::string out(size, '\0');
  uint64_t n_read = 0;
  while (n_read < size) {
    const ssize_t n = ::read(file.get(), out.data() + n_read, std::min<uint64_t>(size - n_read, uint64_t{1} << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return os_failure(path, "cannot read", errno);
    if (n == 0) {
      return Status(Code::kIO_SHORT,
                    path + ": ended after " + std::to_string(n_read) + " of " + std::to_string(size) + " bytes");
    }
    n_read += static_cast<uint64_t>(n);
  }
  return out;
}

Result<std::string> read_system_file(const std::string& path, uint64_t max_bytes) {
  const FileDescriptor file(open_for_reading(path));
  uint64_t stated_size = 0;
  DSV41_TRY(regular_file_size(path, file.get(), &stated_size));
  std::string out;
  for (char piece[4096];;) {
    const ssize_t n = ::read(file.get(), piece, sizeof piece);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return os_failure(path, "cannot read", errno);
    if (n == 0) return out;
    if (static_cast<uint64_t>(n) > max_bytes - out.size()) {
      return Status(Code::kLIMIT, path + ": more than the limit of " + std::to_string(max_bytes) + " bytes");
    }
    out.append(piece, static_cast<size_t>(n));
  }
}

Status check_folder(const std::string& path) {
  DSV41_TRY(check_path(path));
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) return os_failure(path, "cannot open", errno);
  if (!S_ISDIR(info.st_mode)) return Status(Code::kINVALID_ARG, path + ": is not a folder");
  return {};
}

Result<MappedFile> MappedFile::open(const std::string& path) {
  const FileDescriptor file(open_for_reading(path));
  uint64_t size = 0;
  DSV41_TRY(regular_file_size(path, file.get(), &size));
  MappedFile mapped;
  if (size == 0) return mapped;
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  if (data == MAP_FAILED) return os_failure(path, "cannot map", errno);
  mapped.data_ = static_cast<const std::byte*>(data);
  mapped.size_ = size;
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::advise_random(uint64_t offset, uint64_t size) const { advise(offset, size, MADV_RANDOM); }

void MappedFile::release_pages(uint64_t offset, uint64_t size) const { advise(offset, size, MADV_DONTNEED); }

void MappedFile::advise(uint64_t offset, uint64_t size, int advice) const {
  const uint64_t page_bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t begin = (offset + page_bytes - 1) / page_bytes * page_bytes;  // whole pages of the range only
  const uint64_t end = (offset + size) / page_bytes * page_bytes;
  if (data_ && begin < end && end <= size_) {
    ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, advice);
  }
}

}  // namespace dsv41
