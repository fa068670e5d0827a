#include "base/host_mapping.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string>
#include <utility>

namespace dsv41 {
namespace {

std::atomic<bool (*)()> refuses{nullptr};

constexpr size_t kLargePageBytes = size_t{2} << 20;

void* map_pages(size_t bytes) {
  return ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

// At a multiple of the large page: more is mapped, then what is around the piece given back.
void* map_large(size_t bytes) {
  const size_t page_bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t wanted = (bytes + page_bytes - 1) / page_bytes * page_bytes, mapped = wanted + kLargePageBytes;
  void* const start = map_pages(mapped);
  if (start == MAP_FAILED) return start;
  const size_t in_front = -reinterpret_cast<uintptr_t>(start) % kLargePageBytes;
  std::byte* const data = static_cast<std::byte*>(start) + in_front;
  if (in_front) ::munmap(start, in_front);
  if (in_front < kLargePageBytes) ::munmap(data + wanted, kLargePageBytes - in_front);
  ::madvise(data, wanted, MADV_HUGEPAGE);  // advice: without it there are only more and slower page faults
  return data;
}

Status no_memory(uint64_t bytes, int error) {
  return Status(Code::kNO_MEMORY, "the system gives no " + std::to_string(bytes) + " bytes", error);
}

}  // namespace

void HostMapping::refuse_for_tests(bool (*refuse)()) { refuses = refuse; }

Result<HostMapping> HostMapping::create(uint64_t bytes) {
  HostMapping mapping;
  if (bytes == 0) return mapping;
  bool (*const refuse)() = refuses;
  if (bytes > SIZE_MAX - 2 * kLargePageBytes || (refuse && refuse())) return no_memory(bytes, 0);
  void* const data = bytes < kLargePageBytes ? map_pages(static_cast<size_t>(bytes)) : map_large(bytes);
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
