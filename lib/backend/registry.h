// The backends of this build, by name.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "base/allocator.h"

namespace dsv41::backend {

enum class Affinity : uint8_t {
  kAuto,  // workers stay on a node where the machine has several, else as kNone
  kNone,  // workers run wherever the process may
  kList,  // worker_cpus, one each
};
enum class NumaPolicy : uint8_t {
  kAuto,  // interleaved where the threads run on several nodes
  kNone,
  kInterleave,
  kBind,  // on the nodes of the threads only
};

class HostSystem;

struct BackendOptions {
  Allocator allocator;
  int n_threads = 0;       // 0: one per processor, see backend/cpu/placement.h
  std::string cpu_target;  // "": the best of this machine; else a name of kernels/common/cpu_features.h
  Affinity affinity = Affinity::kAuto;
  NumaPolicy numa = NumaPolicy::kAuto;
  std::string worker_cpus;                         // "0-3,8"
  std::function<void(const std::string&)> report;  // what was asked for and cannot be had; on the creating thread
  const HostSystem* system = nullptr;              // null: this machine's. Lives as long as the backend
};

// Names in order of preference: "cpu" (SIMD, threads), "ref" (plain loops in double; slow, the oracle).
const std::vector<const char*>& backend_names();

// INVALID_ARG for a placement that this machine does not have.
Status check_placement(const BackendOptions& options);

// BACKEND_UNAVAILABLE for an unknown name, UNSUPPORTED for a CPU target that this machine lacks.
Result<std::shared_ptr<Backend>> create_backend(std::string_view name, const BackendOptions& options);

}  // namespace dsv41::backend
