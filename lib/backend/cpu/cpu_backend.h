// The two CPU backends. `cpu`: the _cpu kernels (SIMD, threads, fp32). `ref`: the _ref kernels (plain loops in double,
// one thread), the oracle inside the tree. Device memory is host memory; queues run each op at once; weights stay
// mapped as in the file, or are packed for `cpu` (kernels/gemm/packed_weight.h).
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/registry.h"

namespace dsv41::backend {

Result<std::shared_ptr<Backend>> create_cpu_backend(const BackendOptions& options);
Result<std::shared_ptr<Backend>> create_ref_backend(const BackendOptions& options);

}  // namespace dsv41::backend
