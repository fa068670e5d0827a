// What the files of this room that call the operating system share: a descriptor that closes itself, and one reading of
// error numbers, so that every failure of a path looks alike.
#pragma once

#include <cerrno>
#include <string>
#include <utility>

#include "base/status.h"

namespace dsv41 {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();

  bool is_open() const { return fd_ >= 0; }
  int get() const { return fd_; }

 private:
  int fd_;
};

// "path: action: the system's text", with NOT_FOUND, EXISTS, PERMISSION, NO_SPACE, NO_MEMORY, LOCKED or IO.
Status os_failure(const std::string& path, const char* action, int error);

// INVALID_ARG for a path that the system would see only the front of.
Status check_path(const std::string& path);

// Calls again while the call was cut off by a signal.
template <class Call>
auto retry_interrupted(Call call) {
  for (;;) {
    const auto answer = call();
    if (answer >= 0 || errno != EINTR) return answer;
  }
}

}  // namespace dsv41
