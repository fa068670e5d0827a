#include "backend/cpu/host_system.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace dsv41::backend {
namespace {

constexpr size_t kWordBits = 8 * sizeof(unsigned long);
using CpuMask = std::array<unsigned long, kMaxCpus / kWordBits>;
constexpr size_t kMaxNodes = 1024;  // as many as Linux can be built for
using NodeMask = std::array<unsigned long, kMaxNodes / kWordBits>;

template <class Mask>
Mask mask_of(const std::vector<int>& numbers) {
  Mask mask{};
  for (int number : numbers) {
    const auto n = static_cast<size_t>(number);
    if (n / kWordBits < mask.size()) mask[n / kWordBits] |= 1ul << (n % kWordBits);
  }
  return mask;
}

int mode_of(MemoryPlace place) {
  switch (place) {
    case MemoryPlace::kInterleaved: return MPOL_INTERLEAVE;
    case MemoryPlace::kBound: return MPOL_BIND;
    default: return MPOL_DEFAULT;
  }
}

}  // namespace

std::string HostSystem::sys_folder() const { return "/sys"; }

CpuList HostSystem::allowed_cpus() const {
  CpuMask mask{};
  CpuList cpus;
  if (syscall(SYS_sched_getaffinity, 0, sizeof mask, mask.data()) < 0) return {0};
  for (int cpu = 0; cpu < kMaxCpus; ++cpu) {
    const auto n = static_cast<size_t>(cpu);
    if (mask[n / kWordBits] >> (n % kWordBits) & 1) cpus.push_back(cpu);
  }
  return cpus;
}

int HostSystem::run_on(const CpuList& cpus) const {
  const auto mask = mask_of<CpuMask>(cpus);
  return syscall(SYS_sched_setaffinity, 0, sizeof mask, mask.data()) == 0 ? 0 : errno;
}

// The kernel takes the number of bits plus one.
int HostSystem::place_own_pages(MemoryPlace place, const std::vector<int>& nodes) const {
  const auto mask = mask_of<NodeMask>(nodes);
  return syscall(SYS_set_mempolicy, mode_of(place), mask.data(), kMaxNodes + 1) == 0 ? 0 : errno;
}

int HostSystem::place_pages(void* first, uint64_t bytes, MemoryPlace place, const std::vector<int>& nodes) const {
  const auto mask = mask_of<NodeMask>(nodes);
  return syscall(SYS_mbind, first, bytes, mode_of(place), mask.data(), kMaxNodes + 1, 0) == 0 ? 0 : errno;
}

}  // namespace dsv41::backend
