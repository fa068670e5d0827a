// Version, build info, capabilities, names of status codes, and the _init functions: what needs no handle.
#include "api/call.h"
#include "api/structs.h"
#include "backend/registry.h"
#include "base/version.h"
#include "kernels/common/cpu_features.h"
#include "snapshot/snapshot_file.h"

namespace dsv41::api {
namespace {

#define DSV41_TEXT_(x) #x
#define DSV41_TEXT(x) DSV41_TEXT_(x)
constexpr char kVersion[] =
    DSV41_TEXT(DSV41_VERSION_MAJOR) "." DSV41_TEXT(DSV41_VERSION_MINOR) "." DSV41_TEXT(DSV41_VERSION_PATCH);
static_assert(kVersion == kLibraryVersion);

#if defined(__clang__)
constexpr char kCompiler[] = "clang " __clang_version__;
#elif defined(__GNUC__)
constexpr char kCompiler[] = "gcc " __VERSION__;
#else
constexpr char kCompiler[] = "unknown";
#endif

// FORMAT.md of snapshot and store.
constexpr uint32_t kOldestSnapshotMajor = 1, kStoreMajor = 1;

template <class T>
void init_struct(T* value, size_t size) {
  if (!value || size < kMinBytes || size > kMaxBytes) return;
  std::memset(value, 0, size);
  value->struct_size = static_cast<uint32_t>(size);
}

void append(std::string& list, std::string_view name) {
  if (!list.empty()) list += ',';
  list += name;
}

bool has_backend(std::string_view name) {
  for (const char* known : backend::backend_names()) {
    if (name == known) return true;
  }
  return false;
}

}  // namespace
}  // namespace dsv41::api

using namespace dsv41;
using namespace dsv41::api;

extern "C" {

uint32_t dsv41_abi_version(void) { return DSV41_HEADER_ABI; }

const char* dsv41_version_string(void) { return kVersion; }

dsv41_status dsv41_build_info_get(dsv41_build_info* out, dsv41_error* error) {
  return run_call("dsv41_build_info_get", error, [&]() -> Status {
    DSV41_TRY(check_output(out, "out"));
    std::string backends, targets;
    for (const char* name : backend::backend_names()) append(backends, name);
    for (kernels::CpuTarget target : kernels::supported_cpu_targets())
      append(targets, kernels::cpu_target_name(target));
    dsv41_build_info info{};
    info.abi_version = DSV41_HEADER_ABI;
    write_text(kVersion, info.version);
    write_text(backends, info.backends);
    write_text(targets, info.cpu_targets);
    write_text(kCompiler, info.compiler);
    write_text("none,zstd", info.codecs);
    info.snapshot_major = snapshot::kMajorVersion;
    info.snapshot_minor = snapshot::kMinorVersion;
    info.snapshot_oldest_major = kOldestSnapshotMajor;
    info.store_major = kStoreMajor;
    write_struct(info, out);
    return {};
  });
}

int32_t dsv41_has_capability(uint32_t capability) {
  switch (capability) {
    case DSV41_CAP_BACKEND_CPU: return has_backend("cpu");
    case DSV41_CAP_BACKEND_REF: return has_backend("ref");
    case DSV41_CAP_CPU_AVX2: return kernels::cpu_target_supported(kernels::CpuTarget::kAvx2);
    case DSV41_CAP_CPU_AVX512: return kernels::cpu_target_supported(kernels::CpuTarget::kAvx512);
    case DSV41_CAP_CPU_AVX512_BF16: return kernels::cpu_target_supported(kernels::CpuTarget::kAvx512Bf16);
    case DSV41_CAP_CPU_AMX: return kernels::cpu_target_supported(kernels::CpuTarget::kAmx);
    case DSV41_CAP_CPU_NEON: return kernels::cpu_target_supported(kernels::CpuTarget::kNeon);
    case DSV41_CAP_DECODER_FULL:
    case DSV41_CAP_LOGPROBS:
    case DSV41_CAP_CHAT:
    case DSV41_CAP_FORK:
    case DSV41_CAP_SYNC:
    case DSV41_CAP_REPLAY:
    case DSV41_CAP_WINDOW_CACHE:
    case DSV41_CAP_SNAPSHOT:
    case DSV41_CAP_STORE:
    case DSV41_CAP_ZSTD: return 1;
    default: return 0;
  }
}

const char* dsv41_status_name(dsv41_status status) { return code_name(static_cast<Code>(status)); }
const char* dsv41_status_text(dsv41_status status) { return code_text(static_cast<Code>(status)); }

void dsv41_error_init(dsv41_error* error, size_t size) { init_struct(error, size); }
void dsv41_build_info_init(dsv41_build_info* info, size_t size) { init_struct(info, size); }
void dsv41_runtime_options_init(dsv41_runtime_options* options, size_t size) { init_struct(options, size); }
void dsv41_model_options_init(dsv41_model_options* options, size_t size) { init_struct(options, size); }
void dsv41_model_info_init(dsv41_model_info* info, size_t size) { init_struct(info, size); }
void dsv41_fingerprint_init(dsv41_fingerprint* fingerprint, size_t size) { init_struct(fingerprint, size); }
void dsv41_plan_options_init(dsv41_plan_options* options, size_t size) { init_struct(options, size); }
void dsv41_plan_init(dsv41_plan* plan, size_t size) { init_struct(plan, size); }
void dsv41_pool_options_init(dsv41_pool_options* options, size_t size) { init_struct(options, size); }
void dsv41_pool_stats_init(dsv41_pool_stats* stats, size_t size) { init_struct(stats, size); }
void dsv41_session_options_init(dsv41_session_options* options, size_t size) { init_struct(options, size); }
void dsv41_session_info_init(dsv41_session_info* info, size_t size) { init_struct(info, size); }
void dsv41_input_init(dsv41_input* input, size_t size) { init_struct(input, size); }
void dsv41_run_options_init(dsv41_run_options* options, size_t size) { init_struct(options, size); }
void dsv41_run_result_init(dsv41_run_result* result, size_t size) { init_struct(result, size); }
void dsv41_replay_options_init(dsv41_replay_options* options, size_t size) { init_struct(options, size); }
void dsv41_replay_plan_init(dsv41_replay_plan* plan, size_t size) { init_struct(plan, size); }
void dsv41_replay_info_init(dsv41_replay_info* info, size_t size) { init_struct(info, size); }
void dsv41_sampler_options_init(dsv41_sampler_options* options, size_t size) { init_struct(options, size); }
void dsv41_sample_result_init(dsv41_sample_result* result, size_t size) { init_struct(result, size); }
void dsv41_generate_options_init(dsv41_generate_options* options, size_t size) { init_struct(options, size); }
void dsv41_generate_result_init(dsv41_generate_result* result, size_t size) { init_struct(result, size); }
void dsv41_chatparse_options_init(dsv41_chatparse_options* options, size_t size) { init_struct(options, size); }
void dsv41_chat_event_init(dsv41_chat_event* event, size_t size) { init_struct(event, size); }
void dsv41_metrics_init(dsv41_metrics* metrics, size_t size) { init_struct(metrics, size); }
void dsv41_writer_init(dsv41_writer* writer, size_t size) { init_struct(writer, size); }
void dsv41_reader_init(dsv41_reader* reader, size_t size) { init_struct(reader, size); }
void dsv41_snapshot_options_init(dsv41_snapshot_options* options, size_t size) { init_struct(options, size); }
void dsv41_snapshot_info_init(dsv41_snapshot_info* info, size_t size) { init_struct(info, size); }
void dsv41_verify_report_init(dsv41_verify_report* report, size_t size) { init_struct(report, size); }
void dsv41_compat_report_init(dsv41_compat_report* report, size_t size) { init_struct(report, size); }
void dsv41_restore_options_init(dsv41_restore_options* options, size_t size) { init_struct(options, size); }
void dsv41_restore_info_init(dsv41_restore_info* info, size_t size) { init_struct(info, size); }
void dsv41_object_store_init(dsv41_object_store* objects, size_t size) { init_struct(objects, size); }
void dsv41_store_options_init(dsv41_store_options* options, size_t size) { init_struct(options, size); }
void dsv41_attach_options_init(dsv41_attach_options* options, size_t size) { init_struct(options, size); }
void dsv41_lookup_options_init(dsv41_lookup_options* options, size_t size) { init_struct(options, size); }
void dsv41_match_info_init(dsv41_match_info* info, size_t size) { init_struct(info, size); }
void dsv41_put_options_init(dsv41_put_options* options, size_t size) { init_struct(options, size); }
void dsv41_put_result_init(dsv41_put_result* result, size_t size) { init_struct(result, size); }
void dsv41_store_entry_init(dsv41_store_entry* entry, size_t size) { init_struct(entry, size); }
void dsv41_gc_report_init(dsv41_gc_report* report, size_t size) { init_struct(report, size); }
void dsv41_store_verify_report_init(dsv41_store_verify_report* report, size_t size) { init_struct(report, size); }
void dsv41_store_stats_init(dsv41_store_stats* stats, size_t size) { init_struct(stats, size); }

}  // extern "C"
