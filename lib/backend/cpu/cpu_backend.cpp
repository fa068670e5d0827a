#include "backend/cpu/cpu_backend.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "backend/cpu/placement.h"
#include "backend/cpu/thread_pool.h"
#include "base/float_state.h"
#include "base/stream_copy.h"
#include "kernels/common/cpu_features.h"
#include "kernels/gemm/packed_weight.h"

namespace dsv41::backend {
namespace {

// Raised when the order of any sum in the _cpu kernels changes.
constexpr int kOrderVersion = 1;
constexpr uint64_t kArenaAlignment = uint64_t{2} << 20;

// Bytes: 4 KiB on x86-64, up to 64 KiB on aarch64.
uintptr_t system_page() {
  static const uintptr_t kBytes = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  return kBytes;
}

// What both backends share: memory is host memory, weights stay where they are.
class HostBackend : public Backend {
 public:
  explicit HostBackend(const Allocator& allocator) : allocator_(allocator) {}

  Result<Buffer> allocate(uint64_t bytes, MemoryUse use) override {
    void* data = use == MemoryUse::kWorkspace ? allocate_aligned(allocator_, bytes) : map_arena(bytes);
    if (!data) return Status(Code::kNO_MEMORY, "cannot get " + std::to_string(bytes) + " bytes");
    if (use != MemoryUse::kWorkspace) place_arena(data, std::max<uint64_t>(bytes, 1));
    if (use == MemoryUse::kWeights) madvise(data, bytes, MADV_HUGEPAGE);  // advice: without it products are slower
    return Buffer(shared_from_this(), data, bytes, use);
  }

  // The file's bytes are used as they lie, except F32 and BF16 tensors at odd addresses, which are copied.
  Result<DeviceWeight> upload(const HostWeight& weight) override {
    DeviceWeight out{{weight.format, weight.rows, weight.cols, weight.codes, weight.scales}, {}};
    const uint64_t item = weight.format == tensor::WeightFormat::kF32    ? 4
                          : weight.format == tensor::WeightFormat::kBf16 ? 2
                                                                         : 1;
    if (reinterpret_cast<uintptr_t>(weight.codes) % item == 0) return out;
    const uint64_t bytes = static_cast<uint64_t>(weight.rows) * static_cast<uint64_t>(weight.cols) * item;
    DSV41_TRY_ASSIGN(out.memory, allocate(bytes, MemoryUse::kWorkspace));
    std::memcpy(out.memory.data(), weight.codes, bytes);
    out.view.codes = out.memory.data();
    return out;
  }

  void discard(void* data, uint64_t bytes) override {
    const uintptr_t page = system_page();
    const uintptr_t first = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
    const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / page * page;
    if (end > first) madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
  }

 protected:
  // Chooses the nodes of a mapping that nobody has touched yet.
  virtual void place_arena(void*, uint64_t) {}

  void free(void* data, uint64_t bytes, MemoryUse use) override {
    if (use == MemoryUse::kWorkspace) {
      free_aligned(allocator_, data);
    } else {
      munmap(data, bytes ? bytes : 1);
    }
  }

 private:
  // Reserved, not committed: pages of the kernel come when they are touched. Trimmed to a 2 MiB boundary for huge
  // pages.
  static void* map_arena(uint64_t bytes) {
    bytes = std::max<uint64_t>(bytes, 1);
    if (bytes > SIZE_MAX - kArenaAlignment) return nullptr;
    const uint64_t padded = bytes + kArenaAlignment;
    void* raw = mmap(nullptr, padded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) return nullptr;
    const uintptr_t first = reinterpret_cast<uintptr_t>(raw), page = system_page();
    const uintptr_t aligned = (first + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
    const uintptr_t end = (aligned + bytes + page - 1) / page * page;
    if (aligned > first) munmap(raw, aligned - first);
    if (end < first + padded) munmap(reinterpret_cast<void*>(end), first + padded - end);
    return reinterpret_cast<void*>(aligned);
  }

  Allocator allocator_;
};

// Copies are the same for both: at once, in host memory.
class HostQueue : public Queue {
 public:
  // Large pieces come from files and are not read soon.
  Status copy_to_device(void* device, const void* host, uint64_t bytes) override {
    if (bytes < kLeastStreamedBytes) return copy(device, host, bytes);
    stream_copy(device, host, bytes);
    return Status();
  }
  Status copy_to_host(void* host, const void* device, uint64_t bytes) override { return copy(host, device, bytes); }
  Status copy(void* to, const void* from, uint64_t bytes) override {
    if (bytes) std::memcpy(to, from, bytes);
    return Status();
  }
  Status wait() override { return Status(); }
};

class RefQueue final : public HostQueue {
 public:
#define DSV41_OP(name, Args)                        \
  Status name(const kernels::Args& args) override { \
    DSV41_TRY(kernels::check_##name(args));         \
    FloatState state(/*flush_denormals=*/false);    \
    kernels::name##_ref(args);                      \
    return Status();                                \
  }
#include "kernels/op_list.inc"
#undef DSV41_OP
};

class RefBackend final : public HostBackend {
 public:
  using HostBackend::HostBackend;
  const char* name() const override { return "ref"; }
  const std::string& numeric_class() const override { return numeric_class_; }
  int n_threads() const override { return 1; }
  uint64_t packed_bytes(const HostWeight&) const override { return 0; }
  tensor::WeightView upload_packed(const HostWeight&, std::byte*) override { return {}; }
  Result<std::unique_ptr<Queue>> create_queue() override { return std::unique_ptr<Queue>(new RefQueue); }

 private:
  std::string numeric_class_ = "ref/double/" + std::to_string(kOrderVersion);
};

class CpuQueue final : public HostQueue {
 public:
  explicit CpuQueue(const kernels::CpuContext& context) : context_(context) {}
#define DSV41_OP(name, Args)                        \
  Status name(const kernels::Args& args) override { \
    DSV41_TRY(kernels::check_##name(args));         \
    FloatState state(/*flush_denormals=*/true);     \
    kernels::name##_cpu(args, context_);            \
    return Status();                                \
  }
#include "kernels/op_list.inc"
#undef DSV41_OP

 private:
  kernels::CpuContext context_;
};

// Puts workers and memory where the plan says. A kernel that refuses (containers often forbid the calls for memory) is
// reported once, and the rest goes on.
class Placer {
 public:
  Placer(const BackendOptions& options, Placement plan) : system_(system_of(options)), plan_(std::move(plan)) {
    if (plan_.memory == MemoryPlace::kAnywhere) return;
    void* page = mmap(nullptr, system_page(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return;
    memory_error_ = system_.place_pages(page, system_page(), plan_.memory, plan_.nodes);
    munmap(page, system_page());
    if (memory_error_) plan_.memory = MemoryPlace::kAnywhere;
  }

  int n_threads() const { return plan_.n_threads; }

  void start_worker(int worker) {
    const CpuList& cpus = plan_.worker_cpus[static_cast<size_t>(worker - 1)];
    if (!cpus.empty()) note(worker_error_, system_.run_on(cpus));
    // Pages of mapped weights lie where the thread that reads them first wants them.
    if (plan_.memory != MemoryPlace::kAnywhere) {
      note(worker_memory_error_, system_.place_own_pages(plan_.memory, plan_.nodes));
    }
  }

  void place(void* first, uint64_t bytes) const {
    if (plan_.memory != MemoryPlace::kAnywhere) system_.place_pages(first, bytes, plan_.memory, plan_.nodes);
  }

  // What went wrong until all workers had started, or an empty text.
  std::string refusals() const {
    std::string text;
    const auto add = [&](int error, const char* what) {
      if (error) text += (text.empty() ? "" : "; ") + std::string(what) + ": " + std::strerror(error);
    };
    add(worker_error_, "workers stay unbound, the system refuses their processors");
    add(memory_error_ ? memory_error_ : worker_memory_error_.load(),
        "memory lies where the system puts it, it refuses the NUMA policy");
    return text;
  }

 private:
  static void note(std::atomic<int>& first_error, int error) {
    int none = 0;
    if (error) first_error.compare_exchange_strong(none, error);
  }

  const HostSystem& system_;
  Placement plan_;
  int memory_error_ = 0;
  std::atomic<int> worker_error_{0}, worker_memory_error_{0};
};

class CpuBackend final : public HostBackend {
 public:
  CpuBackend(const BackendOptions& options, kernels::CpuTarget target, Placement placement)
      : HostBackend(options.allocator),
        placer_(options, std::move(placement)),
        pool_(placer_.n_threads(), /*flush_denormals=*/true, [this](int worker) { placer_.start_worker(worker); }),
        context_{target, &pool_},
        numeric_class_(std::string("cpu/") + kernels::cpu_target_name(target) + "/" + std::to_string(kOrderVersion)) {
    const std::string refusals = placer_.refusals();
    if (options.report && !refusals.empty()) options.report(refusals);
  }

  const char* name() const override { return "cpu"; }
  const std::string& numeric_class() const override { return numeric_class_; }
  int n_threads() const override { return pool_.n_threads(); }
  bool can_stream_weights() const override { return true; }
  uint64_t packed_bytes(const HostWeight& weight) const override {
    return weight.is_matrix ? kernels::packed_bytes(weight.format, weight.rows, weight.cols) : 0;
  }
  tensor::WeightView upload_packed(const HostWeight& weight, std::byte* to) override {
    return kernels::pack_weight({weight.format, weight.rows, weight.cols, weight.codes, weight.scales}, to, pool_);
  }
  Result<std::unique_ptr<Queue>> create_queue() override { return std::unique_ptr<Queue>(new CpuQueue(context_)); }

 protected:
  void place_arena(void* data, uint64_t bytes) override { placer_.place(data, bytes); }

 private:
  Placer placer_;
  ThreadPool pool_;
  kernels::CpuContext context_;
  std::string numeric_class_;
};

Result<kernels::CpuTarget> choose_target(const std::string& name) {
  if (name.empty()) return kernels::best_cpu_target();
  std::string known;
  for (kernels::CpuTarget target : kernels::kCpuTargets) {
    known += std::string(known.empty() ? "" : ", ") + kernels::cpu_target_name(target);
    if (name != kernels::cpu_target_name(target)) continue;
    if (kernels::cpu_target_supported(target)) return target;
    return Status(Code::kUNSUPPORTED, "this machine cannot run the CPU target \"" + name + "\"");
  }
  return Status(Code::kINVALID_ARG, "unknown CPU target \"" + name.substr(0, 40) + "\" (" + known + ")");
}

}  // namespace

Result<std::shared_ptr<Backend>> create_cpu_backend(const BackendOptions& options) {
  DSV41_TRY_ASSIGN(const kernels::CpuTarget target, choose_target(options.cpu_target));
  DSV41_TRY_ASSIGN(Placement placement, placement_here(options));
  return std::shared_ptr<Backend>(std::make_shared<CpuBackend>(options, target, std::move(placement)));
}

Result<std::shared_ptr<Backend>> create_ref_backend(const BackendOptions& options) {
  return std::shared_ptr<Backend>(std::make_shared<RefBackend>(options.allocator));
}

}  // namespace dsv41::backend
