// Placement: which processors each worker runs on and which nodes hold the memory, planned from what the host wants and
// what the machine has. A pure function, so machines of any shape can be tried; doing it is the backend's.
#pragma once

#include <vector>

#include "backend/cpu/host_system.h"
#include "backend/cpu/topology.h"
#include "backend/registry.h"

namespace dsv41::backend {

struct Placement {
  int n_threads = 1;
  std::vector<CpuList> worker_cpus;  // [n_threads - 1]; an empty list: wherever the process may run
  MemoryPlace memory = MemoryPlace::kAnywhere;
  std::vector<int> nodes;  // that the threads run on, ascending
};

// Threads: the number asked for; else one for each processor of the list, or of the affinity mask as far as the control
// group's quota goes. Thread 0 is the caller's, which is never moved.
//   kList   thread i runs on processor i of the list, beginning anew at its end
//   kAuto   where the processors belong to several nodes, each worker stays on one of them: as many threads on a node
//           as it has processors, in proportion. On one node: as kNone
//   kNone   workers run where the process may
// Memory, kAuto: interleaved where the threads run on several nodes.
//
// INVALID_ARG: the list is missing, cannot be read, or names a processor that this process may not use; a list without
// kList; too many threads.
Result<Placement> plan_placement(const BackendOptions& options, const Topology& topology);
// On the machine of options.system, for the calling thread's affinity mask.
Result<Placement> placement_here(const BackendOptions& options);
const HostSystem& system_of(const BackendOptions& options);

}  // namespace dsv41::backend
