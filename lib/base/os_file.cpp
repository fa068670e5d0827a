#include "base/os_file.h"

#include <unistd.h>

#include <system_error>

namespace dsv41 {
namespace {

Code code_of(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR: return Code::kNOT_FOUND;
    case EEXIST: return Code::kEXISTS;
    case EACCES:
    case EPERM:
    case EROFS: return Code::kPERMISSION;
    case ENOSPC:
    case EDQUOT: return Code::kNO_SPACE;
    case ENOMEM: return Code::kNO_MEMORY;
    case EWOULDBLOCK: return Code::kLOCKED;
    default: return Code::kIO;
  }
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

Status os_failure(const std::string& path, const char* action, int error) {
  return Status(code_of(error), path + ": " + action + ": " + std::generic_category().message(error), error);
}

Status check_path(const std::string& path) {
  if (path.find('\0') != std::string::npos) return Status(Code::kINVALID_ARG, "path contains a zero byte");
  return {};
}

}  // namespace dsv41
