// The backends of this build, by name.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "base/allocator.h"

namespace dsv41::backend {

struct BackendOptions {
  Allocator allocator;
  int n_threads = 0;       // 0: one per processor that the calling thread may run on
  std::string cpu_target;  // "": the best of this machine; else "scalar", "avx2", "avx512"
};

// Names in order of preference: "cpu" (SIMD, threads), "ref" (plain loops in double; slow, the oracle).
const std::vector<const char*>& backend_names();

// BACKEND_UNAVAILABLE for an unknown name, UNSUPPORTED for a CPU target that this machine lacks.
Result<std::shared_ptr<Backend>> create_backend(std::string_view name, const BackendOptions& options);

}  // namespace dsv41::backend
