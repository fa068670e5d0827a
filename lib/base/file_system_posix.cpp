// The machine's file system by POSIX calls.
//
// A file that is written or read past the page cache has two descriptors: one with O_DIRECT for the aligned middle of
// large writes and reads, one without for the rest. The kernel keeps the two views alike, and a sync of either covers
// both. A file system that refuses O_DIRECT, when the file is opened or later, gets everything through the other one.
// What is read lies in the page cache or not, piece by piece: copying from there is faster than the disk, filling it is
// slower (bench/README.md).
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/file_system.h"
#include "base/os_file.h"

namespace dsv41 {
namespace {

constexpr uint64_t kDirectAlignment = 4096;
constexpr uint64_t kLeastDirectBytes = 64 << 10;        // below, two calls cost more than the copy
constexpr size_t kMostPerCall = size_t{1} << 30;        // the kernel takes at most 2 GiB - 4 KiB
constexpr mode_t kFileMode = 0666, kFolderMode = 0777;  // less what the host's umask takes

int open_file(const std::string& path, int flags) {
  return retry_interrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC | O_NOCTTY, kFileMode); });
}

Status check_regular(const std::string& path, const struct stat& info) {
  if (S_ISREG(info.st_mode)) return {};
  return Status(Code::kINVALID_ARG, path + (S_ISDIR(info.st_mode) ? ": is a folder" : ": is not a regular file"));
}

// Looks before it opens: opening a pipe waits for its other end, and opening a device may do anything.
Result<FileDescriptor> open_regular(const std::string& path, int flags) {
  DSV41_TRY(check_path(path));
  struct stat info = {};
  if (::stat(path.c_str(), &info) == 0) {
    if ((flags & O_EXCL) == 0) DSV41_TRY(check_regular(path, info));
  } else if (errno != ENOENT) {
    return os_failure(path, "cannot open", errno);
  }
  FileDescriptor file(open_file(path, flags | O_NONBLOCK));
  if (!file.is_open()) return os_failure(path, "cannot open", errno);
  if (::fstat(file.get(), &info) != 0) return os_failure(path, "cannot stat", errno);
  DSV41_TRY(check_regular(path, info));
  return file;
}

#ifdef O_DIRECT
// For reading past the page cache: the same file, or none where another has taken its name meanwhile.
FileDescriptor open_again(const std::string& path, const FileDescriptor& file) {
  FileDescriptor direct(open_file(path, O_RDONLY | O_NONBLOCK | O_DIRECT));
  struct stat here = {}, there = {};
  const bool same = direct.is_open() && ::fstat(file.get(), &here) == 0 && ::fstat(direct.get(), &there) == 0 &&
                    here.st_dev == there.st_dev && here.st_ino == there.st_ino;
  return same ? std::move(direct) : FileDescriptor();
}
#endif

class PosixFile final : public File {
 public:
  PosixFile(std::string path, FileDescriptor file, FileDescriptor direct, bool reads_direct)
      : path_(std::move(path)), file_(std::move(file)), direct_(std::move(direct)), reads_direct_(reads_direct) {}

  Result<size_t> read_at(uint64_t offset, std::span<std::byte> out) override {
    size_t n_read = read_direct(offset, out);
    while (n_read < out.size()) {
      const ssize_t n = read_some(file_, offset + n_read, out.subspan(n_read));
      if (n < 0) return os_failure(path_, "cannot read", errno);
      if (n == 0) break;
      n_read += static_cast<size_t>(n);
    }
    return n_read;
  }

  Status write_at(uint64_t offset, std::span<const std::byte> bytes) override {
    DSV41_TRY_ASSIGN(const size_t n_direct, write_direct(offset, bytes));
    offset += n_direct;
    bytes = bytes.subspan(n_direct);
    while (!bytes.empty()) {
      const ssize_t n = write_some(file_, offset, bytes);
      if (n < 0) return os_failure(path_, "cannot write", errno);
      offset += static_cast<uint64_t>(n);
      bytes = bytes.subspan(static_cast<size_t>(n));
    }
    return {};
  }

  Result<uint64_t> size() override {
    struct stat info = {};
    if (::fstat(file_.get(), &info) != 0) return os_failure(path_, "cannot stat", errno);
    return static_cast<uint64_t>(info.st_size);
  }

  Status resize(uint64_t bytes) override {
    if (retry_interrupted([&] { return ::ftruncate(file_.get(), static_cast<off_t>(bytes)); }) != 0) {
      return os_failure(path_, "cannot resize", errno);
    }
    return {};
  }

  // fdatasync leaves out only what reading the file back does not need (times).
  Status sync_data() override {
    if (retry_interrupted([&] { return ::fdatasync(file_.get()); }) != 0) {
      return os_failure(path_, "cannot sync", errno);
    }
    return {};
  }

 private:
  static ssize_t write_some(const FileDescriptor& file, uint64_t offset, std::span<const std::byte> bytes) {
    return retry_interrupted([&] {
      return ::pwrite(file.get(), bytes.data(), std::min(bytes.size(), kMostPerCall), static_cast<off_t>(offset));
    });
  }

  static ssize_t read_some(const FileDescriptor& file, uint64_t offset, std::span<std::byte> out) {
    return retry_interrupted([&] {
      return ::pread(file.get(), out.data(), std::min(out.size(), kMostPerCall), static_cast<off_t>(offset));
    });
  }

  // How many bytes at the front of a write or read may go past the page cache.
  size_t direct_part(uint64_t offset, std::span<const std::byte> bytes) const {
    const bool aligned = (offset | reinterpret_cast<uintptr_t>(bytes.data())) % kDirectAlignment == 0;
    if (!direct_.is_open() || !aligned || bytes.size() < kLeastDirectBytes) return 0;
    return bytes.size() / kDirectAlignment * kDirectAlignment;
  }

  // Whether most of the file's first pages from here on lie in the page cache. Where the system does not tell: yes.
  bool is_cached(uint64_t offset, size_t n_bytes) const {
    std::array<unsigned char, 1024> pages = {};
    const size_t n_pages = std::min(pages.size(), n_bytes / kDirectAlignment);
    void* const mapped =
        ::mmap(nullptr, n_pages * kDirectAlignment, PROT_READ, MAP_SHARED, file_.get(), static_cast<off_t>(offset));
    if (mapped == MAP_FAILED) return true;
    const bool told = ::mincore(mapped, n_pages * kDirectAlignment, pages.data()) == 0;
    ::munmap(mapped, n_pages * kDirectAlignment);
    const auto n_cached = std::count_if(pages.begin(), pages.begin() + static_cast<ptrdiff_t>(n_pages),
                                        [](unsigned char page) { return (page & 1) != 0; });
    return !told || static_cast<size_t>(n_cached) * 2 > n_pages;
  }

  // The number of bytes read: the rest, the end of the file, and the finding of an error are for the other descriptor.
  size_t read_direct(uint64_t offset, std::span<std::byte> out) const {
    const size_t n_direct = reads_direct_ ? direct_part(offset, out) : 0;
    if (n_direct == 0) return 0;
    // From now on: reading ahead would fill the cache, piece by piece, with what is to be read past it.
    static_cast<void>(::posix_fadvise(file_.get(), 0, 0, POSIX_FADV_RANDOM));
    if (is_cached(offset, n_direct)) return 0;
    size_t n_read = 0;
    while (n_read < n_direct && n_read % kDirectAlignment == 0) {
      const ssize_t n = read_some(direct_, offset + n_read, out.subspan(n_read, n_direct - n_read));
      if (n <= 0) break;
      n_read += static_cast<size_t>(n);
    }
    return n_read;
  }

  // The number of bytes written, which may be fewer than could be: the rest is for the other descriptor, and so is the
  // finding of an error that a refusal may hide.
  Result<size_t> write_direct(uint64_t offset, std::span<const std::byte> bytes) {
    size_t n_written = 0;
    while (const size_t n_left = direct_part(offset + n_written, bytes.subspan(n_written))) {
      const ssize_t n = write_some(direct_, offset + n_written, bytes.subspan(n_written, n_left));
      if (n < 0 && errno == EINVAL) {
        direct_ = FileDescriptor();
        break;
      }
      if (n < 0) return os_failure(path_, "cannot write", errno);
      n_written += static_cast<size_t>(n);
    }
    return n_written;
  }

  const std::string path_;
  FileDescriptor file_, direct_;
  const bool reads_direct_;  // what direct_ is for: reading, else writing
};

class PosixLock final : public FileLock {
 public:
  explicit PosixLock(FileDescriptor file) : file_(std::move(file)) {}

 private:
  FileDescriptor file_;  // closing it gives the lock back
};

// Whether the open file is still the one of this name: somebody may have removed it before it was locked.
bool is_named(const FileDescriptor& file, const std::string& path) {
  struct stat here = {}, there = {};
  return ::fstat(file.get(), &here) == 0 && ::stat(path.c_str(), &there) == 0 && here.st_dev == there.st_dev &&
         here.st_ino == there.st_ino;
}

class PosixFileSystem final : public FileSystem {
 public:
  Result<std::unique_ptr<File>> open(const std::string& path, Mode mode) override {
    const bool create = mode == Mode::kCreate || mode == Mode::kCreateDirect;
    const bool read_only = mode == Mode::kRead || mode == Mode::kReadDirect;
    const int flags = read_only ? O_RDONLY : create ? O_RDWR | O_CREAT | O_EXCL : O_RDWR;
    DSV41_TRY_ASSIGN(FileDescriptor file, open_regular(path, flags));
    FileDescriptor direct;
#ifdef O_DIRECT
    if (mode == Mode::kCreateDirect) direct = FileDescriptor(open_file(path, O_WRONLY | O_DIRECT));
    if (mode == Mode::kReadDirect) direct = open_again(path, file);
#endif
    return std::unique_ptr<File>(
        std::make_unique<PosixFile>(path, std::move(file), std::move(direct), mode == Mode::kReadDirect));
  }

  Status rename(const std::string& from, const std::string& to) override {
    DSV41_TRY(check_path(from));
    DSV41_TRY(check_path(to));
    if (::rename(from.c_str(), to.c_str()) != 0) return os_failure(from, ("cannot rename to " + to).c_str(), errno);
    return {};
  }

  Status unlink(const std::string& path) override {
    DSV41_TRY(check_path(path));
    if (::unlink(path.c_str()) != 0) return os_failure(path, "cannot remove", errno);
    return {};
  }

  Status create_folder(const std::string& path) override {
    DSV41_TRY(check_path(path));
    if (::mkdir(path.c_str(), kFolderMode) == 0) return sync_folder(folder_of(path));
    if (errno == EEXIST) {
      struct stat info = {};
      if (::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) return {};
      return os_failure(path, "is in the way of a folder", EEXIST);
    }
    const std::string above = folder_of(path);
    if (errno != ENOENT || path.empty() || above == path || above == ".") {
      return os_failure(path, "cannot create", errno);
    }
    DSV41_TRY(create_folder(above));
    if (::mkdir(path.c_str(), kFolderMode) == 0) return sync_folder(above);
    if (errno == EEXIST) return {};  // another was faster
    return os_failure(path, "cannot create", errno);
  }

  Result<std::vector<FolderEntry>> list(const std::string& path) override {
    DSV41_TRY(check_path(path));
    std::vector<FolderEntry> entries;
    std::error_code error, unreadable;
    std::filesystem::directory_iterator entry(path, error);
    for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
      entries.push_back({entry->path().filename().string(), entry->is_directory(unreadable)});
    }
    if (error) return os_failure(path, "cannot list", error.value());
    std::sort(entries.begin(), entries.end(),
              [](const FolderEntry& a, const FolderEntry& b) { return a.name < b.name; });
    return entries;
  }

  Status sync_folder(const std::string& path) override {
    DSV41_TRY(check_path(path));
    const FileDescriptor folder(open_file(path, O_RDONLY | O_DIRECTORY));
    if (!folder.is_open()) return os_failure(path, "cannot open", errno);
    // EINVAL: this file system has no such operation; its names are as durable as it makes them.
    if (retry_interrupted([&] { return ::fsync(folder.get()); }) != 0 && errno != EINVAL) {
      return os_failure(path, "cannot sync", errno);
    }
    return {};
  }

  // flock: bound to the open file and not to the process as fcntl's locks are, so that two holders in one process
  // conflict too, and gone with the last descriptor, however the process ends.
  Result<std::unique_ptr<FileLock>> lock(const std::string& path) override {
    for (;;) {
      DSV41_TRY_ASSIGN(FileDescriptor file, open_regular(path, O_RDWR | O_CREAT));
      if (retry_interrupted([&] { return ::flock(file.get(), LOCK_EX | LOCK_NB); }) != 0) {
        return os_failure(path, "cannot lock", errno);
      }
      if (is_named(file, path)) return std::unique_ptr<FileLock>(std::make_unique<PosixLock>(std::move(file)));
    }
  }
};

}  // namespace

FileSystem& system_file_system() {
  static PosixFileSystem* const kSystem = new PosixFileSystem;
  return *kSystem;
}

std::string folder_of(const std::string& path) {
  const size_t name_end = path.find_last_not_of('/');
  if (name_end == std::string::npos) return path.empty() ? "." : "/";
  const size_t slash = path.find_last_of('/', name_end);
  if (slash == std::string::npos) return ".";
  const size_t folder_end = path.find_last_not_of('/', slash);
  return folder_end == std::string::npos ? "/" : path.substr(0, folder_end + 1);
}

}  // namespace dsv41
