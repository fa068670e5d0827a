#include "backend/cpu/placement.h"

#include <algorithm>

namespace dsv41::backend {
namespace {

constexpr int kMaxThreads = 1024;

Result<CpuList> listed_cpus(const BackendOptions& options, const Topology& topology) {
  if (options.affinity != Affinity::kList) {
    if (options.worker_cpus.empty()) return CpuList();
    return Status(Code::kINVALID_ARG, "worker_cpus goes with the affinity LIST");
  }
  DSV41_TRY_ASSIGN(CpuList cpus, parse_cpu_list(options.worker_cpus, "worker_cpus"));
  if (cpus.empty()) return Status(Code::kINVALID_ARG, "the affinity LIST needs worker_cpus");
  for (int cpu : cpus) {
    if (std::binary_search(topology.cpus.begin(), topology.cpus.end(), cpu)) continue;
    return Status(Code::kINVALID_ARG, "worker_cpus: processor " + std::to_string(cpu) +
                                          " is none of those that this process may use (" +
                                          cpu_list_text(topology.cpus) + ")");
  }
  return cpus;
}

int default_threads(const CpuList& list, const Topology& topology) {
  if (!list.empty()) return static_cast<int>(list.size());
  const auto n_cpus = static_cast<int>(topology.cpus.size());
  return topology.quota ? std::min(n_cpus, topology.quota) : n_cpus;
}

// The node of each thread, for as many threads on a node as it has processors, in proportion.
const NumaNode& node_of_thread(int thread, int n_threads, const Topology& topology) {
  auto left = static_cast<size_t>(thread) * topology.cpus.size() / static_cast<size_t>(n_threads);
  for (const NumaNode& node : topology.nodes) {
    if (left < node.cpus.size()) return node;
    left -= node.cpus.size();
  }
  return topology.nodes.back();
}

MemoryPlace memory_place(NumaPolicy policy, size_t n_nodes) {
  switch (policy) {
    case NumaPolicy::kInterleave: return MemoryPlace::kInterleaved;
    case NumaPolicy::kBind: return MemoryPlace::kBound;
    case NumaPolicy::kAuto: return n_nodes > 1 ? MemoryPlace::kInterleaved : MemoryPlace::kAnywhere;
    default: return MemoryPlace::kAnywhere;
  }
}

}  // namespace

Result<Placement> plan_placement(const BackendOptions& options, const Topology& topology) {
  if (options.n_threads < 0 || options.n_threads > kMaxThreads) {
    return Status(Code::kINVALID_ARG, "n_threads must be 0 to " + std::to_string(kMaxThreads));
  }
  DSV41_TRY_ASSIGN(const CpuList list, listed_cpus(options, topology));
  Placement plan;
  plan.n_threads = options.n_threads ? options.n_threads : std::min(kMaxThreads, default_threads(list, topology));
  plan.worker_cpus.resize(static_cast<size_t>(plan.n_threads - 1));
  const bool by_node = options.affinity == Affinity::kAuto && topology.nodes.size() > 1;
  for (int thread = 0; thread < plan.n_threads; ++thread) {
    CpuList cpus;
    if (!list.empty()) {
      cpus = {list[static_cast<size_t>(thread) % list.size()]};
    } else if (by_node) {
      cpus = node_of_thread(thread, plan.n_threads, topology).cpus;
    }
    for (int cpu : cpus.empty() ? topology.cpus : cpus) plan.nodes.push_back(topology.node_of(cpu).id);
    if (thread > 0) plan.worker_cpus[static_cast<size_t>(thread - 1)] = std::move(cpus);
  }
  std::sort(plan.nodes.begin(), plan.nodes.end());
  plan.nodes.erase(std::unique(plan.nodes.begin(), plan.nodes.end()), plan.nodes.end());
  plan.memory = memory_place(options.numa, plan.nodes.size());
  return plan;
}

const HostSystem& system_of(const BackendOptions& options) {
  static const HostSystem here;
  return options.system ? *options.system : here;
}

Result<Placement> placement_here(const BackendOptions& options) {
  const HostSystem& system = system_of(options);
  return plan_placement(options, read_topology(system.sys_folder(), system.allowed_cpus()));
}

}  // namespace dsv41::backend
