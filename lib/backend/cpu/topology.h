// The processors and NUMA nodes that this process may use, as the kernel's files in /sys tell them. Read once, when a
// backend is made. What cannot be read counts as absent: then all processors are one node.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace dsv41::backend {

using CpuList = std::vector<int>;  // numbers of processors, ascending, each once

constexpr int kMaxCpus = 8192;  // as many as Linux can be built for

// The kernel's notation, "0-3,8": INVALID_ARG with a message that begins with `name` and says what is wrong with it.
// An empty text, perhaps with a line feed, is an empty list.
Result<CpuList> parse_cpu_list(std::string_view text, const std::string& name);
std::string cpu_list_text(const CpuList& cpus);

struct NumaNode {
  int id = 0;
  CpuList cpus;  // usable ones, at least one
};

struct Topology {
  CpuList cpus;                 // allowed and online, at least one
  std::vector<NumaNode> nodes;  // those of these processors, ascending; at least one
  int quota = 0;                // processors' worth of time that the control group grants, rounded up; 0: no limit
  const NumaNode& node_of(int cpu) const;
};

// sys_folder: "/sys", or a tree of a test's. allowed: the affinity mask.
Topology read_topology(const std::string& sys_folder, const CpuList& allowed);

}  // namespace dsv41::backend
