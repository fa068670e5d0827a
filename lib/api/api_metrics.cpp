// Metrics: the counters of a runtime as a struct, and one by one.
#include "api/call.h"
#include "api/handles.h"
#include "api/structs.h"

namespace dsv41::api {
namespace {

constexpr dsv41_metric_desc kMetrics[] = {
#define DSV41_METRIC(id, field, is_counter, unit) {id, is_counter, #field, unit},
#include "api/metric_list.inc"
#undef DSV41_METRIC
};

}  // namespace
}  // namespace dsv41::api

using namespace dsv41;
using namespace dsv41::api;

extern "C" {

dsv41_status dsv41_metrics_get(dsv41_runtime* runtime, dsv41_metrics* out, dsv41_error* error) {
  return run_call("dsv41_metrics_get", error, want(runtime, Access::kSharedSafe), [&](dsv41_runtime& owner) -> Status {
    DSV41_TRY(check_output(out, "out"));
    write_struct(owner.metrics(), out);
    return {};
  });
}

dsv41_status dsv41_metric_list(const dsv41_metric_desc** out, size_t* n, dsv41_error* error) {
  return run_call("dsv41_metric_list", error, [&]() -> Status {
    DSV41_TRY(check_pointer(out, "out"));
    DSV41_TRY(check_pointer(n, "n"));
    *out = kMetrics;
    *n = std::size(kMetrics);
    return {};
  });
}

dsv41_status dsv41_metric_value(dsv41_runtime* runtime, uint32_t metric, uint64_t* out, dsv41_error* error) {
  return run_call("dsv41_metric_value", error, want(runtime, Access::kSharedSafe), [&](dsv41_runtime& owner) -> Status {
    DSV41_TRY(check_pointer(out, "out"));
    const dsv41_metrics all = owner.metrics();
    switch (metric) {
#define DSV41_METRIC(id, field, is_counter, unit) \
  case id:                                        \
    *out = all.field;                             \
    return {};
#include "api/metric_list.inc"
#undef DSV41_METRIC
      default: return Status(Code::kNOT_FOUND, "there is no metric " + std::to_string(metric));
    }
  });
}

}  // extern "C"
