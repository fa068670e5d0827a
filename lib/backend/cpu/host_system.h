// HostSystem: where threads run and where memory lies, asked of the kernel by plain system calls. Tests put their own in
// its place, to have machines that they do not have and kernels that refuse.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/cpu/topology.h"

namespace dsv41::backend {

enum class MemoryPlace : uint8_t {
  kAnywhere,     // as the kernel does it: on the node of the thread that touches a page first
  kInterleaved,  // page by page on all of the nodes in turn
  kBound,        // on these nodes only
};

class HostSystem {
 public:
  virtual ~HostSystem() = default;
  virtual std::string sys_folder() const;
  virtual CpuList allowed_cpus() const;  // affinity mask of the calling thread
  // These answer 0 or an error number. The calling thread, until it ends:
  virtual int run_on(const CpuList& cpus) const;
  virtual int place_own_pages(MemoryPlace place, const std::vector<int>& nodes) const;  // that it touches first
  // Whole pages that nobody has touched yet, whichever thread will.
  virtual int place_pages(void* first, uint64_t bytes, MemoryPlace place, const std::vector<int>& nodes) const;
};

}  // namespace dsv41::backend
