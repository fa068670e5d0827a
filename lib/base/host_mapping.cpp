#include "base/host_mapping.h"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <string>
#include <utility>

namespace dsv41 {
namespace {

std::atomic<bool (*)()> refuses{nullptr};

Status no_memory(uint64_t bytes, int error) {
  return Status(Code::kNO_MEMORY, "the system gives no " + std::to_string(bytes) + " bytes", error);
}

}  // namespace

void HostMapping::refuse_for_tests(bool (*refuse)()) { refuses = refuse; }

Result<HostMapping> HostMapping::create(uint64_t bytes) {
  HostMapping mapping;
  if (bytes == 0) return mapping;
  bool (*const refuse)() = refuses;
  if (bytes > SIZE_MAX || (refuse && refuse())) return no_memory(bytes, 0);
  void* data = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (data == MAP_FAILED) return no_memory(bytes, errno);
  mapping.data_ = static_cast<std::byte*>(data);
  mapping.size_ = bytes;
  return mapping;
}

HostMapping::HostMapping(HostMapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

HostMapping& HostMapping::operator=(HostMapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

HostMapping::~HostMapping() {
  if (data_) ::munmap(data_, static_cast<size_t>(size_));
}

}  // namespace dsv41
